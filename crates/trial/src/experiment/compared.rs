//! The settings under one load: measures of each, and their differences from the first one.
//!
//! Each setting is compared with the first one over the rounds in which both have a result. The
//! verdict follows from Wilcoxon's signed-rank test ([`signed_rank`]): the order within each round
//! is random, so the interval is exact under any drift. The number of rounds is fixed beforehand;
//! the looks of `netsilo ab` are not needed.

use std::collections::{BTreeMap, BTreeSet};

use crate::stats::bootstrap::{self, Draws};
use crate::stats::steadiness::{Steadiness, steadiness};
use crate::stats::{Estimate, mean, median, signed_rank};
use netsilo_model::derive::rates::Shares;
use netsilo_model::machine::cpuset::CpuId;
use serde::{Deserialize, Serialize};

use crate::comparison::{Better, Scale};
use crate::experiment::latency::MergedLatency;
use crate::experiment::measure::{TrialMeasure, WorkUnit, softnet};
use crate::experiment::plan::{Experiment, Load, Setting, Step};
use crate::experiment::records::Trial;
use crate::traffic::Spec;

/// Probability that an interval does not contain the true value.
pub const ERROR_RATE: f64 = 0.05;

/// All settings under one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UnderLoad {
    /// Name of the load.
    pub load: String,
    /// The specification of each sender.
    pub spec: Spec,
    /// Number of concurrent senders.
    pub senders: u32,
    /// The unit of work for which counts are reported.
    pub work: WorkUnit,
    /// Whether the machine under test was both sender and receiver. Its values then include both.
    pub both_ends: bool,
    /// Results by setting, in the experiment's order.
    pub settings: Vec<Cell>,
}

/// One setting under one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cell {
    /// Name of the setting.
    pub setting: String,
    /// The measured values, in the order of [`TrialMeasure::ALL`]. Missing ones are left out.
    pub measures: Vec<MeasureResult>,
    /// Latencies of all rounds, merged.
    pub latency: Option<MergedLatency>,
    /// The CPUs of the machine under test, as means over the rounds.
    pub cpus: BTreeMap<CpuId, CpuMean>,
    /// Drift, outliers and correlation of the rounds, in order of measurement.
    pub steadiness: Steadiness,
}

/// One measure of a setting under a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MeasureResult {
    /// The measure.
    pub measure: TrialMeasure,
    /// Display name.
    pub name: String,
    /// Unit.
    pub unit: String,
    /// Whether the value is meaningless because it depends on time and times are invalid here.
    #[serde(rename = "means_nothing")]
    pub time_invalid: bool,
    /// The value of each round.
    pub rounds: BTreeMap<u32, f64>,
    /// Median of the rounds.
    pub median: f64,
    /// Bootstrap interval of the median; `None` below five rounds.
    pub interval: Option<Estimate>,
    /// Comparison with the first setting; `None` for the first setting, or if they have no common
    /// round.
    pub against: Option<ReferenceComparison>,
}

/// A setting compared with the first one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReferenceComparison {
    /// Ratio (changes are relative, 0.1 is 10 % more) if all values of both are above 0, otherwise
    /// difference.
    pub scale: Scale,
    /// Number of rounds in which both have a result.
    pub rounds: usize,
    /// Hodges-Lehmann estimate of the change over the rounds.
    pub change: f64,
    /// Signed-rank interval of the change, from which the verdict follows; `None` with too few
    /// rounds.
    pub interval: Option<Estimate>,
    /// Bootstrap interval of the change, informative only. For rates only; `None` below five
    /// rounds.
    pub bootstrap: Option<Estimate>,
    /// The verdict.
    pub verdict: CellResult,
}

/// The verdict of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CellResult {
    /// Better than the first setting.
    Better,
    /// Worse than the first setting.
    Worse,
    /// Higher than with the first setting, for measures where neither direction is better.
    Higher,
    /// Lower than with the first setting, for measures where neither direction is better.
    Lower,
    /// The interval contains zero.
    NoDifferenceShown,
    /// Too few rounds for an interval.
    TooFewRounds,
    /// No verdict because times are invalid here.
    #[serde(rename = "times_invalid")]
    TimesInvalid,
}

impl CellResult {
    /// Whether it states a difference.
    pub fn differs(self) -> bool {
        matches!(self, Self::Better | Self::Worse | Self::Higher | Self::Lower)
    }

    /// Whether it follows from a confidence interval.
    pub(super) fn is_given(self) -> bool {
        self.differs() || self == Self::NoDifferenceShown
    }
}

