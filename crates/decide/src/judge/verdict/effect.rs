//! [`Effect`]: the bottleneck before and after a remedy, in each scenario.

use netsilo_model::machine::cpuset::CpuSet;

use crate::judge::evidence::{Gain, Measure};
use crate::judge::verdict::bottleneck::{Bottleneck, Loads, Resource};
use crate::judge::verdict::remedy_verdict::Outcome;
use crate::judge::verdict::work::{NetdevWork, Range, Scenario};

/// Minimum gain in the worst scenario for a remedy to help; smaller differences are noise.
pub(super) const CLEAR: f64 = 0.05;

/// Minimum likely loss for a remedy that cannot gain to count as harmful.
pub(super) const LOSS: f64 = 0.01;

/// The effect of a remedy on the bottleneck.
#[derive(Debug, Clone, Copy)]
pub(super) struct Effect {
    /// Relative growth of the maximum load in each scenario; 0 for none.
    pub(super) gain: Range,
    /// The bottleneck now, in the likely scenario.
    pub(super) before: Bottleneck,
    /// The bottleneck after the remedy, in the likely scenario.
    pub(super) after: Bottleneck,
    /// Growth from the present load that the best scenario allows, as a share of it.
    pub(super) most: f64,
}

impl Effect {
    /// Compares the present loads with those `after` the remedy. Pinned applications cannot move;
    /// in the worst scenario, none on `fixed` CPUs can.
    pub(super) fn of(
        work: &NetdevWork<'_>,
        fixed: &CpuSet,
        after: impl Fn(Scenario) -> Loads,
    ) -> Self {
        let fixed = fixed.or(&work.pinned);
        let bottlenecks = |scenario| {
            let fixed = if scenario == Scenario::Worst { &fixed } else { &work.pinned };
            (
                Bottleneck::of(&work.loads, fixed, work.link),
                Bottleneck::of(&after(scenario), fixed, work.link),
            )
        };
        let gain = |(before, after): (Bottleneck, Bottleneck)| {
            after.load_factor / before.load_factor - 1.0
        };
        let (worst, likely, best) = (
            bottlenecks(Scenario::Worst),
            bottlenecks(Scenario::Likely),
            bottlenecks(Scenario::Best),
        );
        Self {
            gain: Range { worst: gain(worst), likely: gain(likely), best: gain(best) },
            before: likely.0,
            after: likely.1,
            most: best.1.load_factor - 1.0,
        }
    }

    pub(super) fn outcome(&self) -> Outcome {
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

    pub(super) fn bound(&self, why_nothing: &str) -> Gain {
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
    pub(super) fn now(&self, work: &NetdevWork<'_>) -> String {
        let idle = work.mean_idle(&work.cpus());
        let room = match self.before.at {
            Resource::Cpu(cpu) => {
                let load = work.loads.get(&cpu).copied().unwrap_or_default();
                if work.pinned.contains(cpu) && load.busy > load.bound {
                    format!(
                        "cpu {cpu}, to which a reader is pinned, is busy {} of the time",
                        percent(load.busy)
                    )
                } else {
                    format!("cpu {cpu} spends {} on interrupts and softirqs", percent(load.bound))
                }
            }
            Resource::Machine => format!(
                "the cpus are idle {} of the time, and no single cpu is the bottleneck",
                percent(idle)
            ),
            Resource::Link => format!("the link is {} full", percent(work.link.unwrap_or(0.0))),
        };
        if self.before.is_near() {
            room
        } else {
            format!(
                "nothing is saturated: the load can grow {:.1} times before {} is",
                self.before.load_factor, self.before.at
            )
        }
    }

    /// The range of the gain over the scenarios, as `+3% to +20%`.
    pub(super) fn between(&self) -> String {
        let most = self.gain.worst.max(self.gain.likely).max(self.gain.best);
        // Adding 0.0 turns -0.0 into 0.0: never "-0%".
        let percent = |share: f64| (share * 100.0).round() + 0.0;
        format!("{:+}% to {:+}%", percent(self.least()), percent(most))
    }

    /// The smallest gain. The pessimistic scenario can yield the largest one, where applications
    /// cannot leave the relieved CPU.
    pub(super) fn least(&self) -> f64 {
        self.gain.worst.min(self.gain.likely).min(self.gain.best)
    }
}

/// Formats a share as `23%`, with one decimal below 10%.
pub(super) fn percent(share: f64) -> String {
    if share.abs() < 0.0995 {
        format!("{:.1}%", share * 100.0)
    } else {
        format!("{:.0}%", share * 100.0)
    }
}
