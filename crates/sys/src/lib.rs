//! netsilo kernel edge.
pub mod ethtool;
pub mod netdev_genl;
