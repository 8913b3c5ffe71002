//! netsilo's eBPF programs, each next to the Rust code that loads it and decodes its counts.
//!
//! If the kernel or a missing privilege prevents a part from running, that part reports the reason.
//! The programs only count: they decide nothing and change no packet. Uses nothing else of this
//! crate.

pub mod arrived;
pub mod cgroup;
mod clocks;
pub mod decode;
mod drops;
mod functions;
pub(crate) mod layout;
pub mod load;
mod options;
mod own_cost;
mod packet_sockets;
mod refusal;
pub mod runqueue;
mod sources;
pub mod stages;
pub mod statistics;
pub mod table;
mod tables;
pub mod tracer;
