//! One observation window, and what the controller needs from it in addition to the plan: which
//! knobs belong together, and where their data is read.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::pattern::Pattern;
use netsilo_model::change::{Target, Value};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::silo::Silo;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::ids::{Irq, NapiId};
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::subject::Subject;

/// A window: what was observed, what is derived from it, and its silos by knob.
pub(super) struct Window<'a> {
    /// When it ended.
    pub(super) now: Duration,
    pub(super) analysis: &'a Analysis<'a>,
    pub(super) pattern: Pattern,
    by_irq: BTreeMap<Irq, usize>,
    by_thread: BTreeMap<u32, usize>,
}

impl<'a> Window<'a> {
    pub(super) fn new(now: Duration, analysis: &'a Analysis<'a>) -> Self {
        let (after, Analysis { rates, silos, .. }) = (analysis.after(), analysis);
        let (mut by_irq, mut by_thread, mut by_queue) =
            (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for (at, silo) in silos.queues.iter().enumerate() {
            by_irq.extend(
                silo.irq
                    .as_ref()
                    .and_then(|edge| Some((*edge.known()?, at)))
                    .filter(|(irq, _)| !by_irq.contains_key(irq)),
            );
            by_thread.extend(silo.kthread.as_ref().map(|thread| (thread.pid, at)));
            by_queue.extend(silo.queue.map(|queue| ((silo.netdev.name.as_str(), queue), at)));
        }
        // The interrupt of a tx queue belongs to the rx queue of the same number.
        for netdev in &after.netdevs {
            for tx in &netdev.tx_queues {
                let rx = by_queue.get(&(netdev.name.as_str(), tx.index)).copied();
                let irq = tx
                    .irq
                    .as_ref()
                    .and_then(|edge| edge.known().copied())
                    .filter(|irq| !by_irq.contains_key(irq));
                by_irq.extend(irq.zip(rx));
            }
        }
        let pattern = Pattern::new(&after.topology.online, rates, silos);
        Self { now, analysis, pattern, by_irq, by_thread }
    }

    /// The settings at its end.
    pub(super) fn after(&self) -> &'a Snapshot {
        self.analysis.after()
    }

    /// The silo to which a knob belongs, by its position. Knobs of one silo are decided together.
    pub(super) fn silo_of(&self, target: &Target) -> Option<usize> {
        match target {
            Target::IrqAffinity(knob) => self.by_irq.get(&knob.irq).copied(),
            Target::NapiThread(knob) => self.by_thread.get(&knob.pid).copied(),
            _ => None,
        }
    }

