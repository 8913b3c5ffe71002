//! ROOMDOC

pub mod attribution;
pub mod audit;
pub mod ethtool;
pub mod flow;
pub mod host;
pub mod netdev_genl;
pub mod runqueue;
pub mod sockets;