/// One CPU of the machine under test: means over the rounds that have the value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CpuMean {
    /// Shares of its clock ticks.
    pub shares: Option<Shares>,
    /// Measured share of the time in device interrupts; `None` without eBPF.
    pub hardirq_share: Option<f64>,
    /// Measured share of the time in softirqs.
    pub softirq_share: Option<f64>,
    /// Measured share of the time in call-function IPIs.
    pub ipi_share: Option<f64>,
    /// NET_RX softirqs raised per second.
    pub net_rx_per_s: Option<f64>,
    /// Function-call IPIs received per second (`CAL`).
    pub cal_per_s: Option<f64>,
    /// Packets processed per second.
    pub processed_per_s: Option<f64>,
    /// RPS wakeups by another CPU per second.
    pub received_rps_per_s: Option<f64>,
}

impl UnderLoad {
    /// The results of a setting.
    pub fn setting(&self, setting: &str) -> Option<&Cell> {
        self.settings.iter().find(|cell| cell.setting == setting)
    }
}

impl Cell {
    /// The value of a measure.
    pub fn measured(&self, measure: TrialMeasure) -> Option<&MeasureResult> {
        self.measures.iter().find(|it| it.measure == measure)
    }
}

/// Computes the results of all settings under one load.
pub(super) fn under(
    experiment: &Experiment,
    load: &Load,
    trials: &BTreeMap<&Step, &Trial>,
) -> UnderLoad {
    let work = WorkUnit::for_load(load);
    let of = |setting: &str| -> Vec<&Trial> {
        let here =
            trials.values().filter(|it| it.step.load == load.name && it.step.setting == setting);
        here.copied().collect()
    };
    let first = experiment.settings.first().map(|setting| of(&setting.name)).unwrap_or_default();
    let is_emulated = experiment.machine.times_invalid.is_some();
    let by_round = |measure: TrialMeasure, trials: &[&Trial]| -> BTreeMap<u32, f64> {
        let value = |trial: &Trial| measure.compute(trial, work, &experiment.machine.counted);
        trials.iter().filter_map(|trial| Some((trial.step.round, value(trial)?))).collect()
    };
    let cell = |(at, setting): (usize, &Setting)| {
        let trials = of(&setting.name);
        let measure = |measure: TrialMeasure| {
            let (rounds, base) =
                (by_round(measure, &trials), (at > 0).then(|| by_round(measure, &first)));
            measured(
                measure,
                work,
                is_emulated && measure.is_time(),
                rounds,
                base.as_ref(),
                experiment.seed,
            )
        };
        let rates: Vec<f64> = by_round(TrialMeasure::Rate, &trials).into_values().collect();
        Cell {
            setting: setting.name.clone(),
            measures: TrialMeasure::ALL.into_iter().filter_map(measure).collect(),
            latency: MergedLatency::merge(
                trials.iter().flat_map(|it| &it.runs).filter_map(|run| run.latency.as_ref()),
            ),
            cpus: cpus(&trials),
            steadiness: steadiness(&rates),
        }
    };
    let here = trials.values().filter(|trial| trial.step.load == load.name);
    let both_ends = here
        .flat_map(|it| it.runs.iter().filter(|_| it.between.is_none()))
        .any(|run| run.is_on_one_machine());
    UnderLoad {
        load: load.name.clone(),
        spec: load.spec.clone(),
        senders: load.senders,
        work,
        both_ends,
        settings: experiment.settings.iter().enumerate().map(cell).collect(),
    }
}

fn measured(
    measure: TrialMeasure,
    work: WorkUnit,
    time_invalid: bool,
    rounds: BTreeMap<u32, f64>,
    base: Option<&BTreeMap<u32, f64>>,
    seed: u64,
) -> Option<MeasureResult> {
    let values: Vec<f64> = rounds.values().copied().collect();
    let draws = Draws { error_rate: ERROR_RATE, seed, ..Draws::default() };
    let against = base.and_then(|base| against(measure, time_invalid, base, &rounds, draws));
    Some(MeasureResult {
        measure,
        name: measure.name(work),
        unit: measure.unit(work).into(),
        time_invalid,
        median: median(&values)?,
        interval: bootstrap::interval(&values, median, draws),
        rounds,
        against,
    })
}

