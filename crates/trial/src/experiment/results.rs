//! The results of an experiment: measures by setting and load, differences and their confidence.
//!
//! Each setting is compared with the first one, under one load, over the rounds in which both have
//! a result. The verdict follows from Wilcoxon's signed-rank test ([`signed_rank`]): the order
//! within each round is random, so the interval is exact under any drift. The number of rounds is
//! fixed beforehand; the looks of `netsilo ab` are not needed.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::comparison::{Better, Scale};
use crate::experiment::flow_map::FlowMap;
use crate::experiment::latency::Merged;
use crate::experiment::measure::{Measure, Work, softnet};
use crate::experiment::stage_costs::{EarlyDrop, StageCosts, early_drops};
use crate::experiment::{Experiment, Failed, Kind, Load, Map, Record, Step, Trial};
use crate::traffic::Spec;
use netsilo_model::derive::rates::Shares;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_stats::bootstrap::{self, Draws};
use netsilo_stats::steadiness::{Steadiness, steadiness};
use netsilo_stats::{Estimate, mean, median, signed_rank};

/// Probability that an interval misses the true value.
pub const DOUBT: f64 = 0.05;

/// The results of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Schema number of the JSON.
    pub schema: u32,
    /// Kind of experiment.
    pub kind: Kind,
    /// The setting with which the others are compared.
    pub reference: String,
    /// Planned number of rounds.
    pub rounds: u32,
    /// Probability that each interval misses the true value.
    pub doubt: f64,
    /// Why times get no verdict; `None` when times are valid.
    pub times_mean_nothing: Option<String>,
    /// Verdicts on rates, and how many chance alone would give.
    pub rates: Chance,
    /// Verdicts on all other measures.
    pub others: Chance,
    /// Results by load, in the experiment's order.
    pub loads: Vec<UnderLoad>,
    /// Paths of packets, by load, then setting, in the experiment's order.
    pub maps: Vec<FlowMap>,
    /// Time of receive work by stage, in the same order.
    pub stages: Vec<StageCosts>,
    /// Each load compared with the same load dropped early.
    pub early_drops: Vec<EarlyDrop>,
    /// Steps without a result, with the last reason.
    pub failed: Vec<Failed>,
    /// Steps that did not run because the experiment was interrupted.
    pub not_tried: Vec<Step>,
    /// Number of ignored records: their setting, load or round is not in the experiment.
    pub strangers: usize,
}

/// Number of verdicts and of false ones to expect by chance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Chance {
    /// Intervals that gave a verdict.
    pub made: usize,
    /// Intervals that exclude zero.
    pub differ: usize,
    /// Expected maximum number of such intervals if no setting changed anything.
    pub by_chance: f64,
}

/// All settings under one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UnderLoad {
    /// Name of the load.
    pub load: String,
    /// The specification of each sender.
    pub spec: Spec,
    /// Number of concurrent senders.
    pub senders: u32,
    /// The unit of work, for which counts are reported.
    pub work: Work,
    /// Whether sender and receiver were both the machine under test; its values then include both.
    pub both_ends: bool,
    /// Results by setting, in the experiment's order.
    pub settings: Vec<Cell>,
}

/// One setting under one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Name of the setting.
    pub setting: String,
    /// The measured values, in the order of [`Measure::ALL`]; missing ones are left out.
    pub measures: Vec<Measured>,
    /// Latencies of all rounds, merged.
    pub latency: Option<Merged>,
    /// The CPUs of the machine under test: means over the rounds.
    pub cpus: BTreeMap<CpuId, CpuMean>,
    /// Drift, outliers and correlation of the rounds, in order of measurement.
    pub steadiness: Steadiness,
}

/// One measure of a setting under a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The measure.
    pub measure: Measure,
    /// Display name.
    pub name: String,
    /// Unit.
    pub unit: String,
    /// Whether the value is meaningless because it depends on time and times are invalid here.
    pub means_nothing: bool,
    /// The value of each round.
    pub rounds: BTreeMap<u32, f64>,
    /// Median of the rounds.
    pub median: f64,
    /// Bootstrap interval of the median; `None` below five rounds.
    pub interval: Option<Estimate>,
    /// Comparison with the first setting; `None` for the first setting and without a common round.
    pub against: Option<Against>,
}

