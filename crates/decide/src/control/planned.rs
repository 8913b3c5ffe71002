//! What the plan of one window contains for a knob.

use super::pattern::Workload;
use netsilo_model::change::Change;

/// What the plan of one window contains for a knob.
#[derive(Debug, Clone, Copy)]
pub(super) struct Planned<'a> {
    /// The wanted change; `None` means the value is kept.
    pub(super) change: Option<&'a Change>,
    /// Whether it is as good as the change that was wanted before.
    pub(super) same: bool,
    pub(super) workload: Workload,
    /// Share of the data that is read on the core of our value's CPU.
    pub(super) read_there: Option<f64>,
}
