//! netsilo kernel edge.
pub mod ethtool;
pub mod irq;
mod lines;
mod netdev;
pub mod netdev_genl;
mod notes;
mod pidfd;
mod process;
pub mod read;
pub mod record;
pub mod root;
pub mod sock_diag;
mod sock_owners;
pub mod topology;
mod writers;

pub use read::snapshot;