/// A setting compared with the first one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Against {
    /// Ratio (changes are relative, 0.1 is 10 % more) when all values of both are above 0,
    /// otherwise difference.
    pub scale: Scale,
    /// Number of rounds with a result of both.
    pub rounds: usize,
    /// Hodges-Lehmann estimate of the change over the rounds.
    pub change: f64,
    /// Signed-rank interval of the change, which gives the verdict; `None` with too few rounds.
    pub interval: Option<Estimate>,
    /// Bootstrap interval of the change, informative only; rates only, and `None` below five
    /// rounds.
    pub bootstrap: Option<Estimate>,
    /// The verdict.
    pub verdict: Verdict,
}

/// The verdict of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Better than the first setting.
    Better,
    /// Worse than the first setting.
    Worse,
    /// Higher than with the first setting, for measures that are neither better nor worse.
    Higher,
    /// Lower than with the first setting, for such measures.
    Lower,
    /// The interval contains zero.
    NoDifferenceShown,
    /// Too few rounds for an interval.
    TooFewRounds,
    /// No verdict because times are invalid here.
    TimesMeanNothing,
}

impl Verdict {
    /// Whether it states a difference.
    pub fn differs(self) -> bool {
        matches!(self, Self::Better | Self::Worse | Self::Higher | Self::Lower)
    }

    /// Whether it follows from an interval.
    fn is_given(self) -> bool {
        self.differs() || self == Self::NoDifferenceShown
    }
}

/// One CPU of the machine under test: means over the rounds that have the value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuMean {
    /// Shares of its clock ticks.
    pub shares: Option<Shares>,
    /// Measured share of the time in device interrupts; `None` without eBPF.
    pub true_irq: Option<f64>,
    /// Measured share of the time in softirqs.
    pub true_softirq: Option<f64>,
    /// Measured share of the time in call-function IPIs.
    pub true_ipi: Option<f64>,
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
    pub fn of(&self, setting: &str) -> Option<&Cell> {
        self.settings.iter().find(|cell| cell.setting == setting)
    }
}

impl Cell {
    /// The value of a measure.
    pub fn measured(&self, measure: Measure) -> Option<&Measured> {
        self.measures.iter().find(|it| it.measure == measure)
    }
}

impl Results {
    /// Computes the results from records; the later record of a repeated step counts.
    pub fn of(experiment: &Experiment, records: &[Record]) -> Self {
        let steps: BTreeSet<Step> = experiment.steps().into_iter().collect();
        let mut trials: BTreeMap<&Step, &Trial> = BTreeMap::new();
        let mut failed: BTreeMap<&Step, &Failed> = BTreeMap::new();
        let mut strangers = 0;
        for record in records {
            match record {
                Record::Trial(trial) if steps.contains(&trial.step) => {
                    drop(trials.insert(&trial.step, trial))
                }
                Record::Failed(it) if steps.contains(&it.step) => drop(failed.insert(&it.step, it)),
                Record::Map(map) if experiment.has(&map.load, &map.setting) => {}
                _ => strangers += 1,
            }
        }
        failed.retain(|step, _| !trials.contains_key(step));
        let loads: Vec<UnderLoad> =
            experiment.loads.iter().map(|load| under(experiment, load, &trials)).collect();
        let not_tried = experiment.steps().into_iter();
        let stages: Vec<StageCosts> =
            last_maps(experiment, records).filter_map(StageCosts::of).collect();
        Self {
            schema: 1,
            kind: experiment.kind,
            reference: experiment
                .settings
                .first()
                .map_or_else(String::new, |setting| setting.name.clone()),
            rounds: experiment.rounds,
            doubt: DOUBT,
            times_mean_nothing: experiment.machine.times_mean_nothing.clone(),
            rates: chance(&loads, |measure| measure == Measure::Rate),
            others: chance(&loads, |measure| measure != Measure::Rate),
            not_tried: not_tried
                .filter(|it| !trials.contains_key(it) && !failed.contains_key(it))
                .collect(),
            early_drops: early_drops(experiment, &loads, &stages),
            loads,
            maps: last_maps(experiment, records).map(FlowMap::of).collect(),
            stages,
            failed: failed.into_values().cloned().collect(),
            strangers,
        }
    }
}

impl Experiment {
    fn has(&self, load: &str, setting: &str) -> bool {
        self.loads.iter().any(|it| it.name == load)
            && self.settings.iter().any(|it| it.name == setting)
    }
}

/// The last map of each load and setting, in the experiment's order.
fn last_maps<'a>(
    experiment: &'a Experiment,
    records: &'a [Record],
) -> impl Iterator<Item = &'a Map> {
    let last = |load: &str, setting: &str| {
        records.iter().rev().find_map(|record| match record {
            Record::Map(map) if map.load == load && map.setting == setting => Some(&**map),
            _ => None,
        })
    };
    let pairs = experiment
        .loads
        .iter()
        .flat_map(|load| experiment.settings.iter().map(move |it| (load, it)));
    pairs.filter_map(move |(load, setting)| last(&load.name, &setting.name))
}

