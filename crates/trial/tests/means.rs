//! Coverage of Student's interval.

use netsilo_trial::stats::difference_of_means;
use netsilo_trial::stats::simulate::{normal, share};

#[test]
fn difference_of_means_has_the_promised_coverage() {
    let covered = share(2000, |rng| {
        let mut around =
            |mean: f64, n: usize| (0..n).map(|_| mean + normal(rng)).collect::<Vec<_>>();
        let (before, after) = (around(10.0, 3), around(11.0, 5));
        difference_of_means(&before, &after, 0.0, 0.05).unwrap().contains(1.0)
    });
    assert!((0.935..=0.965).contains(&covered), "{covered}");
}
