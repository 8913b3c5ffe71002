//! netsilo kernel edge.
pub mod ethtool;
pub mod netdev_genl;
mod pidfd;
pub mod sock_diag;
mod sock_owners;
