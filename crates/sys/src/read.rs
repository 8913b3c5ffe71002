//! ROOMDOC

pub mod audit;
pub mod gaps;
pub mod irq;
pub mod knob_owners;
pub mod losing_sockets;
pub mod netdev;
pub mod netlink;
pub mod pidfd;
pub mod process;
pub mod refresh;
pub mod snapshot;
pub mod sock_owners;
pub mod topology;
