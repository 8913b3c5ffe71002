//! Measured outcomes as files: what each setting gave under each load, and bundles of the states
//! from which the default has to choose.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// The name of the file beside the bundles.
const FILE: &str = "outcomes.json";

/// What was measured on one machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Recorded {
    /// The machine, and how it was measured.
    pub(super) about: String,
    /// The loads.
    pub(super) loads: Vec<Load>,
}

/// What came of each setting under one load.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Load {
    /// Its name.
    pub(super) name: String,
    /// The unit of its rates, per second: `transaction` or `byte`.
    pub(super) unit: String,
    /// The netdevs whose rx queues were placed.
    pub(super) netdevs: Vec<String>,
    /// What was measured; placements first.
    pub(super) settings: Vec<Setting>,
    /// States in which the default is asked, each several times.
    pub(super) starts: Vec<Start>,
}

/// What one setting gave.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Setting {
    /// Its name beside the CPUs.
    pub(super) name: String,
    /// The CPU of each rx queue, netdev by netdev; empty for a setting that is no placement, and
    /// that the default therefore cannot choose.
    pub(super) cpus: Vec<String>,
    /// Rate by round.
    pub(super) rates: Vec<f64>,
    /// Other figures by name and round.
    pub(super) figures: BTreeMap<String, Vec<f64>>,
}

/// A state in which the default is asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Start {
    /// The placement at that moment, by its index among the settings.
    pub(super) placement: usize,
    /// The file name of a bundle of that moment.
    pub(super) bundle: String,
}

/// One measurement.
#[derive(Debug, Clone)]
pub(super) struct Measured {
    /// The rate, in the load's unit.
    pub(super) rate: f64,
    /// Other figures by name.
    pub(super) figures: Vec<(&'static str, f64)>,
}

impl Recorded {
    /// Reads the file of a folder; nothing was measured if there is none.
    pub(super) fn read(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(FILE);
        if !path.exists() {
            return Ok(None);
        }
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {path:?}"))?;
        let read = serde_json::from_str(&text);
        read.map(Some).with_context(|| format!("{path:?} is not as written"))
    }

    /// Writes the file beside the bundles.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(FILE);
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(&path, rows(&text)).with_context(|| format!("cannot write {path:?}"))
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

impl Setting {
    /// A setting of which nothing is measured yet.
    pub(super) fn new(name: &str, cpus: &[String]) -> Self {
        let (name, cpus) = (name.to_owned(), cpus.to_vec());
        Self { name, cpus, rates: Vec::new(), figures: BTreeMap::new() }
    }

    /// Adds a measurement.
    pub(super) fn push(&mut self, measured: &Measured) {
        self.rates.push(rounded(measured.rate));
        for (name, value) in &measured.figures {
            self.figures.entry((*name).to_owned()).or_default().push(rounded(*value));
        }
    }

    /// Whether the default can choose it.
    pub(super) fn is_placement(&self) -> bool {
        !self.cpus.is_empty()
    }

    /// Its CPUs, and its name if it has one.
    pub(super) fn label(&self) -> String {
        let cpus = self.cpus.join(",");
        match (cpus.as_str(), self.name.as_str()) {
            ("", name) => name.to_owned(),
            (cpus, "") => cpus.to_owned(),
            (cpus, name) => format!("{cpus} ({name})"),
        }
    }
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
        let mut setting = Setting::new("same CPU", &["1".to_owned(), "2".to_owned()]);
        for rate in [123_456.0, 0.001_234_56] {
            setting.push(&Measured { rate, figures: vec![("p50_us", rate), ("p99_us", 1.0)] });
        }
        assert_eq!(setting.label(), "1,2 (same CPU)");
        let load = Load {
            name: "x".to_owned(),
            unit: "transaction".to_owned(),
            netdevs: vec!["eth0".to_owned()],
            settings: vec![setting],
            starts: vec![Start { placement: 0, bundle: "b".to_owned() }],
        };
        let folder = tempfile::tempdir().unwrap();
        assert!(Recorded::read(folder.path()).unwrap().is_none());
        let recorded = Recorded { about: "test".to_owned(), loads: vec![load] };
        recorded.write(folder.path()).unwrap();
        let text = std::fs::read_to_string(folder.path().join(FILE)).unwrap();
        assert!(text.contains("\"rates\": [123500.0, 0.001235],\n"), "{text}");
        assert!(text.contains("\"p99_us\": [1.0, 1.0]\n"), "{text}");
        let read = Recorded::read(folder.path()).unwrap().unwrap();
        let setting = &read.loads[0].settings[0];
        assert_eq!(setting.rates, [123_500.0, 0.001_235]);
        assert_eq!(setting.figures["p50_us"], setting.rates);
    }
}
