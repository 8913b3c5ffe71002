//! The CPU of each interrupt: by its present settings, or after a plan.

use std::collections::BTreeMap;

use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::host::Snapshot;

/// The CPU of each interrupt after the plan.
pub(super) type Places = BTreeMap<Irq, CpuId>;

/// The present CPU of each interrupt.
pub(super) fn present_places(after: &Snapshot) -> Places {
    after.irqs.keys().filter_map(|irq| Some((*irq, present(after, *irq)?))).collect()
}

/// The CPU of an interrupt by its settings: the requested affinity, or the effective one where the
/// requested one names several CPUs.
pub(super) fn present(snapshot: &Snapshot, irq: Irq) -> Option<CpuId> {
    let state = snapshot.irqs.get(&irq)?;
    let requested = state.requested.as_ref().and_then(CpuSet::single);
    requested.or_else(|| state.effective.as_ref().and_then(CpuSet::single))
}
