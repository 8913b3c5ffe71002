//! Parsers of kernel text and messages: one file per kernel file, no file access.
//!
//! Parsers ignore unknown columns and rows. A missing required column or row is a [`ParseError`]
//! with line and column. No input panics. Uses [`crate::machine`] and the types of
//! [`crate::snapshot`]. Computed values do not belong here.

pub mod announced;
pub mod btf;
pub mod container;
pub mod cpu_bandwidth;
pub mod cpu_lists;
pub mod cpuinfo;
pub mod cpuset_partition;
mod error;
pub mod ethtool_decode;
pub mod interrupts;
pub mod irq_debugfs;
pub mod irqbalance;
pub mod kallsyms;
pub mod mountinfo;
pub mod net_udp;
pub mod netdev;
pub mod nfnetlink_queue;
pub mod node_distance;
pub mod pcie;
pub mod per_cpu_count;
pub mod pid_stat;
pub mod pid_status;
pub mod pod_annotations;
pub mod queue_access;
pub mod sanitize;
pub mod scalar;
pub mod schedstat;
pub mod snmp;
pub mod sockstat;
pub mod softirqs;
pub mod softnet_stat;
pub mod stat;
pub mod uevent;
pub mod virtual_machine;
mod words;

pub use error::ParseError;