    fn silo(&self, target: &Target) -> Option<&'a Silo> {
        self.analysis.silos.queues.get(self.silo_of(target)?)
    }

    /// The interrupt of the silo to which a knob belongs.
    pub(super) fn irq(&self, target: &Target) -> Option<Irq> {
        Some(self.silo(target)?.irq.as_ref()?.to)
    }

    /// The subject of the silo to which a knob belongs.
    pub(super) fn subject(&self, target: &Target) -> Option<Subject> {
        Some(self.silo(target)?.subject())
    }

    /// The rx queue of the silo to which a knob belongs.
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

    /// Whether a kthread polls the silo to which a knob belongs.
    pub(super) fn is_threaded(&self, target: &Target) -> bool {
        self.silo(target).is_some_and(|silo| silo.kthread.is_some())
    }

    /// The NAPI whose packets are processed on the CPU of this knob.
    pub(super) fn polled_by(&self, target: &Target) -> Option<NapiId> {
        let silo = self.silo(target)?;
        let polls = match target {
            Target::NapiThread(_) => true,
            Target::IrqAffinity(knob) => {
                silo.kthread.is_none() && silo.irq.as_ref().is_some_and(|it| it.to == knob.irq)
            }
            _ => false,
        };
        let by_rps = silo.rps_cpus.as_ref().is_some_and(|cpus| !cpus.is_empty());
        Some(silo.napi.as_ref().filter(|_| polls && !by_rps)?.to)
    }

    /// The current CPU of an interrupt or kthread, by its settings, else where it arrives.
    pub(super) fn cpu(&self, target: &Target) -> Option<CpuId> {
        let requested = cpu_of(&target.value_in(self.after())?);
        let effective = || match target {
            Target::IrqAffinity(knob) => self.analysis.rates.cpu_of_irq(self.after(), knob.irq),
            _ => None,
        };
        requested.or_else(effective)
    }

    /// Share of the silo's bytes that are read on this CPU's core. `None` if no reader is known.
    pub(super) fn read_on_core_of(&self, target: &Target, cpu: CpuId) -> Option<f64> {
        let read_on = self.silo(target)?.read_on();
        let all: f64 = read_on.values().sum();
        let core = self.after().topology.core_of(cpu);
        let here: f64 =
            read_on.iter().filter(|(cpu, _)| core.contains(**cpu)).map(|(_, bytes)| bytes).sum();
        (all > 0.0).then(|| here / all)
    }

    /// Whether a value keeps an interrupt or kthread under its current last-level cache.
    pub(super) fn stays_on_llc(&self, target: &Target, value: &Value) -> bool {
        let llc = |cpu| self.after().topology.llc_of(cpu);
        self.cpu(target).zip(cpu_of(value)).is_some_and(|(now, then)| llc(now).contains(then))
    }

    /// Whether two wanted values of a knob count as the same: they are equal, or both are under the
    /// same other last-level cache.
    pub(super) fn is_same_want(&self, target: &Target, a: &Value, b: &Value) -> bool {
        let llc = |value| cpu_of(value).map(|cpu| self.after().topology.llc_of(cpu));
        a == b || (llc(a).is_some() && llc(a) == llc(b) && !self.stays_on_llc(target, a))
    }
}

/// The CPU of a value that names one CPU.
pub(super) fn cpu_of(value: &Value) -> Option<CpuId> {
    match value {
        Value::Cpus(cpus) => cpus.single(),
        _ => None,
    }
}

/// Whether the knob is the XPS of a tx queue.
pub(super) fn is_xps(target: &Target) -> bool {
    matches!(target, Target::XpsCpus { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsilo_model::change::knobs;
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::machine::cpuset::CpuSet;
    use netsilo_model::synthetic::grid::Grid;
    use netsilo_model::synthetic::scene::{Scene, SceneNetdev, SceneQueue};

    #[test]
    fn an_interrupt_that_may_go_to_many_cpus_is_where_it_is_delivered() {
        let set = |list: &str| CpuSet::parse_list(list).unwrap();
        let at = |cpus: &str| {
            let (irq, cpus) = (Some(30), set(cpus));
            let queue = SceneQueue { irq, cpus, packets_per_s: 1000, ..SceneQueue::default() };
            let (name, queues) = ("eth0".into(), vec![queue]);
            let netdevs = vec![SceneNetdev { name, queues, ..SceneNetdev::default() }];
            let grid = Grid { nodes: 2, l2s: 4, ..Grid::default() };
            let observation = Scene { grid, netdevs, ..Scene::default() }.observation();
            let costs = Costs::default();
            let analysis = Analysis::new(&observation, &costs);
            let window = Window::new(Duration::ZERO, &analysis);
            let action = "eth0-TxRx-0".into();
            let target = knobs::IrqAffinity { irq: Irq(30), action, netdev: None }.into();
            let to = |cpus: &str| window.stays_on_llc(&target, &Value::Cpus(set(cpus)));
            (window.cpu(&target), to("5"), to("1"), to("4-7"))
        };
        assert_eq!(at("6"), (Some(CpuId(6)), true, false, false));
        assert_eq!(at("4-7"), (Some(CpuId(4)), true, false, false));
    }
}
