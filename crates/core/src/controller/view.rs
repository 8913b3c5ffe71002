//! What the controller needs to know of a window beyond the plan: which knobs belong together, and
//! who reads where.

use std::collections::{BTreeMap, BTreeSet};

use crate::change::{Target, Value};
use crate::cpuset::CpuId;
use crate::host::{Irq, NapiId, Snapshot};
use crate::silo::{Silo, Silos};

/// A window's settings and silos, by knob.
pub(super) struct View<'a> {
    pub(super) after: &'a Snapshot,
    silos: &'a Silos,
    by_irq: BTreeMap<Irq, usize>,
    by_thread: BTreeMap<u32, usize>,
}

impl<'a> View<'a> {
    pub(super) fn of(after: &'a Snapshot, silos: &'a Silos) -> Self {
        let (mut by_irq, mut by_thread, mut by_queue) =
            (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for (at, silo) in silos.queues.iter().enumerate() {
            by_irq.extend(
                silo.irq
                    .as_ref()
                    .map(|edge| (edge.to, at))
                    .filter(|(irq, _)| !by_irq.contains_key(irq)),
            );
            by_thread.extend(silo.kthread.as_ref().map(|thread| (thread.pid, at)));
            by_queue.extend(silo.queue.map(|queue| ((silo.netdev.name.as_str(), queue), at)));
        }
        // A tx queue's own interrupt goes with the rx queue of the same number.
        for netdev in &after.netdevs {
            for tx in &netdev.tx_queues {
                let rx = by_queue.get(&(netdev.name.as_str(), tx.index)).copied();
                let irq =
                    tx.irq.as_ref().map(|edge| edge.to).filter(|irq| !by_irq.contains_key(irq));
                by_irq.extend(irq.zip(rx));
            }
        }
        Self { after, silos, by_irq, by_thread }
    }

    /// The silo that a knob belongs to; knobs of one silo are decided as one.
    pub(super) fn unit(&self, target: &Target) -> Option<usize> {
        match target {
            Target::IrqAffinity(knob) => self.by_irq.get(&knob.irq).copied(),
            Target::NapiThread(knob) => self.by_thread.get(&knob.pid).copied(),
            _ => None,
        }
    }

    fn silo(&self, target: &Target) -> Option<&'a Silo> {
        self.silos.queues.get(self.unit(target)?)
    }

    /// The interrupt of the silo that a knob belongs to.
    pub(super) fn irq(&self, target: &Target) -> Option<Irq> {
        Some(self.silo(target)?.irq.as_ref()?.to)
    }

    /// How people call the silo that a knob belongs to.
    pub(super) fn label(&self, target: &Target) -> Option<String> {
        Some(self.silo(target)?.label())
    }

    /// The rx queue of the silo that a knob belongs to.
    pub(super) fn queue(&self, target: &Target) -> Option<(String, u32)> {
        let silo = self.silo(target)?;
        Some((silo.netdev.name.clone(), silo.queue?))
    }

    /// The NAPIs behind these knobs.
    pub(super) fn napis<'t>(
        &self,
        targets: impl IntoIterator<Item = &'t Target>,
    ) -> BTreeSet<NapiId> {
        targets
            .into_iter()
            .filter_map(|target| Some(self.silo(target)?.napi.as_ref()?.to))
            .collect()
    }

    /// The CPU of an interrupt or kthread now, by its settings.
    pub(super) fn cpu(&self, target: &Target) -> Option<CpuId> {
        let asked = cpu_of(&target.value_in(self.after)?);
        let in_force = || match target {
            Target::IrqAffinity(knob) => {
                self.after.irqs.get(&knob.irq)?.effective.as_ref()?.single()
            }
            _ => None,
        };
        asked.or_else(in_force)
    }

    /// Share of the silo's bytes that are read on this CPU's core; `None` when nobody is known to
    /// read.
    pub(super) fn read_on_core_of(&self, target: &Target, cpu: CpuId) -> Option<f64> {
        let read_on = self.silo(target)?.read_on();
        let all: f64 = read_on.values().sum();
        let core = self.after.topology.core_of(cpu);
        let here: f64 =
            read_on.iter().filter(|(cpu, _)| core.contains(**cpu)).map(|(_, bytes)| bytes).sum();
        (all > 0.0).then(|| here / all)
    }

    /// Whether a value keeps an interrupt or kthread under the last-level cache where it is.
    pub(super) fn stays_on_llc(&self, target: &Target, value: &Value) -> bool {
        let llc = |cpu| self.after.topology.llc_of(cpu);
        self.cpu(target).zip(cpu_of(value)).is_some_and(|(now, then)| llc(now).contains(then))
    }

    /// Whether two values of a knob are as good as one wish: the same, or both under the same other
    /// last-level cache.
    pub(super) fn same_wish(&self, target: &Target, a: &Value, b: &Value) -> bool {
        let llc = |value| cpu_of(value).map(|cpu| self.after.topology.llc_of(cpu));
        a == b || (llc(a).is_some() && llc(a) == llc(b) && !self.stays_on_llc(target, a))
    }
}

/// The one CPU of a value.
pub(super) fn cpu_of(value: &Value) -> Option<CpuId> {
    match value {
        Value::Cpus(cpus) => cpus.single(),
        _ => None,
    }
}
