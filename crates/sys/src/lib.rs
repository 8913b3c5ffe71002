//! Everything of netsilo that reads from the kernel or writes to it.
//!
//! Nothing is decided or printed here, and only this crate reads files below `/proc` and `/sys`.
//!
//! | folder | what | uses |
//! |---|---|---|
//! | [`clock`] | time since boot | |
//! | [`files`] | kernel files of this machine or of a captured tree | |
//! | [`ethtool`] | the ethtool ioctl | |
//! | [`irqbalance`] | the socket of a running irqbalance | |
//! | [`bpf`] | the eBPF programs | |
//! | [`read`] | a host as a snapshot | files, ethtool, irqbalance |
//! | [`bundle`] | snapshots and their files as one archive | files, read |
//! | [`transaction`] | journalled writes and undo | files, ethtool, irqbalance |
//! | [`consumer`] | the threads and cgroups of consumers | files, transaction |
//! | [`cost`] | measured weights of the cost model | transaction |
//! | [`outcomes`] | the files in which the outcomes of searches are kept | |
//! | [`daemon`] | events, signals, hints, own cost | files, transaction |
//! | [`observe`] | two snapshots and what happened in between | files, bpf, read |

pub mod bpf;
pub mod bundle;
pub mod clock;
pub mod consumer;
pub mod cost;
pub mod daemon;
pub mod ethtool;
pub mod files;
pub mod irqbalance;
pub mod observe;
pub mod outcomes;
pub mod read;
pub mod transaction;

pub use read::snapshot::{snapshot, snapshot_here, uncounted};
