//! Basic types for all other folders: CPU sets, topology, ids, absent readings, formats, ordered
//! collections.
//!
//! Uses nothing else of netsilo. Networks, kernel files and drivers do not belong here.

pub mod as_text;
pub mod counts;
pub mod cpu_owner;
pub mod cpuset;
pub mod ids;
mod nesting;
pub mod reading;
pub mod schema;
pub mod topology;
pub mod words;
