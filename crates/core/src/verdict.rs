//! What each remedy would do to the receive work of each netdev: help, hurt, no clear change, or
//! not known, with reasons.
//!
//! A verdict follows from where the walls are ([`wall`]): what is full now, and what would be after
//! work has moved and some was added. What was not measured is filled in three ways, from the worst
//! to the best that fits ([`work`]): a remedy helps if it does in the worst of them, and hurts if
//! it cannot help in the best. `docs/verdicts.md` has the formulas and sources.

mod handed;
mod interrupts;
mod poll;
mod queues;
mod steer;
#[cfg(test)]
mod tests;
mod wall;
mod work;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::change::{Change, Knob};
use crate::cpuset::CpuSet;
use crate::diagnose::{Evidence, Gain, Measure, Seen};
use crate::host::Netdev;
use crate::plan::{Goal, plan_of};
use wall::{Limit, Loads, Wall};
use work::{Range, Sight, Work};

/// A remedy has to gain at least this in the worst case: measurements vary by as much.
const CLEAR: f64 = 0.05;
/// A remedy that cannot gain hurts if it likely costs this.
const LOSS: f64 = 0.01;
/// Entries of the flow table that are proposed (`Documentation/networking/scaling.rst`, for a busy
/// server).
pub(crate) const FLOW_ENTRIES: u32 = 32768;

/// What one remedy would do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The remedy.
    pub remedy: RemedyName,
    /// The netdev.
    pub subject: String,
    /// What it would do.
    pub outcome: Outcome,
    /// Why, in one line.
    pub because: String,
    /// How much it could gain at most.
    pub bound: Gain,
    /// The numbers behind it.
    pub reasons: Vec<Evidence>,
    /// What would be written; empty where nothing should be, or nothing that netsilo can write.
    pub changes: Vec<Change>,
    /// When not to, whatever the numbers say.
    pub not_when: Option<String>,
}

/// What a remedy does to how much the machine can carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It raises it, even by the least favourable reckoning.
    Help,
    /// It cannot raise it, and likely lowers it.
    Hurt,
    /// Neither is shown.
    NoClearChange,
    /// What it hangs on was not measured.
    Unknown,
}

/// What may be done to a netdev's receive work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RemedyName {
    /// Protocol work to other CPUs, by the flow's hash.
    Rps,
    /// Protocol work to the CPU that reads.
    Rfs,
    /// Both: what RFS cannot steer goes by hash.
    RpsAndRfs,
    /// The device steers flows to the queue nearest their reader.
    Arfs,
    /// Each queue's interrupt on a CPU of its own.
    SpreadInterrupts,
    /// More queues.
    MoreQueues,
    /// NAPI in kthreads.
    ThreadedNapi,
    /// More descriptors in the receive ring.
    BiggerRing,
    /// More packets in one run of the softirq.
    BiggerBudget,
    /// The device waits before it interrupts.
    Coalescing,
    /// The kernel polls by timer instead of interrupts.
    IrqDeferral,
    /// Readers poll.
    BusyPoll,
}

impl fmt::Display for RemedyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Rps => "RPS",
            Self::Rfs => "RFS",
            Self::RpsAndRfs => "RPS + RFS",
            Self::Arfs => "aRFS",
            Self::SpreadInterrupts => "spread interrupts",
            Self::MoreQueues => "more queues",
            Self::ThreadedNapi => "threaded NAPI",
            Self::BiggerRing => "bigger ring",
            Self::BiggerBudget => "bigger budget",
            Self::Coalescing => "coalescing",
            Self::IrqDeferral => "IRQ deferral",
            Self::BusyPoll => "busy poll",
        })
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Help => "helps",
            Self::Hurt => "hurts",
            Self::NoClearChange => "no clear change",
            Self::Unknown => "unknown",
        })
    }
}

/// All verdicts on all netdevs that something arrives on; none where there is nothing to judge by.
pub fn verdicts(seen: &Seen<'_>) -> Vec<Verdict> {
    let netdevs = seen.observation.after.netdevs.iter();
    netdevs
        .filter_map(|netdev| Work::of(seen, netdev))
        .flat_map(|work| of_netdev(seen, &work))
        .collect()
}

