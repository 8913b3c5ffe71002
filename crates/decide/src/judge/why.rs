//! Explains why a CPU is busy with softirqs and interrupts, or where the work of a queue, a netdev,
//! an interrupt or a reading process runs.
//!
//! Causes are sorted by CPU time, largest first. If time is not measured per cause, it is divided
//! by packets and marked as estimated.

mod chain;
mod cpu;
mod explain;
mod explanation;
mod reader;
mod software;
mod unmapped;

pub(crate) use cpu::ksoftirqd;
pub use explain::why;
pub use explanation::{CpuWhy, Fact, LoadCause, SubjectError, Why};

#[cfg(test)]
mod tests;
