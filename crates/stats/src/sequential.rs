//! When to stop comparing: early when it is clear, early when it is hopeless, and never more often
//! wrong than promised.
//!
//! The differences are looked at a few times, at numbers of pairs fixed beforehand; each look has
//! its share of the doubt and an exact interval ([`crate::signed_rank`]). All intervals together
//! hold the truth with the confidence promised, whichever look is the last. A confidence sequence
//! would allow a look after each pair and takes two to four times as many of them; here a pair
//! costs seconds and a look nothing.

use serde::{Deserialize, Serialize};

use crate::{Estimate, normal_quantile, signed_rank};

/// Between two looks the number of pairs grows by this.
const GROWTH: f64 = 1.45;

/// Before this share of the pairs nothing is hopeless.
const HOPE: f64 = 0.25;

/// How to compare.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rules {
    /// Pairs at most.
    pub most: usize,
    /// How often the interval may miss the truth.
    pub doubt: f64,
    /// A difference below this is none that matters; 0 where each one does.
    pub matters: f64,
}

impl Default for Rules {
    fn default() -> Self {
        Self { most: 60, doubt: 0.05, matters: 0.01 }
    }
}

/// Why it stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// The interval does not hold zero.
    Clear,
    /// The whole interval is below what matters.
    Alike,
    /// With all pairs that are left the interval would still hold zero.
    Hopeless,
    /// All pairs are used up.
    Used,
}

/// What a look at the differences showed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Look {
    /// Differences looked at.
    pub pairs: usize,
    /// Where the truth is; `None` where they are too few.
    pub estimate: Option<Estimate>,
    /// Why to stop now; `None` means to go on.
    pub stop: Option<Stop>,
}

impl Rules {
    /// The numbers of pairs to look at: few, so that the doubt need not be shared among many.
    pub fn looks(&self) -> Vec<usize> {
        // The first look that has an interval depends on the number of looks, and the other way
        // round.
        let from = |first: usize| {
            let grown = std::iter::successors(Some(first as f64), |n| Some(n * GROWTH))
                .map(|n| n.round() as usize);
            grown
                .take_while(|n| (*n as f64) < self.most as f64 / GROWTH.sqrt())
                .chain([self.most])
                .collect::<Vec<_>>()
        };
        let fits =
            |looks: &Vec<usize>| looks[0] >= signed_rank::fewest(self.doubt / looks.len() as f64);
        (1..=self.most).map(from).find(fits).unwrap_or_else(|| vec![self.most])
    }

    /// Looks at the differences so far; `None` when this is no moment to look.
    pub fn look(&self, differences: &[f64]) -> Option<Look> {
        let looks = self.looks();
        let pairs = differences.len();
        if !looks.contains(&pairs) {
            return None;
        }
        let doubt = self.doubt / looks.len() as f64;
        let estimate = signed_rank::interval(differences, doubt);
        Some(Look { pairs, estimate, stop: self.stop(pairs, estimate, doubt) })
    }

    /// The last look that these differences allowed.
    pub fn last_look(&self, differences: &[f64]) -> Option<Look> {
        let pairs = self.looks().into_iter().rfind(|pairs| *pairs <= differences.len())?;
        self.look(&differences[..pairs])
    }

    fn stop(&self, pairs: usize, estimate: Option<Estimate>, doubt: f64) -> Option<Stop> {
        let used = (pairs >= self.most).then_some(Stop::Used);
        let Some(estimate) = estimate else { return used };
        if !estimate.holds(0.0) {
            Some(Stop::Clear)
        } else if estimate.low > -self.matters && estimate.high < self.matters {
            Some(Stop::Alike)
        } else {
            used.or_else(|| self.is_hopeless(pairs, &estimate, doubt).then_some(Stop::Hopeless))
        }
    }