/// What RPS onto these CPUs would do to a netdev, without the changes; `None` when nothing arrives
/// on it.
pub fn rps_onto(seen: &Seen<'_>, netdev: &Netdev, cpus: &CpuSet) -> Option<Verdict> {
    Some(steer::rps_onto(&Work::of(seen, netdev)?, cpus))
}

/// What RFS would do to a netdev, without the changes; `None` when nothing arrives on it.
pub fn rfs(seen: &Seen<'_>, netdev: &Netdev) -> Option<Verdict> {
    Some(steer::rfs(&Work::of(seen, netdev)?))
}

/// What aRFS would do to a netdev, without the changes; `None` when nothing arrives on it.
pub fn arfs(seen: &Seen<'_>, netdev: &Netdev) -> Option<Verdict> {
    Some(steer::arfs(&Work::of(seen, netdev)?))
}

/// Share of a netdev's bytes that RFS, which is on there, cannot steer; `None` where it is off, or
/// nobody was seen to read.
pub fn unsteerable(seen: &Seen<'_>, netdev: &Netdev) -> Option<f64> {
    let work = Work::of(seen, netdev).filter(steer::in_force)?;
    Some(1.0 - work.steerable()?.best)
}

fn of_netdev(seen: &Seen<'_>, work: &Work<'_>) -> Vec<Verdict> {
    let on = steer::rps_is_on(work);
    let targets = if on { CpuSet::new() } else { steer::targets(work) };
    let rps = if on { handed::rps_in_force(work) } else { steer::rps_onto(work, &targets) };
    let rps_goal = Goal { rps: Some(targets.clone()), ..Goal::default() };
    let rfs_goal = Goal { rfs: Some(FLOW_ENTRIES), ..Goal::default() };
    let both = Goal { rfs: Some(FLOW_ENTRIES), ..rps_goal.clone() };
    let arfs = Goal { arfs: Some(true), ..rfs_goal.clone() };
    // What is on and hurts is switched off; all else is written where it helps.
    let against = if on { Outcome::Hurt } else { Outcome::Help };
    let mut all = vec![
        with_changes(seen, work, rps, against, rps_goal),
        with_changes(seen, work, steer::rfs(work), Outcome::Help, rfs_goal),
        with_changes(seen, work, steer::both(work, &targets), Outcome::Help, both),
        with_changes(seen, work, steer::arfs(work), Outcome::Help, arfs),
    ];
    all.extend([queues::spread(work), queues::more(work), queues::threaded(work)]);
    all.extend([
        poll::ring(work),
        poll::budget(work),
        interrupts::coalescing(work),
        interrupts::deferral(work),
        poll::busy_poll(work),
    ]);
    all
}

/// The settings that a goal comes down to, where the outcome calls for them.
fn with_changes(
    seen: &Seen<'_>,
    work: &Work<'_>,
    verdict: Verdict,
    called_for: Outcome,
    goal: Goal,
) -> Verdict {
    if verdict.outcome != called_for {
        return verdict;
    }
    let netdevs = vec![work.netdev.name.clone()];
    let goal =
        Goal { netdevs, irqs: false, even_if_owned: true, costs: work.costs.clone(), ..goal };
    let changes = plan_of(seen.observation, seen.rates, seen.silos, &goal).changes;
    Verdict { changes, ..verdict }
}

/// What a remedy does to the walls.
#[derive(Debug, Clone, Copy)]
struct Effect {
    /// How much further the load can grow than before, in each sight.
    gain: Range,
    /// What is full first now.
    before: Wall,
    /// What would be.
    after: Wall,
    /// How much the load could grow from what it is now, at best.
    most: f64,
}

impl Effect {
    /// By the loads afterwards. On `fixed` CPUs, by the worst reckoning, applications stay where
    /// they are.
    fn of(work: &Work<'_>, fixed: &CpuSet, after: impl Fn(Sight) -> Loads) -> Self {
        let walls = |sight| {
            let nowhere = CpuSet::new();
            let fixed = if sight == Sight::Worst { fixed } else { &nowhere };
            (Wall::of(&work.loads, fixed, work.link), Wall::of(&after(sight), fixed, work.link))
        };
        let gain = |(before, after): (Wall, Wall)| after.times / before.times - 1.0;
        let (worst, likely, best) = (walls(Sight::Worst), walls(Sight::Likely), walls(Sight::Best));
        Self {
            gain: Range { worst: gain(worst), likely: gain(likely), best: gain(best) },
            before: likely.0,
            after: likely.1,
            most: best.1.times - 1.0,
        }
    }

