//! The CPU of each interrupt: as it is, or after a plan.

use std::collections::BTreeMap;

use netsilo_model::derive::rates::Rates;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::host::Snapshot;

/// The CPU of each interrupt after the plan.
pub(super) type Places = BTreeMap<Irq, CpuId>;

/// The CPU of each interrupt under these settings.
pub(super) fn present_places(rates: &Rates, settings: &Snapshot) -> Places {
    let irqs = settings.irqs.keys();
    irqs.filter_map(|irq| Some((*irq, rates.cpu_of_irq(settings, *irq)?))).collect()
}
