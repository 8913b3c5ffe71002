//! netsilo's eBPF programs, each next to the Rust code that loads it and decodes its counts.
//!
//! Each part gives a reason where the kernel or a missing privilege does not permit it. The
//! programs only count: they decide nothing and change no packet. Uses nothing else of this crate.

pub mod arrived;
pub mod cgroup;
pub mod decode;
pub(crate) mod layout;
pub mod load;
mod own_cost;
pub mod runqueue;
pub mod stages;
pub mod statistics;
pub mod table;
pub mod tracer;
