//! ROOMDOC

pub mod arrived;
pub mod cgroup;
pub mod decode;
pub mod load;
pub mod runqueue;
pub mod stages;
pub mod table;
pub mod tracer;
