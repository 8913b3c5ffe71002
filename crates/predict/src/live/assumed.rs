//! [`Assumed`]: the observed work under one set of assumptions, and what is full first.

use netsilo_model::machine::cpuset::{CpuId, CpuSet};

use crate::assumptions::Assumptions;
use crate::limit::{Limit, Used, fullest};
use crate::live::loads::{PollTime, Routed};
use crate::live::work::Work;
use crate::loads::{Loads, Parts};
use crate::parameters::Table;
use crate::prediction::CpuTime;
use crate::prices::Prices;

/// The observed work under one set of assumptions: what all settings have in common.
#[derive(Debug, Clone)]
pub(super) struct Assumed {
    pub(super) assumptions: Assumptions,
    pub(super) prices: Prices,
    /// The parts of each queue's packets.
    pub(super) parts: Vec<Parts>,
    /// What the polls of each queue take as they are placed now.
    pub(super) polls: Vec<Option<PollTime>>,
    /// What the receive work takes as it is.
    pub(super) before: Loads,
    /// The same where each poll takes as many packets as it may.
    pub(super) full: Loads,
    /// How many times the load fits as it is, and what is full then, if no task stays.
    pub(super) now: (f64, Limit),
}

impl Assumed {
    /// `full` are the packets of each queue's polls if these take as many as they may.
    pub(super) fn new(
        work: &Work<'_>,
        present: &[Routed],
        full: &[f64],
        assumptions: Assumptions,
    ) -> Self {
        let prices = Prices::observed(work.analysis, Table::shipped().values(), assumptions);
        let both = || work.queues.iter().zip(present);
        let parts: Vec<Parts> =
            both().map(|(queue, now)| now.parts(work, &prices, queue)).collect();
        let polls = both().zip(&parts);
        let polls = polls.map(|((queue, now), it)| PollTime::new(&prices, queue, *it, now));
        let (polls, before) = (polls.collect(), Loads::default());
        let now = (1.0, Limit::Load);
        let mut it = Self { assumptions, prices, parts, polls, full: before.clone(), before, now };
        let all = || present.iter().enumerate();
        it.before =
            it.loads_of(work, present, all().map(|(at, now)| (at, now, now.placement.batch)));
        it.full = it.loads_of(work, present, all().map(|(at, now)| (at, now, full[at])));
        it.now = limit(work, times(work, &it.before, &it.full), &Staying::default());
        it
    }

    /// The same under other assumptions; `None` if these change what the queues take as they are.
    pub(super) fn with(&self, assumptions: Assumptions) -> Option<Self> {
        let Assumptions { arrivals, tasks_stay, .. } = assumptions;
        let is_same = assumptions == Assumptions { arrivals, tasks_stay, ..self.assumptions };
        is_same.then(|| {
            let prices = self.prices.clone().under(assumptions);
            Self { assumptions, prices, ..self.clone() }
        })
    }

    /// Whether the same queues take the same under the other assumptions, wherever they are placed.
    pub(super) fn has_loads_of(&self, other: &Self) -> bool {
        let Assumptions { tasks_stay, .. } = self.assumptions;
        self.assumptions == Assumptions { tasks_stay, ..other.assumptions }
    }

    /// What these queues take of each CPU, each with its placement and packets in a poll; `now` is
    /// where all run.
    pub(super) fn loads_of<'p>(
        &self,
        work: &Work<'_>,
        now: &[Routed],
        placed: impl Iterator<Item = (usize, &'p Routed, f64)>,
    ) -> Loads {
        let mut loads = Loads::for_cpus(work.room.len());
        for (at, placed, batch) in placed {
            let (queue, parts) = (&work.queues[at], self.parts[at]);
            placed.add(&mut loads, &self.prices, queue, parts, (&now[at], batch));
        }
        loads
    }
}

/// How each CPU spends its time if its receive work changes from what it was to this.
pub(super) fn times<'w>(
    work: &'w Work<'_>,
    before: &'w Loads,
    to: &'w Loads,
) -> impl Iterator<Item = (CpuId, CpuTime)> {
    work.cpus.iter().map(|(cpu, time)| (*cpu, time_of(*cpu, *time, before, to)))
}

/// The same of one CPU.
pub(super) fn time_of(cpu: CpuId, time: CpuTime, before: &Loads, to: &Loads) -> CpuTime {
    let (old, new) = (before.on(cpu), to.on(cpu));
    CpuTime {
        softirq: (time.softirq + (new.softirq - old.softirq)).max(0.0),
        sys: (time.sys + (new.task - old.task)).max(0.0),
        ..time
    }
}

/// Tasks that do not leave a CPU that softirqs fill.
#[derive(Debug, Default)]
pub(super) struct Staying {
    /// The CPUs.
    pub(super) cpus: CpuSet,
    /// The share of the tasks' time.
    pub(super) share: f64,
}

/// How many times the load fits, and what is full then; `cpus` are times with full polls. Tasks
/// leave a CPU that softirqs fill, except pinned ones and those in `stay`.
pub(super) fn limit(
    work: &Work<'_>,
    cpus: impl Iterator<Item = (CpuId, CpuTime)>,
    stay: &Staying,
) -> (f64, Limit) {
    let used = |(cpu, time): (CpuId, CpuTime)| Used {
        cpu,
        tasks: time.usr + time.sys,
        softirq: time.softirq,
        room: work.room(cpu),
        stays: if stay.cpus.contains(cpu) { stay.share } else { 0.0 },
    };
    let cpus: Vec<Used> = cpus.map(used).collect();
    let link = work.fullest_link.iter().cloned();
    let link = link.map(|(netdev, share)| (work.load * share, Limit::Link(netdev)));
    let (share, limit) = fullest(cpus.iter().copied(), &work.pinned, link);
    (1.0 / share.max(1e-6), limit)
}