    fn outcome(&self) -> Outcome {
        if !self.before.is_near() {
            Outcome::NoClearChange
        } else if self.least() >= CLEAR {
            Outcome::Help
        } else if self.gain.best <= 0.0 && self.gain.worst <= LOSS && self.gain.likely <= -LOSS {
            Outcome::Hurt
        } else {
            Outcome::NoClearChange
        }
    }

    fn bound(&self, why_nothing: &str) -> Gain {
        if self.gain.best <= 0.0 {
            return Gain::Nothing(why_nothing.to_owned());
        }
        Gain::AtMost {
            measure: Measure::Share(self.most),
            of: "the present load, on top of it".into(),
            basis: format!("then {} is full, with the same work for each packet", self.after.at),
        }
    }

    /// What is full now, in words.
    fn now(&self, work: &Work<'_>) -> String {
        let idle = work.mean_idle(&work.cpus());
        let room = match self.before.at {
            Limit::Cpu(cpu) => {
                let bound = work.loads.get(&cpu).map_or(0.0, |load| load.bound);
                format!("cpu {cpu} spends {} on interrupts and softirqs", percent(bound))
            }
            Limit::Machine => format!(
                "the cpus are idle {} of the time, no one of them is the wall",
                percent(idle)
            ),
            Limit::Link => format!("the link is {} full", percent(work.link.unwrap_or(0.0))),
        };
        match self.before.is_near() {
            true => room,
            false => format!(
                "nothing is full: the load can grow {:.1} times before {} is",
                self.before.times, self.before.at
            ),
        }
    }

    /// From the worst to the best.
    fn between(&self) -> String {
        let most = self.gain.worst.max(self.gain.likely).max(self.gain.best);
        // No "-0%".
        let percent = |share: f64| (share * 100.0).round() + 0.0;
        format!("{:+}% to {:+}%", percent(self.least()), percent(most))
    }

    /// Where applications cannot leave the CPU that is relieved, the worst reckoning otherwise may
    /// be the best.
    fn least(&self) -> f64 {
        self.gain.worst.min(self.gain.likely).min(self.gain.best)
    }
}

impl Verdict {
    fn new(
        work: &Work<'_>,
        remedy: RemedyName,
        outcome: Outcome,
        because: impl Into<String>,
    ) -> Self {
        let because = because.into();
        let bound = match outcome {
            Outcome::Unknown => Gain::Unknown(because.clone()),
            _ => Gain::Nothing(because.clone()),
        };
        Self {
            remedy,
            subject: work.netdev.name.clone(),
            outcome,
            because,
            bound,
            reasons: Vec::new(),
            changes: Vec::new(),
            not_when: None,
        }
    }

    fn bound(self, bound: Gain) -> Self {
        Self { bound, ..self }
    }

    fn reasons(self, reasons: Vec<Evidence>) -> Self {
        Self { reasons, ..self }
    }

    /// What would be written too: another value of one knob of the snapshot, where it has the knob.
    fn writes<K: Knob>(
        mut self,
        work: &Work<'_>,
        knob: K,
        edit: impl FnOnce(&K::Value) -> Option<K::Value>,
        reason: &str,
    ) -> Self {
        let after = &work.seen.observation.after;
        let new = knob.value_in(after).and_then(|old| edit(&old));
        self.changes.extend(new.and_then(|new| Change::of(after, knob, new, reason)));
        self
    }

    fn not_when(self, not_when: &str) -> Self {
        Self { not_when: Some(not_when.to_owned()), ..self }
    }
}

/// `23%`; small ones with a decimal.
fn percent(share: f64) -> String {
    if share.abs() < 0.0995 {
        format!("{:.1}%", share * 100.0)
    } else {
        format!("{:.0}%", share * 100.0)
    }
}
