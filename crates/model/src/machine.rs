//! ROOMDOC

pub mod as_text;
pub mod counts;
pub mod cpuset;
pub mod ids;
pub mod reading;
pub mod topology;
pub mod words;