fn against(
    measure: TrialMeasure,
    time_invalid: bool,
    base: &BTreeMap<u32, f64>,
    rounds: &BTreeMap<u32, f64>,
    draws: Draws,
) -> Option<ReferenceComparison> {
    let pairs: Vec<(f64, f64)> =
        rounds.iter().filter_map(|(round, b)| Some((*base.get(round)?, *b))).collect();
    let is_ratio = pairs.iter().all(|(a, b)| *a > 0.0 && *b > 0.0);
    let scale = if is_ratio { Scale::Ratio } else { Scale::Difference };
    let difference = |(a, b): &(f64, f64)| if is_ratio { (b / a).ln() } else { b - a };
    let relative = |value: f64| if is_ratio { value.exp_m1() } else { value };
    let differences: Vec<f64> = pairs.iter().map(difference).collect();
    let interval = signed_rank::interval(&differences, ERROR_RATE);
    let verdict = match interval {
        _ if time_invalid => CellResult::TimesInvalid,
        None => CellResult::TooFewRounds,
        Some(interval) if interval.contains(0.0) => CellResult::NoDifferenceShown,
        Some(interval) => match (interval.value > 0.0, measure.better()) {
            (true, None) => CellResult::Higher,
            (false, None) => CellResult::Lower,
            (higher, Some(better)) if higher == (better == Better::Higher) => CellResult::Better,
            _ => CellResult::Worse,
        },
    };
    let is_rate = measure == TrialMeasure::Rate;
    let again =
        is_rate.then(|| bootstrap::interval(&differences, signed_rank::middle, draws)).flatten();
    Some(ReferenceComparison {
        scale,
        rounds: pairs.len(),
        change: relative(signed_rank::middle(&differences)?),
        interval: interval.map(|it| it.map(relative)),
        bootstrap: again.map(|it| it.map(relative)),
        verdict,
    })
}

fn cpus(trials: &[&Trial]) -> BTreeMap<CpuId, CpuMean> {
    let sides: Vec<_> = trials.iter().filter_map(|trial| trial.under_test()).collect();
    let cpus: BTreeSet<CpuId> =
        sides.iter().flat_map(|side| side.rates.cpus.keys().copied()).collect();
    let mean_of = |cpu: CpuId| {
        let rates = || sides.iter().filter_map(move |side| side.rates.cpus.get(&cpu));
        let measured_share = |of: fn(&netsilo_model::snapshot::attribution::CpuTime) -> u64| {
            let seen = sides
                .iter()
                .filter(|side| !side.true_times.is_empty() && !side.true_elapsed.is_zero());
            let share = seen.map(|side| {
                side.true_times.get(&cpu).map_or(0, of) as f64
                    / 1e9
                    / side.true_elapsed.as_secs_f64()
            });
            mean(&share.collect::<Vec<_>>())
        };
        let rate = |of: fn(&netsilo_model::derive::rates::CpuRates) -> Option<f64>| {
            mean(&rates().filter_map(of).collect::<Vec<_>>())
        };
        CpuMean {
            shares: mean_shares(&rates().filter_map(|it| it.shares).collect::<Vec<_>>()),
            hardirq_share: measured_share(|time| time.hardirq_ns),
            softirq_share: measured_share(|time| time.softirq_ns()),
            ipi_share: measured_share(|time| time.ipi_ns),
            net_rx_per_s: rate(|cpu| cpu.net_rx_per_s),
            cal_per_s: rate(|cpu| cpu.cal_per_s),
            processed_per_s: rate(|cpu| softnet(cpu).processed_per_s),
            received_rps_per_s: rate(|cpu| softnet(cpu).received_rps_per_s),
        }
    };
    cpus.into_iter().map(|cpu| (cpu, mean_of(cpu))).collect()
}

fn mean_shares(all: &[Shares]) -> Option<Shares> {
    let of = |of: fn(&Shares) -> f64| mean(&all.iter().map(of).collect::<Vec<_>>());
    Some(Shares {
        usr: of(|it| it.usr)?,
        nice: of(|it| it.nice)?,
        sys: of(|it| it.sys)?,
        irq: of(|it| it.irq)?,
        softirq: of(|it| it.softirq)?,
        idle: of(|it| it.idle)?,
        iowait: of(|it| it.iowait)?,
        steal: of(|it| it.steal)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::simulate::{normal, share};

    #[test]
    fn settings_without_effect_differ_as_rarely_as_promised() {
        let draws = Draws { resamples: 20, ..Draws::default() };
        for measure in [TrialMeasure::Rate, TrialMeasure::Ipis] {
            let wrong = share(1500, |rng| {
                let mut rounds = || {
                    (0..8)
                        .map(|round| (round, (0.1 * normal(rng)).exp()))
                        .collect::<BTreeMap<u32, f64>>()
                };
                let (base, same) = (rounds(), rounds());
                against(measure, false, &base, &same, draws).unwrap().verdict.differs()
            });
            assert!((0.02..=0.06).contains(&wrong), "{measure:?} {wrong}");
        }
    }
}
