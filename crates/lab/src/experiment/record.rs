//! Records of experiments as files: the result of each setting under each load, round by round, and
//! bundles of the states in which netsilo decides.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use netsilo_trial::stats::{Estimate, median, signed_rank};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

/// The name of the file next to the bundles.
const FILE: &str = "experiment.json";

/// Probability that a ratio is outside its interval.
const ERROR_RATE: f64 = 0.05;

/// What was measured on one machine.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Recorded {
    /// The machine, and how it was measured.
    pub(crate) about: String,
    /// Seed of the random order.
    #[serde(default)]
    pub(crate) seed: u64,
    /// The loads.
    pub(crate) loads: Vec<LoadRecord>,
}

/// The results of all settings under one load.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoadRecord {
    /// Its name.
    pub(crate) name: String,
    /// The unit of its rates, per second: `transaction` or `byte`.
    pub(crate) unit: String,
    /// The netdevs whose rx queues were placed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) netdevs: Vec<String>,
    /// What was measured. Placements come first.
    pub(crate) settings: Vec<SettingRecord>,
    /// The first setting, measured a second time in each round. It shows how large a difference by
    /// chance is. Old records lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) again: Option<SettingRecord>,
    /// States in which netsilo decides. Each is used several times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) starts: Vec<Start>,
    /// What cannot be measured, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) lost: Vec<String>,
    /// Why rounds are missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failed: Option<String>,
}

/// The results of one setting.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SettingRecord {
    /// Its name next to the CPUs.
    pub(crate) name: String,
    /// The CPU of each rx queue, netdev by netdev. Empty for a setting that is not a placement, so
    /// the default cannot choose it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) cpus: Vec<String>,
    /// What its experiment knows before measuring it: how to make it, and the prediction.
    #[serde(default, skip_serializing_if = "Json::is_null")]
    pub(crate) details: Json,
    /// Rate by round.
    pub(crate) rates: Vec<f64>,
    /// Other figures by name and round.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) figures: BTreeMap<String, Vec<f64>>,
}

/// A state in which netsilo decides.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Start {
    /// The setting at that moment, by its index.
    pub(crate) placement: usize,
    /// The file name of a bundle of that moment.
    pub(crate) bundle: String,
}

/// One measurement.
#[derive(Debug, Clone)]
pub(crate) struct RoundResult {
    /// The rate, in the load's unit.
    pub(crate) rate: f64,
    /// Other figures by name.
    pub(crate) figures: Vec<(String, f64)>,
}

impl RoundResult {
    pub(crate) fn new(rate: f64, figures: Vec<(&str, f64)>) -> Self {
        let named = figures.into_iter().map(|(name, figure)| (name.to_owned(), figure));
        Self { rate, figures: named.collect() }
    }
}

impl Recorded {
    /// Reads the file of a folder. If there is none, nothing was measured.
    pub(crate) fn read(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(FILE);
        if !path.exists() {
            return Ok(None);
        }
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {path:?}"))?;
        let read = serde_json::from_str(&text);
        read.map(Some).with_context(|| format!("{path:?} is not as written"))
    }

    /// Writes the file next to the bundles, and syncs it to the disk.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let (path, new) = (folder.join(FILE), folder.join("experiment.new"));
        let write = || -> Result<()> {
            let mut file = File::create(&new)?;
            file.write_all(rows(&serde_json::to_string_pretty(self)?).as_bytes())?;
            file.sync_all()?;
            Ok(std::fs::rename(&new, &path)?)
        };
        write().with_context(|| format!("cannot write {path:?}"))
    }
}

impl LoadRecord {
    /// Number of rounds in which every setting was measured.
    pub(crate) fn complete_rounds(&self) -> usize {
        let all = self.settings.iter().chain(&self.again);
        all.map(|setting| setting.rates.len()).min().unwrap_or(0)
    }
}

/// JSON with each list of numbers on one line.
fn rows(pretty: &str) -> String {
    let mut text = String::new();
    let mut is_number_before = false;
    for line in pretty.lines() {
        let trimmed = line.trim();
        let is_number = trimmed.trim_end_matches(',').parse::<f64>().is_ok();
        let ends_list = is_number_before && trimmed.starts_with(']');
        if is_number || ends_list {
            text += if is_number_before && is_number { " " } else { "" };
            text += trimmed;
        } else {
            text += if text.is_empty() { "" } else { "\n" };
            text += line;
        }
        if ends_list {
            is_number_before = false;
        } else {
            is_number_before = is_number;
        }
    }
    text + "\n"
}

