//! ROOMDOC

pub mod as_text;
pub mod counts;
pub mod cpuset;
pub mod reading;
pub mod topology;
