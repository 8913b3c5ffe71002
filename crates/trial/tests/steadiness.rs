//! Error rate of the drift test.

use netsilo_trial::stats::simulate::{normal, share};
use netsilo_trial::stats::steadiness::steadiness;

#[test]
fn chance_rarely_looks_like_a_drift() {
    let false_alarms = share(1000, |rng| {
        let values: Vec<f64> = (0..20).map(|_| 100.0 + normal(rng)).collect();
        steadiness(&values).drift.is_some()
    });
    assert!(false_alarms <= 0.02, "{false_alarms}");
}
