//! [`Suggestion`]: the answer of an algorithm for one vector.

use netsilo_model::machine::cpuset::CpuId;

impl Suggestion {
    /// The suggested CPU, if there is one.
    pub fn cpu(&self) -> Option<CpuId> {
        match self {
            Self::Move(cpu, _) | Self::Keep(cpu, _) => Some(*cpu),
            Self::Leave(_) => None,
        }
    }
}

/// The suggestion of an algorithm for one vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Suggestion {
    /// Put the vector on this CPU, for this reason.
    Move(CpuId, String),
    /// The vector is well placed on this CPU, for this reason.
    Keep(CpuId, String),
    /// No suggestion, for this reason.
    Leave(String),
}
