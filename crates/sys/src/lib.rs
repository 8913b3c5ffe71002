//! netsilo kernel edge.
pub mod ethtool;
pub mod netdev_genl;
mod pidfd;
pub mod sock_diag;
mod sock_owners;

pub mod apply;
pub mod journal;
pub mod kernel;
pub mod knob;
pub mod transaction;
pub mod undo;
pub mod verify;
