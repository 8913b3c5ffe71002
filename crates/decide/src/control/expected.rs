//! The expected effect of a batch of writes, from the counts of the windows before it.
//!
//! The plan places a queue for its readers at their current places. It assumes that the readers
//! stay there, that the queue's packets are processed on the new CPU, and that the new CPU wakes
//! the readers. So the expected counts are those of the windows before, with the new CPU instead of
//! the old one.

use std::collections::BTreeMap;

use super::sample::{DataPath, Sample, WorkKind};
use super::view::{self, Window};
use netsilo_model::change::{Change, Target};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::{Irq, NapiId};

/// What a change moves to another CPU.
#[derive(Debug, Clone)]
pub(super) struct Moved {
    cpu: CpuId,
    llc: CpuSet,
    /// What is polled there.
    napi: Option<NapiId>,
    irq: Option<Irq>,
}

/// What a batch moves.
#[derive(Debug, Clone, Default)]
pub(super) struct Moves {
    napis: BTreeMap<NapiId, CpuId>,
    irqs: BTreeMap<Irq, CpuId>,
    /// The last-level caches of their CPUs.
    llcs: BTreeMap<CpuId, CpuSet>,
    /// It sets XPS, so packets leave in other ways afterwards.
    xps: bool,
    /// The batch has other changes, whose effect on the counts is not estimated.
    others: bool,
}

/// What a window of the previous load would show after the batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ExpectedWindow {
    /// Share of the work that stays under one last-level cache.
    pub(super) locality: f64,
    /// Wakeups across CPUs per second.
    pub(super) wakeups: f64,
}

impl Moved {
    /// What a change moves; `None` if it does something else. If NAPI is threaded, the kthread
    /// polls, wherever the interrupt is. With RPS, packets are processed on other CPUs.
    pub(super) fn new(window: &Window<'_>, change: &Change) -> Option<Self> {
        let cpu = view::cpu_of(&change.new)?;
        let target = &change.target;
        let (threaded, polls) = (window.is_threaded(target), window.polled_by(target));
        let (napi, irq) = match target {
            Target::IrqAffinity(knob) => (polls, (!threaded).then_some(knob.irq)),
            Target::NapiThread(_) => (polls, None),
            _ => return None,
        };
        Some(Self { cpu, llc: window.after().topology.llc_of(cpu), napi, irq })
    }
}

impl Moves {
    /// Adds a change of the batch.
    pub(super) fn add(&mut self, change: &Change, moved: Option<Moved>) {
        let Some(Moved { cpu, llc, napi, irq }) = moved else {
            let is_xps = view::is_xps(&change.target);
            (self.xps, self.others) = (self.xps || is_xps, self.others || !is_xps);
            return;
        };
        self.napis.extend(napi.map(|napi| (napi, cpu)));
        self.irqs.extend(irq.map(|irq| (irq, cpu)));
        self.llcs.insert(cpu, llc);
    }

    /// What an earlier window would show on these CPUs; `None` if that is not known.
    pub(super) fn expected(
        &self,
        sample: &Sample,
        work: WorkKind,
        cpus: &CpuSet,
    ) -> Option<ExpectedWindow> {
        if self.others {
            return None;
        }
        let (mut all, mut near) = (0.0, 0.0);
        for (row, amount) in sample.rows(work).filter(|(row, _)| row.touches(cpus)) {
            all += amount;
            near += if self.is_near(row)? { amount } else { 0.0 };
        }
        let changes = sample.woken.iter().filter_map(|it| {
            let cpu = self.napis.get(&it.napi)?;
            let remote = |waker: CpuId| if waker == it.sleeper { 0.0 } else { it.per_s };
            Some(remote(*cpu) - remote(it.waker))
        });
        let wakeups = (sample.remote_wakeups(cpus) + changes.sum::<f64>()).max(0.0);
        (all > 0.0).then(|| ExpectedWindow { locality: near / all, wakeups })
    }

    /// Whether this work stays under one last-level cache; `None` if it then takes another path.
    fn is_near(&self, row: &DataPath) -> Option<bool> {
        if row.egress.is_some() && self.xps {
            return None;
        }
        let protocol = row.napi.and_then(|napi| self.napis.get(&napi)).copied();
        let consumer = row.egress.as_ref().and_then(|egress| {
            let by_napi = egress.napi.and_then(|napi| self.napis.get(&napi));
            by_napi.or_else(|| self.irqs.get(&egress.irq?)).copied()
        });
        if protocol.is_none() && consumer.is_none() {
            return Some(row.same_llc);
        }
        if protocol.is_some() && row.egress.as_ref().is_some_and(|egress| egress.by_cpu) {
            return None;
        }
        let (Some(from), to) = (protocol.or(row.protocol), consumer.unwrap_or(row.consumer)) else {
            return Some(false);
        };
        let under = |a: CpuId, b: CpuId| self.llcs.get(&a).is_some_and(|llc| llc.contains(b));
        Some(from == to || under(from, to) || under(to, from))
    }
}
