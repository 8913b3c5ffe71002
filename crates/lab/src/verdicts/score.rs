//! Measured pairs as files, and how the verdicts score.

use std::fmt;
use std::path::Path;

use anyhow::{Context, Result};
use netsilo_decide::judge::verdict::{Outcome, rps_onto};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_stats::{Estimate, median, signed_rank};
use serde::{Deserialize, Serialize};

use crate::say::markdown;
use crate::wire::{NETDEV, cpus_of};

/// The name of the file beside the bundles.
const FILE: &str = "verdicts.json";

/// Change of the rate within which "no clear change" is right.
const SMALL: f64 = 0.05;

/// Probability that a ratio is outside its interval.
const ERROR_RATE: f64 = 0.05;

/// What was measured on one machine.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Recorded {
    /// How it was measured.
    pub(super) about: String,
    /// The pairs.
    pub(super) pairs: Vec<Pair>,
}

/// A load without and with RPS.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pair {
    /// Name of the load.
    pub(super) load: String,
    /// The CPUs of RPS, as a mask.
    pub(super) rps: u32,
    /// Transactions or bytes per second without, by round.
    pub(super) off: Vec<f64>,
    /// The same with RPS.
    pub(super) on: Vec<f64>,
    /// The file name of a bundle of the load without RPS.
    pub(super) bundle: String,
}

impl Recorded {
    /// Reads the file of a folder.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {path:?}"))?;
        serde_json::from_str(&text).with_context(|| format!("{path:?} is not as written"))
    }

    /// Writes the file beside the bundles.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(FILE);
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(&path, text + "\n").with_context(|| format!("cannot write {path:?}"))
    }
}

impl Pair {
    fn cpus(&self) -> CpuSet {
        cpus_of(self.rps)
    }

    /// The logarithm of the rate with RPS over that without, of each round.
    fn ratios(&self) -> Vec<f64> {
        self.off.iter().zip(&self.on).map(|(off, on)| (on / off).ln()).collect()
    }

    /// Change of the rate.
    fn change(&self) -> f64 {
        median(&self.ratios()).unwrap_or(f64::NAN).exp_m1()
    }

    fn interval(&self) -> Option<Estimate> {
        signed_rank::interval(&self.ratios(), ERROR_RATE).map(|it| it.map(f64::exp_m1))
    }

    /// What `check` says under this load.
    fn verdict(&self, folder: &Path) -> Result<Outcome> {
        let file = folder.join(&self.bundle);
        let observation = netsilo_sys::bundle::open(file.clone())
            .with_context(|| format!("cannot read {file:?}"))?;
        let costs = Costs::default();
        let analysis = Analysis::new(&observation, &costs);
        let netdev = observation.after.netdevs.iter().find(|netdev| netdev.name == NETDEV);
        let netdev = netdev.with_context(|| format!("{file:?} has no {NETDEV}"))?;
        let verdict = rps_onto(&analysis, netdev, &self.cpus());
        Ok(verdict.map_or(Outcome::Unknown, |verdict| verdict.outcome))
    }

    /// Whether the verdict agrees with what was measured.
    fn score(&self, verdict: Outcome) -> Score {
        let change = self.change();
        let shown =
            self.interval().unwrap_or(Estimate { value: change, low: change, high: change });
        let is_right = match verdict {
            Outcome::Unknown => return Score::SaysNothing,
            Outcome::NoClearChange => shown.low <= SMALL && shown.high >= -SMALL,
            _ if shown.low <= 0.0 && shown.high >= 0.0 => return Score::NotShown,
            Outcome::Help => change > 0.0,
            Outcome::Hurt => change < 0.0,
        };
        if is_right { Score::Right } else { Score::Wrong }
    }
}

/// What became of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Score {
    /// "Helps" or "hurts", and so it was; "no clear change", and a change of more than
    /// [`SMALL`] is not shown.
    Right,
    Wrong,
    /// "Helps" or "hurts", and the interval of the change holds zero.
    NotShown,
    SaysNothing,
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Right => "right",
            Self::Wrong => "wrong",
            Self::NotShown => "not shown",
            Self::SaysNothing => "says nothing",
        })
    }
}

/// A row for each pair, and the score, in Markdown.
pub(super) fn table(recorded: &Recorded, folder: &Path) -> Result<String> {
    let mut table = markdown(&["load", "RPS onto", "rate without", "change by RPS", "verdict", ""]);
    let (mut scores, mut calm) = (Vec::new(), Vec::new());
    for pair in &recorded.pairs {
        let verdict = pair.verdict(folder)?;
        let score = pair.score(verdict);
        scores.push(score);
        calm.extend((verdict == Outcome::NoClearChange).then(|| pair.change()));
        let percent = |share: f64| format!("{:+.0}%", share * 100.0);
        let change = match pair.interval() {
            Some(Estimate { value, low, high }) => {
                format!("{} ({} to {})", percent(value), percent(low), percent(high))
            }
            None => percent(pair.change()),
        };
        let without = median(&pair.off).unwrap_or(f64::NAN);
        table.add_row([
            pair.load.clone(),
            pair.cpus().to_string(),
            format!("{without:.0}/s"),
            change,
            verdict.to_string(),
            score.to_string(),
        ]);
    }
    let all = [Score::Right, Score::Wrong, Score::NotShown, Score::SaysNothing];
    let counts = all.map(|score| {
        let count = scores.iter().filter(|it| **it == score).count();
        format!("{count} {score}")
    });
    let within = calm.iter().filter(|change| change.abs() <= SMALL).count();
    Ok(format!(
        "{table}\n\n{} pairs: {}.\n\nOf {} verdicts of no clear change, {within} have a median \
         within {:.0}%.",
        scores.len(),
        counts.join(", "),
        calm.len(),
        SMALL * 100.0
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_held_to_the_interval_of_the_change() {
        let pair = |on: [f64; 6]| Pair {
            load: String::new(),
            rps: 2,
            off: vec![100.0; 6],
            on: on.to_vec(),
            bundle: String::new(),
        };
        let worse = pair([70.0, 71.0, 72.0, 73.0, 74.0, 75.0]);
        assert_eq!(worse.score(Outcome::Hurt), Score::Right);
        assert_eq!(worse.score(Outcome::Help), Score::Wrong);
        assert_eq!(worse.score(Outcome::NoClearChange), Score::Wrong);
        assert_eq!(worse.score(Outcome::Unknown), Score::SaysNothing);
        let noisy = pair([70.0, 130.0, 90.0, 110.0, 100.0, 101.0]);
        assert_eq!(noisy.score(Outcome::Hurt), Score::NotShown);
        assert_eq!(noisy.score(Outcome::NoClearChange), Score::Right);
        assert_eq!(worse.cpus().to_string(), "1");
    }
}
