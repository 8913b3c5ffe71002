//! How the verdicts score.

use std::fmt;
use std::path::Path;

use anyhow::{Context, Result};
use netsilo_decide::judge::verdict::{Claim, Look, rps_onto};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_predict::live::claim::is_near_full;
use netsilo_predict::live::forecast::forecast;
use netsilo_predict::live::proposal::Proposal;
use netsilo_predict::live::work::Work;
use netsilo_trial::stats::Estimate;
use serde::{Deserialize, Serialize};

use crate::experiment::record::{LoadRecord, Recorded, SettingRecord, middle};
use crate::say::markdown;
use crate::wire::{NETDEV, cpus_of};

/// If the rate changes by less than this, "no clear change" is right.
const SMALL: f64 = 0.05;

/// What a setting writes.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Rps {
    /// The CPUs of RPS, as a mask.
    pub(super) rps: u32,
}

/// A setting of RPS, and the same load without RPS.
struct Pair<'a> {
    load: &'a LoadRecord,
    off: &'a SettingRecord,
    on: &'a SettingRecord,
    cpus: CpuSet,
}

impl Recorded {
    /// Each load with each setting of RPS.
    fn pairs(&self) -> Result<Vec<Pair<'_>>> {
        let mut pairs = Vec::new();
        for load in &self.loads {
            let Some((off, others)) = load.settings.split_first() else { continue };
            for on in others {
                pairs.push(Pair { load, off, on, cpus: cpus_of(on.details::<Rps>()?.rps) });
            }
        }
        Ok(pairs)
    }
}

impl Pair<'_> {
    /// Change of the rate.
    fn change(&self) -> f64 {
        let ratios = self.off.rates.iter().zip(&self.on.rates).map(|(off, on)| (on / off).ln());
        middle(&ratios.collect::<Vec<_>>()).exp_m1()
    }

    fn interval(&self) -> Option<Estimate> {
        self.on.over(self.off).map(|ratio| ratio.map(|it| it - 1.0))
    }

    /// What `check` says under this load, and what `predict` expects, with whether something is
    /// full now.
    fn said(&self, folder: &Path) -> Result<(Claim, Option<(Estimate, bool)>)> {
        let start = self.load.starts.first().context("no bundle")?;
        let file = folder.join(&start.bundle);
        let observation = netsilo_sys::bundle::open(file.clone())
            .with_context(|| format!("cannot read {file:?}"))?;
        let costs = Costs::default();
        let analysis = Analysis::new(&observation, &costs);
        let netdev = observation.after.netdevs.iter().find(|netdev| netdev.name == NETDEV);
        let netdev = netdev.with_context(|| format!("{file:?} has no {NETDEV}"))?;
        let verdict = rps_onto(&Look::new(&analysis), netdev, &self.cpus);
        let verdict = verdict.map_or(Claim::Unknown, |verdict| verdict.claim);
        let after = Proposal::edited("RPS", &observation.after, |after| {
            let netdevs = after.netdevs.iter_mut().filter(|netdev| netdev.name == NETDEV);
            for queue in netdevs.flat_map(|netdev| &mut netdev.rx_queues) {
                queue.rps_cpus = Some(self.cpus.clone());
            }
        });
        let forecast = Work::new(&analysis).ok().map(|work| forecast(&work, 1.0, &[after]));
        let expected = forecast.and_then(|forecast| match forecast.settings.as_slice() {
            [now, after] => Some((after.gain?, is_near_full(now.fits.value))),
            _ => None,
        });
        Ok((verdict, expected))
    }

    /// Whether the verdict agrees with what was measured.
    fn score(&self, verdict: Claim) -> Score {
        let change = self.change();
        let shown =
            self.interval().unwrap_or(Estimate { value: change, low: change, high: change });
        let is_right = match verdict {
            Claim::Unknown => return Score::SaysNothing,
            Claim::NoClearChange => shown.low <= SMALL && shown.high >= -SMALL,
            _ if shown.low <= 0.0 && shown.high >= 0.0 => return Score::NotShown,
            Claim::Help => change > 0.0,
            Claim::Hurt => change < 0.0,
        };
        if is_right { Score::Right } else { Score::Wrong }
    }
}

/// How a verdict compares with the measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Score {
    /// The verdict was "helps" or "hurts", and the measurements agree. Or it was "no clear change",
    /// and the measurements show no change of more than [`SMALL`].
    Right,
    Wrong,
    /// The verdict was "helps" or "hurts", but the interval of the change contains zero.
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
    let mut table =
        markdown(&["load", "RPS onto", "rate without", "change by RPS", "verdict", "", "forecast"]);
    let (mut scores, mut calm, mut held, mut full) = (Vec::new(), Vec::new(), 0, 0);
    for pair in recorded.pairs()? {
        let (verdict, expected) = pair.said(folder)?;
        let score = pair.score(verdict);
        if let Some((gain, true)) = expected {
            full += 1;
            held += usize::from(gain.contains(pair.change()));
        }
        scores.push(score);
        calm.extend((verdict == Claim::NoClearChange).then(|| pair.change()));
        let change = pair
            .interval()
            .map_or_else(|| format!("{:+.0}%", pair.change() * 100.0), Estimate::in_percent);
        let without = middle(&pair.off.rates);
        table.add_row([
            pair.load.name.clone(),
            pair.cpus.to_string(),
            format!("{without:.0}/s"),
            change,
            verdict.to_string(),
            score.to_string(),
            expected.map_or_else(|| "-".to_owned(), |(gain, _)| gain.in_percent()),
        ]);
    }
    let all = [Score::Right, Score::Wrong, Score::NotShown, Score::SaysNothing];
    let counts = all.map(|score| {
        let count = scores.iter().filter(|it| **it == score).count();
        format!("{count} {score}")
    });
    let within = calm.iter().filter(|change| change.abs() <= SMALL).count();
    Ok(format!(
        "{table}\n\n{} pairs: {}. Of {full} pairs where something was full, {held} intervals of \
         the forecast hold the measured change.\n\nOf {} verdicts of no clear change, {within} \
         have a median within {:.0}%.",
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
        let load = LoadRecord::default();
        let setting =
            |rates: [f64; 6]| SettingRecord { rates: rates.to_vec(), ..SettingRecord::default() };
        let off = setting([100.0; 6]);
        let score = |on: [f64; 6], verdict| {
            let on = setting(on);
            Pair { load: &load, off: &off, on: &on, cpus: CpuSet::default() }.score(verdict)
        };
        let worse = [70.0, 71.0, 72.0, 73.0, 74.0, 75.0];
        assert_eq!(score(worse, Claim::Hurt), Score::Right);
        assert_eq!(score(worse, Claim::Help), Score::Wrong);
        assert_eq!(score(worse, Claim::NoClearChange), Score::Wrong);
        assert_eq!(score(worse, Claim::Unknown), Score::SaysNothing);
        let noisy = [70.0, 130.0, 90.0, 110.0, 100.0, 101.0];
        assert_eq!(score(noisy, Claim::Hurt), Score::NotShown);
        assert_eq!(score(noisy, Claim::NoClearChange), Score::Right);
    }
}
