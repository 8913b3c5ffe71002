//! Coverage of the bootstrap's intervals.
#![allow(clippy::unwrap_used, reason = "a test")]

use netsilo_trial::stats::bootstrap::{Draws, interval};
use netsilo_trial::stats::simulate::{Noise, share};
use netsilo_trial::stats::{mean, signed_rank};

fn covered(noise: Noise, n: usize, truth: f64, figure: fn(&[f64]) -> Option<f64>) -> f64 {
    share(250, |rng| {
        let sample: Vec<f64> = (0..n).map(|_| noise.sample(rng)).collect();
        let draws = Draws { resamples: 400, seed: rng.u64(..), ..Draws::default() };
        interval(&sample, figure, draws).unwrap().contains(truth)
    })
}

#[test]
fn the_mean_has_nearly_the_promised_coverage() {
    let normal = covered(Noise::Normal, 20, 0.0, mean);
    assert!((0.86..=0.98).contains(&normal), "{normal}");
    // The bootstrap is weakest for the mean of skewed values; compare logarithms or medians
    // instead.
    let skewed = covered(Noise::LogNormal, 40, 0.5f64.exp(), mean);
    assert!(skewed >= 0.80, "{skewed}");
}

#[test]
fn the_median_is_covered_without_finite_variance() {
    for noise in [Noise::Normal, Noise::Heavy] {
        let covered = covered(noise, 15, 0.0, signed_rank::middle);
        assert!((0.89..=0.985).contains(&covered), "{noise:?} {covered}");
    }
}
