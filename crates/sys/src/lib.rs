//! netsilo kernel edge.
pub mod ethtool;
