//! Verdicts: the effect of each remedy on the receive work of each netdev (helps, hurts, no clear
//! change, unknown), with reasons.
//!
//! A verdict compares the bottlenecks ([`wall`]) now and after the remedy has moved and added work.
//! Unmeasured quantities are assumed in three scenarios, from the worst to the best that fits the
//! measurements ([`work`]). A remedy helps if it helps in the worst one, and hurts if it cannot
//! help in the best one. `docs/verdicts.md` has the formulas and sources.

mod bottleneck;
mod interrupts;
mod packet_steering;
mod poll;
mod queues;
mod rps_in_force;

#[cfg(test)]
mod tests;
mod work;

use netsilo_model::snapshot::subject::Subject;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::judge::evidence::{Evidence, Gain, Measure};
use crate::plan::Goal;
use bottleneck::{Limit, Loads, Wall};
use netsilo_model::change::{Change, Target, Value};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::snapshot::netdev::Netdev;
use work::{Range, Sight, Work};

/// Minimum gain in the worst scenario for a remedy to help: measurements vary by as much.
const CLEAR: f64 = 0.05;
/// Likely loss from which a remedy that cannot gain hurts.
const LOSS: f64 = 0.01;
/// Proposed entries of the global flow table (`Documentation/networking/scaling.rst`, for a busy
/// server).
pub(crate) const FLOW_ENTRIES: u32 = 32768;

/// The predicted effect of one remedy on one netdev.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The remedy.
    pub remedy: RemedyName,
    /// The netdev.
    pub subject: Subject,
    /// The predicted effect.
    pub outcome: Outcome,
    /// The reason, in one line.
    pub because: String,
    /// The upper bound of the gain.
    pub bound: Gain,
    /// The measurements that support the verdict.
    pub reasons: Vec<Evidence>,
    /// The changes to write; empty when none is advised or netsilo cannot write it.
    pub changes: Vec<Change>,
    /// When not to use the remedy, regardless of the measurements.
    pub not_when: Option<String>,
}

/// The effect of a remedy on the load that the machine can carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It raises the maximum load, even in the worst scenario.
    Help,
    /// It cannot raise the maximum load, and likely lowers it.
    Hurt,
    /// Neither is shown.
    NoClearChange,
    /// A quantity that decides it was not measured.
    Unknown,
}

/// A remedy for a netdev's receive work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RemedyName {
    /// Steer protocol work to other CPUs by the flow's hash.
    Rps,
    /// Steer protocol work to the CPU that reads the flow.
    Rfs,
    /// Both: RPS steers what RFS cannot.
    RpsAndRfs,
    /// Let the device steer flows to the queue nearest their reader.
    Arfs,
    /// Place each queue's interrupt on its own CPU.
    SpreadInterrupts,
    /// Use more queues.
    MoreQueues,
    /// Poll NAPI in kthreads.
    ThreadedNapi,
    /// Use more descriptors in the receive ring.
    BiggerRing,
    /// Process more packets in one softirq run.
    BiggerBudget,
    /// Let the device wait before it raises an interrupt.
    Coalescing,
    /// Let the kernel poll from a timer instead of taking interrupts.
    IrqDeferral,
    /// Let readers busy-poll.
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

/// A verdict, and what to plan for it.
#[derive(Debug, Clone)]
pub(crate) struct Proposal {
    /// The verdict, without the changes of `goal`.
    pub(crate) verdict: Verdict,
    /// The goal whose plan puts the remedy in force; `None` when the outcome does not call for it,
    /// or the verdict has its changes already.
    pub(crate) goal: Option<Goal>,
}

/// The verdicts on all netdevs with receive traffic; empty without rates.
pub(crate) fn proposals(analysis: &Analysis<'_>) -> Vec<Proposal> {
    let netdevs = analysis.observation.after.netdevs.iter();
    netdevs
        .filter_map(|netdev| Work::of(analysis, netdev))
        .flat_map(|work| of_netdev(&work))
        .collect()
}

/// The verdict on RPS onto these CPUs, without changes; `None` for a netdev without receive
/// traffic.
pub fn rps_onto(analysis: &Analysis<'_>, netdev: &Netdev, cpus: &CpuSet) -> Option<Verdict> {
    Some(packet_steering::rps_onto(&Work::of(analysis, netdev)?, cpus))
}

