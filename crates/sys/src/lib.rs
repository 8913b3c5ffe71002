//! netsilo's kernel edge: readers, netlink, ethtool, eBPF, journal and writer.
//!
//! Nothing is decided or printed here.

pub mod bpf;
pub mod bundle;
pub mod consumer;
pub mod cost;
pub mod daemon;
pub mod ethtool;
pub mod files;

#[cfg(test)]
mod kernel_page;
pub mod observe;
pub mod read;
pub mod transaction;

pub use read::snapshot::snapshot;
