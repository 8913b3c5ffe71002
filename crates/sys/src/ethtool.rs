//! Reads and writes what `ethtool` shows and sets, by the ioctl `SIOCETHTOOL`.
//!
//! Uses nothing else of this crate. Decoding and encoding are in `netsilo-model`; journal and undo
//! are in [`transaction`](crate::transaction).

pub mod device;
pub mod get;
pub mod set;