/// The verdict on RFS, without changes; `None` for a netdev without receive traffic.
pub fn rfs(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Verdict> {
    Some(packet_steering::rfs(&Work::of(analysis, netdev)?))
}

/// The verdict on aRFS, without changes; `None` for a netdev without receive traffic.
pub fn arfs(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<Verdict> {
    Some(packet_steering::arfs(&Work::of(analysis, netdev)?))
}

/// The share of a netdev's bytes that RFS cannot steer; `None` when RFS is off or no reads were
/// observed.
pub fn unsteerable(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<f64> {
    let work = Work::of(analysis, netdev).filter(packet_steering::in_force)?;
    Some(1.0 - work.steerable()?.best)
}

fn of_netdev(work: &Work<'_>) -> Vec<Proposal> {
    let on = packet_steering::rps_is_on(work);
    let targets = if on { CpuSet::new() } else { packet_steering::targets(work) };
    let rps = if on {
        rps_in_force::rps_in_force(work)
    } else {
        packet_steering::rps_onto(work, &targets)
    };
    let rps_goal = Goal { rps: Some(targets.clone()), ..Goal::default() };
    let rfs_goal = Goal { rfs: Some(FLOW_ENTRIES), ..Goal::default() };
    let both = Goal { rfs: Some(FLOW_ENTRIES), ..rps_goal.clone() };
    let arfs = Goal { arfs: Some(true), ..rfs_goal.clone() };
    // RPS that is on is switched off where it hurts; any other remedy is written where it helps.
    let called_for = if on { Outcome::Hurt } else { Outcome::Help };
    let mut all = vec![
        proposed(work, rps, called_for, rps_goal),
        proposed(work, packet_steering::rfs(work), Outcome::Help, rfs_goal),
        proposed(work, packet_steering::both(work, &targets), Outcome::Help, both),
        proposed(work, packet_steering::arfs(work), Outcome::Help, arfs),
    ];
    let others = [
        queues::spread(work),
        queues::more(work),
        queues::threaded(work),
        poll::ring(work),
        poll::budget(work),
        interrupts::coalescing(work),
        interrupts::deferral(work),
        poll::busy_poll(work),
    ];
    all.extend(others.map(|verdict| Proposal { verdict, goal: None }));
    all
}

/// The proposal of a goal with a verdict whose outcome must be `called_for`.
fn proposed(work: &Work<'_>, verdict: Verdict, called_for: Outcome, goal: Goal) -> Proposal {
    let netdevs = vec![work.netdev.name.clone()];
    let goal = Goal { netdevs, irqs: false, even_if_owned: true, ..goal };
    Proposal { goal: (verdict.outcome == called_for).then_some(goal), verdict }
}

/// The effect of a remedy on the bottleneck.
#[derive(Debug, Clone, Copy)]
struct Effect {
    /// Relative growth of the maximum load in each scenario; 0 for none.
    gain: Range,
    /// The bottleneck now, in the likely scenario.
    before: Wall,
    /// The bottleneck after the remedy, in the likely scenario.
    after: Wall,
    /// Growth from the present load that the best scenario allows, as a share of it.
    most: f64,
}

impl Effect {
    /// Compares the present loads with those `after` the remedy. In the worst scenario,
    /// applications on `fixed` CPUs cannot move.
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
            of: "the present load, in addition to it".into(),
            basis: format!("then {} is saturated, with the same work per packet", self.after.at),
        }
    }

    /// The present bottleneck, in words.
    fn now(&self, work: &Work<'_>) -> String {
        let idle = work.mean_idle(&work.cpus());
        let room = match self.before.at {
            Limit::Cpu(cpu) => {
                let bound = work.loads.get(&cpu).map_or(0.0, |load| load.bound);
                format!("cpu {cpu} spends {} on interrupts and softirqs", percent(bound))
            }
            Limit::Machine => format!(
                "the cpus are idle {} of the time, and no single cpu is the bottleneck",
                percent(idle)
            ),
            Limit::Link => format!("the link is {} full", percent(work.link.unwrap_or(0.0))),
        };
        match self.before.is_near() {
            true => room,
            false => format!(
                "nothing is saturated: the load can grow {:.1} times before {} is",
                self.before.times, self.before.at
            ),
        }
    }

    /// The range of the gain over the scenarios, as `+3% to +20%`.
    fn between(&self) -> String {
        let most = self.gain.worst.max(self.gain.likely).max(self.gain.best);
        // Adding 0.0 turns -0.0 into 0.0: never "-0%".
        let percent = |share: f64| (share * 100.0).round() + 0.0;
        format!("{:+}% to {:+}%", percent(self.least()), percent(most))
    }

    /// The smallest gain. The pessimistic scenario can yield the largest one, where applications
    /// cannot leave the relieved CPU.
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
            subject: Subject::Netdev(work.netdev.name.clone()),
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

    /// Adds the change of one knob, if the snapshot has the knob and `edit` yields another value.
    fn writes(
        mut self,
        work: &Work<'_>,
        target: Target,
        edit: impl FnOnce(&Value) -> Option<Value>,
        reason: &str,
    ) -> Self {
        let old = target.value_in(&work.analysis.observation.after);
        let change = old.and_then(|old| {
            Some(Change { new: edit(&old)?, target, old, reason: reason.to_owned() })
        });
        self.changes.extend(change.filter(|change| change.new != change.old));
        self
    }

    fn not_when(self, not_when: &str) -> Self {
        Self { not_when: Some(not_when.to_owned()), ..self }
    }
}

/// Formats a share as `23%`, with one decimal below 10%.
fn percent(share: f64) -> String {
    if share.abs() < 0.0995 {
        format!("{:.1}%", share * 100.0)
    } else {
        format!("{:.0}%", share * 100.0)
    }
}
