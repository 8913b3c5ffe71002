//! Compares settings, at one load or along a sweep of one key.

use netsilo_trial::stats::Estimate;
use serde::Serialize;

use crate::file::{self, BadScenario, Described};
use crate::interval::Draws;
use crate::limit::Limit;
use crate::predict;
use crate::prediction::CpuTime;
use crate::scenario::Setting;

/// Predictions of several settings for one load.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Comparison {
    /// What a rate counts: `transactions/s`, `packets/s` or `bit/s`.
    pub unit: &'static str,
    /// The setting that the others are compared with.
    pub against: String,
    /// Each setting.
    pub settings: Vec<Predicted>,
}

/// What one setting would give.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Predicted {
    /// Its name.
    pub name: String,
    /// Rate, with its 90% interval.
    pub rate: Estimate,
    /// Relative change of the rate against the first setting; `None` for that one.
    pub gain: Option<Estimate>,
    /// Whether the change is clear: its interval does not contain zero.
    pub is_clear: bool,
    /// Mean time from request to answer (us), for requests and responses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<f64>,
    /// Inter-processor interrupts per second; absent where they are not modelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipis_per_s: Option<f64>,
    /// Interrupts of the NIC per second; absent where they are not modelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupts_per_s: Option<f64>,
    /// What limits the rate.
    pub limit: Limit,
    /// How each CPU spends its time.
    pub cpus: Vec<CpuTime>,
}

/// Compares the settings of `described` with `against`, which is one of them.
pub fn compare(described: &Described, against: &str, draws: &Draws) -> Option<Comparison> {
    let (scenario, settings) = (&described.scenario, &described.settings);
    let other = settings.get(against)?;
    let first = settings.iter().filter(|(name, _)| *name == against);
    let rest = settings.iter().filter(|(name, _)| *name != against);
    let one = |(name, setting): (&String, &Setting)| {
        let expected = draws.expect(scenario, setting, other);
        let gain = (name != against).then_some(expected.gain);
        Predicted {
            name: name.clone(),
            rate: expected.rate,
            gain,
            is_clear: gain.is_some_and(|gain| !gain.contains(0.0)),
            latency_us: expected.prediction.latency_us,
            ipis_per_s: expected.prediction.ipis,
            interrupts_per_s: expected.prediction.interrupts,
            limit: expected.prediction.limit,
            cpus: expected.prediction.cpus,
        }
    };
    Some(Comparison {
        unit: scenario.load.unit(),
        against: against.to_owned(),
        settings: first.chain(rest).map(one).collect(),
    })
}

/// Values of one key, and the rate of each setting at each.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sweep {
    /// The key.
    pub key: String,
    /// What a rate counts.
    pub unit: &'static str,
    /// The settings' names.
    pub settings: Vec<String>,
    /// Each value of the key.
    pub points: Vec<Point>,
    /// Where the best setting changes: the first point with another one.
    pub changes: Vec<usize>,
}

/// One point of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Point {
    /// The value of the key.
    pub value: f64,
    /// The rate of each setting.
    pub rates: Vec<f64>,
    /// The interval of each rate, as in a comparison; empty if it was not asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bands: Vec<Estimate>,
    /// The setting with the highest rate. Of those within 1 % of it: the one of the point before,
    /// else `none`.
    pub best: usize,
}

/// Predictions that differ by less than this share are a tie.
const TIE: f64 = 0.01;

/// Predicts each setting of `text` with `key` at each of `values`; with intervals if `bands` is
/// set, which take as long as all draws.
///
/// # Errors
/// What is wrong with the scenario or the key.
pub fn sweep(
    text: &str,
    changes: &[(String, String)],
    asked: &[(String, String)],
    key: &str,
    values: &[f64],
    draws: &Draws,
    bands: bool,
) -> Result<Sweep, BadScenario> {
    let mut sweep = Sweep {
        key: key.to_owned(),
        unit: "",
        settings: Vec::new(),
        points: Vec::with_capacity(values.len()),
        changes: Vec::new(),
    };
    let mut changes = changes.to_vec();
    changes.push((key.to_owned(), String::new()));
    for &value in values {
        if let Some(last) = changes.last_mut() {
            last.1 = value.to_string();
        }
        let described = file::parse(text, &changes, asked)?;
        let rates: Vec<f64> = (described.settings.values())
            .map(|setting| predict(&described.scenario, setting, &draws.fitted).rate)
            .collect();
        let highest = rates.iter().copied().fold(0.0, f64::max);
        let before = sweep.points.last().map(|point| point.best);
        let is_tied = |index: usize| rates[index] >= highest * (1.0 - TIE);
        let none = described.settings.keys().position(|name| name == "none");
        let best = (before.into_iter().chain(none).chain(0..rates.len()))
            .find(|index| is_tied(*index))
            .unwrap_or(0);
        if before.is_some_and(|before| before != best) {
            sweep.changes.push(sweep.points.len());
        }
        let band = |setting| draws.expect(&described.scenario, setting, setting).rate;
        let bands =
            if bands { described.settings.values().map(band).collect() } else { Vec::new() };
        sweep.points.push(Point { value, rates, bands, best });
        sweep.unit = described.scenario.load.unit();
        sweep.settings = described.settings.into_keys().collect();
    }
    Ok(sweep)
}