fn chance(loads: &[UnderLoad], of: impl Fn(Measure) -> bool) -> Chance {
    let cells = loads.iter().flat_map(|load| &load.settings);
    let measured = cells.flat_map(|cell| &cell.measures).filter(|it| of(it.measure));
    let given: Vec<Verdict> = measured
        .filter_map(|it| Some(it.against.as_ref()?.verdict))
        .filter(|it| it.is_given())
        .collect();
    let differ = given.iter().filter(|verdict| verdict.differs()).count();
    Chance { made: given.len(), differ, by_chance: given.len() as f64 * DOUBT }
}

fn under(experiment: &Experiment, load: &Load, trials: &BTreeMap<&Step, &Trial>) -> UnderLoad {
    let work = Work::of(load);
    let of = |setting: &str| -> Vec<&Trial> {
        let here =
            trials.values().filter(|it| it.step.load == load.name && it.step.setting == setting);
        here.copied().collect()
    };
    let first = experiment.settings.first().map(|setting| of(&setting.name)).unwrap_or_default();
    let is_emulated = experiment.machine.times_mean_nothing.is_some();
    let by_round = |measure: Measure, trials: &[&Trial]| -> BTreeMap<u32, f64> {
        let value = |trial: &Trial| measure.of(trial, work, &experiment.machine.counted);
        trials.iter().filter_map(|trial| Some((trial.step.round, value(trial)?))).collect()
    };
    let cell = |(at, setting): (usize, &crate::experiment::Setting)| {
        let trials = of(&setting.name);
        let measure = |measure: Measure| {
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
        let rates: Vec<f64> = by_round(Measure::Rate, &trials).into_values().collect();
        Cell {
            setting: setting.name.clone(),
            measures: Measure::ALL.into_iter().filter_map(measure).collect(),
            latency: Merged::of(
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
    measure: Measure,
    work: Work,
    means_nothing: bool,
    rounds: BTreeMap<u32, f64>,
    base: Option<&BTreeMap<u32, f64>>,
    seed: u64,
) -> Option<Measured> {
    let values: Vec<f64> = rounds.values().copied().collect();
    let draws = Draws { doubt: DOUBT, seed, ..Draws::default() };
    let against = base.and_then(|base| against(measure, means_nothing, base, &rounds, draws));
    Some(Measured {
        measure,
        name: measure.name(work),
        unit: measure.unit(work).into(),
        means_nothing,
        median: median(&values)?,
        interval: bootstrap::interval(&values, median, draws),
        rounds,
        against,
    })
}

fn against(
    measure: Measure,
    means_nothing: bool,
    base: &BTreeMap<u32, f64>,
    rounds: &BTreeMap<u32, f64>,
    draws: Draws,
) -> Option<Against> {
    let pairs: Vec<(f64, f64)> =
        rounds.iter().filter_map(|(round, b)| Some((*base.get(round)?, *b))).collect();
    let is_ratio = pairs.iter().all(|(a, b)| *a > 0.0 && *b > 0.0);
    let scale = if is_ratio { Scale::Ratio } else { Scale::Difference };
    let difference = |(a, b): &(f64, f64)| if is_ratio { (b / a).ln() } else { b - a };
    let relative = |value: f64| if is_ratio { value.exp_m1() } else { value };
    let differences: Vec<f64> = pairs.iter().map(difference).collect();
    let interval = signed_rank::interval(&differences, DOUBT);
    let verdict = match interval {
        _ if means_nothing => Verdict::TimesMeanNothing,
        None => Verdict::TooFewRounds,
        Some(interval) if interval.holds(0.0) => Verdict::NoDifferenceShown,
        Some(interval) => match (interval.value > 0.0, measure.better()) {
            (true, None) => Verdict::Higher,
            (false, None) => Verdict::Lower,
            (higher, Some(better)) if higher == (better == Better::Higher) => Verdict::Better,
            _ => Verdict::Worse,
        },
    };
    let is_rate = measure == Measure::Rate;
    let again =
        is_rate.then(|| bootstrap::interval(&differences, signed_rank::middle, draws)).flatten();
    Some(Against {
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
        let true_share = |of: fn(&netsilo_model::snapshot::attribution::CpuTime) -> u64| {
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
            true_irq: true_share(|time| time.hardirq_ns),
            true_softirq: true_share(|time| time.softirq_ns()),
            true_ipi: true_share(|time| time.ipi_ns),
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
