//! Regret: how much worse a choice is than the placement that measured best.

use netsilo_trial::stats::bootstrap::{self, Draws};
use netsilo_trial::stats::{Estimate, median};

use crate::experiment::record::{LoadRecord, SettingRecord, middle};

/// What is counted in guests, where rates are the emulator's: by the first one settings compare if
/// a program of the guest reads the data, else by the second one.
const IPIS: &str = "ipis";
const SOFTIRQS: &str = "softirqs";

/// The figure that tells that somebody reads.
const READ: &str = "bytes_same_cpu";

impl LoadRecord {
    /// The placements among the settings, by their index.
    pub(super) fn placements(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.settings.len()).filter(|setting| self.settings[*setting].is_placement())
    }

    /// The count per transaction by which its settings compare; `None`: by their rates.
    pub(super) fn counted(&self) -> Option<&'static str> {
        let has = |figure| self.settings.iter().any(|it| it.figures.contains_key(figure));
        has(IPIS).then(|| if has(READ) { IPIS } else { SOFTIRQS })
    }

    /// The median rate of a setting.
    pub(super) fn rate(&self, setting: usize) -> f64 {
        middle(&self.settings[setting].rates)
    }

    /// By which settings compare, more is better: the median of the rate, or a lower count.
    pub(super) fn score(&self, setting: usize) -> f64 {
        middle(&self.scores(&self.settings[setting]))
    }

    /// The placement with the highest score of all rounds.
    pub(super) fn best(&self) -> usize {
        self.highest(middle)
    }

    /// How much worse a setting is than the best placement: the share of the rate that it loses,
    /// negative if it gives more; or how many more it counts for a transaction.
    ///
    /// The odd rounds select the best placement, and the even rounds measure the difference, with
    /// the interval of their pairs. A single round (medians of others) does both.
    pub(super) fn regret(&self, chosen: usize) -> Estimate {
        let best = self.highest(|scores| middle(&odd(scores)));
        let even = |setting: usize| even(&self.scores(&self.settings[setting]));
        let pairs = even(chosen).into_iter().zip(even(best));
        let is_counted = self.counted().is_some();
        let worse = |(chosen, best): (f64, f64)| {
            if is_counted { best - chosen } else { 1.0 - chosen / best }
        };
        let each: Vec<f64> = pairs.map(worse).collect();
        // Equal values have no spread, and fewer than five show none.
        bootstrap::interval(&each, median, Draws::default()).unwrap_or(Estimate {
            value: middle(&each),
            low: f64::NAN,
            high: f64::NAN,
        })
    }

    fn scores(&self, setting: &SettingRecord) -> Vec<f64> {
        match self.counted().and_then(|figure| setting.figures.get(figure)) {
            Some(counts) => counts.iter().map(|count| -count).collect(),
            None => setting.rates.clone(),
        }
    }

    fn highest(&self, figure: impl Fn(&[f64]) -> f64) -> usize {
        let of = |setting: &usize| figure(&self.scores(&self.settings[*setting]));
        self.placements().max_by(|a, b| of(a).total_cmp(&of(b))).unwrap_or(0)
    }
}

/// The first, third, ... round.
fn odd(rounds: &[f64]) -> Vec<f64> {
    rounds.iter().copied().step_by(2).collect()
}

/// The second, fourth, ... round; of one round, that one.
fn even(rounds: &[f64]) -> Vec<f64> {
    rounds.iter().copied().skip(1 % rounds.len().max(1)).step_by(2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(rates: &[&[f64]]) -> LoadRecord {
        let setting = |(cpu, rates): (usize, &&[f64])| {
            let mut setting = SettingRecord::new("", &[cpu.to_string()]);
            setting.rates = rates.to_vec();
            setting
        };
        LoadRecord {
            settings: rates.iter().enumerate().map(setting).collect(),
            ..LoadRecord::default()
        }
    }

    #[test]
    fn regret_is_what_a_choice_loses_in_the_even_rounds() {
        let load = load(&[&[200.0, 100.0, 220.0, 100.0], &[100.0, 50.0, 90.0, 60.0]]);
        assert_eq!(load.regret(0).value, 0.0);
        assert!((load.regret(1).value - 0.45).abs() < 1e-9);
        assert!(load.regret(1).low.is_nan(), "two rounds show no spread");
    }

    #[test]
    fn one_round_tells_both() {
        assert!((load(&[&[100.0], &[80.0]]).regret(1).value - 0.2).abs() < 1e-9);
    }

    #[test]
    fn ten_rounds_have_an_interval() {
        let steady: Vec<f64> = vec![100.0; 10];
        let varied: Vec<f64> = (0..10).map(|round| 80.0 + f64::from(round)).collect();
        let regret = load(&[&steady, &varied]).regret(1);
        assert!((regret.value - 0.15).abs() < 1e-9, "{regret:?}");
        assert!(regret.low < 0.15 && regret.high > 0.15 && regret.high < 0.2, "{regret:?}");
    }

    #[test]
    fn a_counted_load_is_judged_by_ipis_if_somebody_reads_else_by_softirqs() {
        let mut load = load(&[&[100.0; 2], &[500.0; 2]]);
        for (setting, counts) in load.settings.iter_mut().zip([0.25, 1.5]) {
            setting.figures.insert(IPIS.to_owned(), vec![counts; 2]);
            setting.figures.insert(SOFTIRQS.to_owned(), vec![-counts; 2]);
        }
        assert_eq!((load.best(), load.regret(0).value), (1, 1.25));
        load.settings[0].figures.insert(READ.to_owned(), vec![1.0]);
        assert_eq!((load.best(), load.regret(1).value), (0, 1.25));
    }

    #[test]
    fn another_setting_is_no_placement() {
        let mut load = load(&[&[100.0], &[150.0]]);
        load.settings[1].cpus.clear();
        assert_eq!((load.best(), load.placements().count()), (0, 1));
        assert!((load.regret(1).value + 0.5).abs() < 1e-9);
    }
}
