//! ROOMDOC

pub mod analysis;
pub mod cpu_time;
pub mod forwarding;
pub mod locality;
pub mod notes;
pub mod queue_map;
pub mod rates;
pub mod reader_spread;
pub mod silo;
pub mod sock_diag;
pub mod stages;
pub mod wakeups;
