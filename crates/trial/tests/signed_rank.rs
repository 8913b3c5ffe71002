//! Coverage of the signed-rank interval.

use netsilo_trial::stats::signed_rank::interval;
use netsilo_trial::stats::simulate::{Noise, share};

/// The difference of a pair: a coin decides which side runs first, and both drift.
fn difference(noise: Noise, truth: f64, drift: f64, rng: &mut fastrand::Rng) -> f64 {
    let (first, second) = (noise.sample(rng), noise.sample(rng) + drift);
    if rng.bool() { second + truth - first } else { first + truth - second }
}

#[test]
fn coverage_holds_under_any_noise_and_drift() {
    for noise in Noise::ALL {
        for drift in [0.0, 3.0] {
            let covered = share(1500, |rng| {
                let differences: Vec<f64> =
                    (0..12).map(|_| difference(noise, 0.7, drift, rng)).collect();
                interval(&differences, 0.05).unwrap().contains(0.7)
            });
            assert!(covered >= 0.94, "{noise:?} drift {drift}: {covered}");
        }
    }
}
