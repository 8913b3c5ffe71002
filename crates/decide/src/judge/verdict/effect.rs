//! [`Effect`]: what a remedy does to the load that fits, as the judge says.

use netsilo_model::change::Change;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::words::decimal;
use netsilo_predict::live::claim::{Claim, is_near_full};
use netsilo_predict::live::forecast::{Expected, Limit};
use netsilo_predict::live::judge::Judge;
use netsilo_predict::live::proposal::Proposal;
use netsilo_trial::stats::Estimate;

use crate::judge::evidence::Gain;
use crate::judge::verdict::look::{Look, NetdevLook};
use crate::judge::verdict::remedy_verdict::{RemedyName, RemedyVerdict};

/// The forecast of a remedy, and of the machine as it is.
#[derive(Debug, Clone)]
pub(super) struct Effect<'a> {
    pub(super) now: &'a Expected,
    pub(super) then: Expected,
    /// Relative change of the load that fits.
    pub(super) gain: Estimate,
    pub(super) claim: Claim,
}

impl<'a> Effect<'a> {
    /// Judges changes. The error says why they cannot be judged.
    pub(super) fn of(look: &NetdevLook<'a>, changes: &[Change]) -> Result<Self, String> {
        Self::on(look.analysis, look.judge, look.now, changes)
    }

    fn on(
        analysis: &Analysis<'_>,
        judge: &Judge<'_>,
        now: &'a Expected,
        changes: &[Change],
    ) -> Result<Self, String> {
        let proposal = Proposal::new("remedy", analysis.after(), changes);
        let (then, _) = judge.judge(&proposal);
        Self::new(now, then.ok_or("the machine with it is not known")?)
    }

    /// The effect of a forecast. The error says what the model lacks.
    pub(super) fn new(now: &'a Expected, then: Expected) -> Result<Self, String> {
        match (then.gain, then.claim) {
            (Some(gain), Some(claim)) => Ok(Self { now, then, gain, claim }),
            _ => Err(format!("its effect is not modelled: {}", then.not_modeled.join("; "))),
        }
    }

    /// Whether something is nearly full now.
    pub(super) fn is_near(&self) -> bool {
        is_near_full(self.now.fits.value)
    }

    /// The forecast as the gain of a remedy.
    pub(super) fn as_gain(&self) -> Gain {
        Gain::Forecast { load_that_fits: self.gain, limit: self.then.limit.to_string() }
    }

    /// What is full now, in words.
    pub(super) fn now(&self, look: &NetdevLook<'_>) -> String {
        full_now(look)
    }

    /// The interval of the gain, as `+3% to +20%`.
    pub(super) fn between(&self) -> String {
        self.gain.percent_range()
    }
}

impl Look<'_> {
    /// The forecast of changes as their gain. Without one: why, and the `cost` that they end.
    pub(in crate::judge) fn gain(&self, changes: &[Change], cost: &str) -> Gain {
        let effect = match &self.judge {
            Ok((judge, now)) => Effect::on(self.analysis, judge, now, changes),
            Err(why) => Err(why.to_string()),
        };
        match effect {
            Ok(effect) => effect.as_gain(),
            Err(why) => Gain::Unknown(format!("{why}; now {cost}")),
        }
    }
}

/// The verdict on a remedy that cannot be judged: unknown, unless nothing is full that it could
/// relieve.
pub(super) fn unjudged(look: &NetdevLook<'_>, remedy: RemedyName, why: String) -> RemedyVerdict {
    if is_near_full(look.now.fits.value) {
        RemedyVerdict::new(look, remedy, Claim::Unknown, why)
    } else {
        RemedyVerdict::new(look, remedy, Claim::NoClearChange, full_now(look))
    }
}

/// What is full as it is, in words.
fn full_now(look: &NetdevLook<'_>) -> String {
    let NetdevLook { now, work, .. } = look;
    let fits = now.fits.value;
    if !is_near_full(fits) {
        return format!(
            "nothing is saturated: the load can grow {fits:.1} times before {} is",
            saturated(&now.limit)
        );
    }
    match &now.limit {
        Limit::Cpu(cpu) => {
            let bound = percent(work.bound(*cpu));
            format!("cpu {cpu} spends {bound} on interrupts and softirqs")
        }
        Limit::Pinned(cpus) => {
            let busy = percent(work.busy(cpus).min(1.0));
            format!("cpus {cpus}, to which readers are pinned, are busy {busy} of the time")
        }
        Limit::Cpus => {
            let idle = percent(look.idle(&work.usable()));
            format!("the cpus are idle {idle} of the time, and no single cpu is the bottleneck")
        }
        _ => format!("{} is {} full", now.limit, percent(1.0 / fits)),
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
pub(in crate::judge) fn percent(share: f64) -> String {
    let places = if share.abs() < 0.0995 { 1 } else { 0 };
    decimal(share * 100.0, places) + "%"
}
