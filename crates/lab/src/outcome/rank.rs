//! Rank correlation: whether the model orders placements as they measured.

/// Kendall's tau-b of pairs of values: 1 if both have the same order, -1 if they have the opposite
/// order. `None` if all values of one are equal.
pub(super) fn tau(pairs: &[(f64, f64)]) -> Option<f64> {
    let (mut same, mut opposite, mut tied) = (0.0, 0.0, [0.0, 0.0]);
    for (at, a) in pairs.iter().enumerate() {
        for b in &pairs[..at] {
            let (x, y) = (a.0 - b.0, a.1 - b.1);
            match (x == 0.0, y == 0.0) {
                (true, true) => {}
                (true, false) => tied[0] += 1.0,
                (false, true) => tied[1] += 1.0,
                (false, false) if (x > 0.0) == (y > 0.0) => same += 1.0,
                (false, false) => opposite += 1.0,
            }
        }
    }
    let told = |tied: f64| -> f64 { same + opposite + tied };
    let both = (told(tied[0]) * told(tied[1])).sqrt();
    (both > 0.0).then(|| (same - opposite) / both)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tau_is_one_in_the_same_order_and_minus_one_in_the_opposite_one() {
        assert_eq!(tau(&[(1.0, 5.0), (2.0, 6.0), (3.0, 9.0)]), Some(1.0));
        assert_eq!(tau(&[(1.0, 9.0), (2.0, 6.0), (3.0, 5.0)]), Some(-1.0));
    }

    #[test]
    fn ties_count_in_the_denominator_only() {
        // Two of three pairs are told apart by both: 2 / sqrt(3 x 2).
        let tied = tau(&[(1.0, 5.0), (2.0, 5.0), (3.0, 9.0)]).unwrap();
        assert!((tied - 2.0 / 6.0_f64.sqrt()).abs() < 1e-12, "{tied}");
        assert_eq!(tau(&[(1.0, 5.0), (2.0, 5.0)]), None);
        assert_eq!(tau(&[]), None);
    }
}