    /// Even an estimate that grows by two of its deviations would not leave the interval that all
    /// pairs would give, and that interval would not be below what matters either. This can only
    /// make a difference be shown less often.
    fn is_hopeless(&self, pairs: usize, estimate: &Estimate, doubt: f64) -> bool {
        let used = pairs as f64 / self.most as f64;
        let half = (estimate.high - estimate.low) / 2.0;
        let at_the_end = half * used.sqrt();
        let deviation = half / normal_quantile(1.0 - doubt / 2.0) * (1.0 - used).sqrt();
        let (least, most) =
            (estimate.value.abs() - 2.0 * deviation, estimate.value.abs() + 2.0 * deviation);
        used >= HOPE && most < at_the_end && least.max(0.0) + at_the_end > self.matters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::{Noise, share};

    /// Pairs in thrown order, while all drifts and what one pair has the next one has a part of;
    /// until it stops.
    fn run(rules: Rules, noise: Noise, truth: f64, rng: &mut fastrand::Rng) -> Look {
        let (mut differences, mut weather) = (Vec::new(), 0.0);
        loop {
            weather = 0.8 * weather + noise.sample(rng) * 0.5;
            let (first, second) = (noise.sample(rng), noise.sample(rng) + 0.1 + weather);
            differences.push(if rng.bool() {
                second + truth - first
            } else {
                first + truth - second
            });
            if let Some(look @ Look { stop: Some(_), .. }) = rules.look(&differences) {
                return look;
            }
        }
    }

    #[test]
    fn looks_are_few_and_the_first_has_an_interval() {
        let looks = |most| Rules { most, ..Rules::default() }.looks();
        assert_eq!(looks(60), [8, 12, 17, 24, 35, 60]);
        assert_eq!((looks(10), looks(6), looks(1)), (vec![7, 10], vec![6], vec![1]));
        assert_eq!(looks(1000).last(), Some(&1000));
    }

    #[test]
    fn the_truth_is_missed_no_more_often_than_promised_whenever_it_stops() {
        for noise in Noise::ALL {
            for truth in [0.0, 1.5] {
                let covered = share(300, |rng| {
                    run(Rules::default(), noise, truth, rng).estimate.unwrap().holds(truth)
                });
                assert!(covered >= 0.945, "{noise:?} {truth}: {covered}");
            }
        }
    }

    #[test]
    fn without_a_difference_one_is_shown_no_more_often_than_promised() {
        let rules = Rules { matters: 0.0, ..Rules::default() };
        let shown = share(400, |rng| run(rules, Noise::Heavy, 0.0, rng).stop == Some(Stop::Clear));
        assert!(shown <= 0.05, "{shown}");
    }

    #[test]
    fn a_large_difference_is_shown_at_the_first_look_and_none_is_given_up_before_the_last() {
        let mut rng = fastrand::Rng::with_seed(5);
        let look = run(Rules::default(), Noise::Normal, 20.0, &mut rng);
        assert_eq!((look.pairs, look.stop), (8, Some(Stop::Clear)));
        let early = share(200, |rng| {
            let look = run(Rules::default(), Noise::Normal, 0.0, rng);
            look.stop == Some(Stop::Hopeless) && look.pairs < 60
        });
        assert!(early > 0.5, "{early}");
    }

    #[test]
    fn giving_up_seldom_costs_a_difference_that_would_have_been_shown() {
        // About two deviations of a pair's difference over the square root of 60 are shown in most
        // runs.
        let shown = share(200, |rng| {
            run(Rules::default(), Noise::Normal, 1.2, rng).stop == Some(Stop::Clear)
        });
        assert!(shown > 0.75, "{shown}");
    }

    #[test]
    fn what_is_the_same_is_called_alike_and_too_few_pairs_show_nothing() {
        let rules = Rules { matters: 0.05, ..Rules::default() };
        let same = [0.01, -0.01, 0.02, -0.02, 0.0, 0.01, -0.01, 0.005];
        assert_eq!(rules.look(&same).unwrap().stop, Some(Stop::Alike));
        assert_eq!(rules.look(&same[..7]), None);
        assert_eq!(rules.last_look(&same[..7]), None);
        let few = Rules { most: 3, ..rules };
        assert_eq!(
            few.look(&same[..3]).unwrap(),
            Look { pairs: 3, estimate: None, stop: Some(Stop::Used) }
        );
    }
}