impl SettingRecord {
    /// A setting that has not been measured yet.
    pub(crate) fn new(name: &str, cpus: &[String]) -> Self {
        Self { name: name.to_owned(), cpus: cpus.to_vec(), ..Self::default() }
    }

    /// The same, with what its experiment knows about it.
    pub(crate) fn with(name: &str, details: &impl Serialize) -> Result<Self> {
        let details = serde_json::to_value(details)?;
        Ok(Self { name: name.to_owned(), details, ..Self::default() })
    }

    /// What its experiment knows about it.
    pub(crate) fn details<T: DeserializeOwned>(&self) -> Result<T> {
        T::deserialize(&self.details).with_context(|| format!("setting {}", self.name))
    }

    /// Its rate divided by that of another setting in the same rounds; `None` with too few rounds,
    /// or if a rate is 0.
    pub(crate) fn over(&self, other: &Self) -> Option<Estimate> {
        ratio(&self.rates, &other.rates)
    }

    /// Adds a measurement.
    pub(crate) fn push(&mut self, measured: &RoundResult) {
        self.rates.push(rounded(measured.rate));
        for (name, value) in &measured.figures {
            self.figures.entry(name.clone()).or_default().push(rounded(*value));
        }
    }

    /// Whether the default can choose it.
    pub(crate) fn is_placement(&self) -> bool {
        !self.cpus.is_empty()
    }

    /// Its CPUs, and its name if it has one.
    pub(crate) fn label(&self) -> String {
        let cpus = self.cpus.join(",");
        match (cpus.as_str(), self.name.as_str()) {
            ("", name) => name.to_owned(),
            (cpus, "") => cpus.to_owned(),
            (cpus, name) => format!("{cpus} ({name})"),
        }
    }
}

/// Figures divided by others of the same rounds; `None` with too few rounds, or if a figure is 0.
pub(crate) fn ratio(ours: &[f64], theirs: &[f64]) -> Option<Estimate> {
    let logs: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| (a / b).ln()).collect();
    let interval = signed_rank::interval(&logs, ERROR_RATE);
    interval.filter(|_| logs.iter().all(|it| it.is_finite())).map(|logs| logs.map(f64::exp))
}

/// The median.
pub(crate) fn middle(values: &[f64]) -> f64 {
    median(values).unwrap_or(f64::NAN)
}

/// Four digits: the fifth is noise.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_with_short_lists() {
        let mut setting = SettingRecord::new("same CPU", &["1".to_owned(), "2".to_owned()]);
        for rate in [123_456.0, 0.001_234_56] {
            setting.push(&RoundResult {
                rate,
                figures: vec![("p50_us".into(), rate), ("p99_us".into(), 1.0)],
            });
        }
        assert_eq!(setting.label(), "1,2 (same CPU)");
        let load = LoadRecord {
            name: "x".to_owned(),
            unit: "transaction".to_owned(),
            netdevs: vec!["eth0".to_owned()],
            settings: vec![setting],
            starts: vec![Start { placement: 0, bundle: "b".to_owned() }],
            ..LoadRecord::default()
        };
        let folder = tempfile::tempdir().unwrap();
        assert!(Recorded::read(folder.path()).unwrap().is_none());
        let recorded = Recorded { about: "test".to_owned(), seed: 1, loads: vec![load] };
        recorded.write(folder.path()).unwrap();
        assert_eq!(recorded.loads[0].complete_rounds(), 2);
        let text = std::fs::read_to_string(folder.path().join(FILE)).unwrap();
        assert!(text.contains("\"rates\": [123500.0, 0.001235],\n"), "{text}");
        assert!(text.contains("\"p99_us\": [1.0, 1.0]\n"), "{text}");
        let read = Recorded::read(folder.path()).unwrap().unwrap();
        let setting = &read.loads[0].settings[0];
        assert_eq!(setting.rates, [123_500.0, 0.001_235]);
        assert_eq!(setting.figures["p50_us"], setting.rates);
    }
}
