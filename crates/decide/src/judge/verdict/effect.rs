//! [`Effect`]: what a remedy does to the load that fits, as the judge says.

use netsilo_model::change::Change;
use netsilo_predict::live::claim::{Claim, is_near_full};
use netsilo_predict::live::forecast::{Expected, Limit};
use netsilo_predict::live::judge::Judge;
use netsilo_predict::live::proposal::Proposal;
use netsilo_trial::stats::Estimate;

use crate::judge::evidence::Gain;
use crate::judge::verdict::remedy_verdict::{RemedyName, RemedyVerdict};
use crate::judge::verdict::work::NetdevWork;

/// The forecast of a remedy, and of the machine as it is.
#[derive(Debug, Clone)]
pub(super) struct Effect {
    pub(super) now: Expected,
    pub(super) then: Expected,
    /// Relative change of the load that fits.
    pub(super) gain: Estimate,
    pub(super) claim: Claim,
}

impl Effect {
    /// Judges changes. The error says why they cannot be judged.
    pub(super) fn of(work: &NetdevWork<'_>, changes: &[Change]) -> Result<Self, String> {
        let judge = work.look.judge.as_ref().map_err(Clone::clone)?;
        let proposal = Proposal::new("remedy", work.look.analysis.after(), changes);
        let (then, _) = judge.judge(&proposal);
        let then = then.ok_or("the machine with it is not known")?;
        let unknown = || format!("its effect is not modelled: {}", then.not_modeled.join("; "));
        Self::new(judge.as_it_is(), then.clone()).ok_or_else(unknown)
    }

    /// The effect of a forecast; `None` if it has no gain.
    pub(super) fn new(now: Expected, then: Expected) -> Option<Self> {
        Some(Self { gain: then.gain?, claim: then.claim?, now, then })
    }

    /// Whether something is nearly full now.
    pub(super) fn is_near(&self) -> bool {
        is_near_full(self.now.fits.value)
    }

    /// The forecast as the gain of a remedy.
    pub(super) fn bound(&self) -> Gain {
        Gain::Forecast { load_that_fits: self.gain, limit: self.then.limit.to_string() }
    }

    /// What is full now, in words.
    pub(super) fn now(&self, work: &NetdevWork<'_>) -> String {
        full_now(work, &self.now)
    }

    /// The interval of the gain, as `+3% to +20%`.
    pub(super) fn between(&self) -> String {
        // Adding 0.0 turns -0.0 into 0.0: never "-0%".
        let percent = |share: f64| (share * 100.0).round() + 0.0;
        format!("{:+}% to {:+}%", percent(self.gain.low), percent(self.gain.high))
    }
}

/// The verdict on a remedy that cannot be judged: unknown, unless nothing is full that it could
/// relieve.
pub(super) fn unjudged(work: &NetdevWork<'_>, remedy: RemedyName, why: String) -> RemedyVerdict {
    let now = work.look.judge.as_ref().ok().map(Judge::as_it_is);
    match now.filter(|now| !is_near_full(now.fits.value)) {
        Some(now) => RemedyVerdict::new(work, remedy, Claim::NoClearChange, full_now(work, &now)),
        None => RemedyVerdict::new(work, remedy, Claim::Unknown, why),
    }
}

/// What is full as it is, in words.
fn full_now(work: &NetdevWork<'_>, now: &Expected) -> String {
    let fits = now.fits.value;
    if !is_near_full(fits) {
        return format!(
            "nothing is saturated: the load can grow {fits:.1} times before {} is",
            saturated(&now.limit)
        );
    }
    let load = |cpu| work.loads.get(&cpu).copied().unwrap_or_default();
    match &now.limit {
        Limit::Cpu(cpu) => {
            let bound = percent(load(*cpu).bound);
            format!("cpu {cpu} spends {bound} on interrupts and softirqs")
        }
        Limit::Pinned(cpus) => {
            let busy = percent(1.0 - work.mean_idle(cpus));
            format!("cpus {cpus}, to which readers are pinned, are busy {busy} of the time")
        }
        Limit::Cpus => {
            let idle = percent(work.mean_idle(&work.cpus()));
            format!("the cpus are idle {idle} of the time, and no single cpu is the bottleneck")
        }
        Limit::Link(_) => {
            format!("the link is {} full", percent(work.link.unwrap_or(0.0)))
        }
    }
}

/// What saturates first, in words.
fn saturated(limit: &Limit) -> String {
    match limit {
        Limit::Cpu(cpu) => format!("cpu {cpu}"),
        Limit::Cpus => "the machine as a whole".to_owned(),
        limit => limit.to_string(),
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
