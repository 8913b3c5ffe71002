//! Run-queue latency: a histogram of the time that threads were runnable before they ran.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The `quantity` of the hooks that measure it ([`crate::snapshot::attribution::Hook`]).
pub const QUANTITY: &str = "run-queue latency";
/// Number of equally wide buckets per octave. Values in one bucket differ by at most 1/32.
pub const STEPS: u64 = 32;
/// Number of buckets. The last one ends at 2^36 ns (69 s) and also holds longer waits.
pub const BUCKETS: usize = 1024;
/// Minimum number of waits for a 99th percentile: fewer than that have no ten waits above it.
pub const MIN_WAITS: u64 = 1000;

/// Waits of threads that read sockets, from runnable to running, on all CPUs together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunqueueLatency {
    /// Number of waits by bucket. The key is the shortest wait of the bucket in nanoseconds. Empty
    /// buckets are left out.
    pub waits: BTreeMap<u64, u64>,
}

impl RunqueueLatency {
    /// Makes the histogram from the count of each bucket, in bucket order.
    pub fn from_counts(counts: impl IntoIterator<Item = u64>) -> Self {
        let filled = counts.into_iter().enumerate().filter(|(_, count)| *count > 0);
        Self { waits: filled.map(|(bucket, count)| (shortest_ns(bucket as u64), count)).collect() }
    }

    /// Adds the waits of another window.
    pub fn append(&mut self, next: Self) {
        for (shortest, count) in next.waits {
            *self.waits.entry(shortest).or_default() += count;
        }
    }

    /// Number of waits.
    pub fn count(&self) -> u64 {
        self.waits.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The 99th percentile in nanoseconds, with an error of at most 1/32 (or a nanosecond); `None`
    /// with fewer than [`MIN_WAITS`] waits.
    pub fn p99_ns(&self) -> Option<f64> {
        let count = self.count();
        let rank = (0.99 * count as f64).ceil() as u64;
        (count >= MIN_WAITS).then(|| self.ranked_ns(rank)).flatten()
    }

    /// The wait of this rank (1 is the shortest) in nanoseconds, interpolated within its bucket;
    /// `None` if there are fewer waits.
    pub fn ranked_ns(&self, rank: u64) -> Option<f64> {
        let rank = rank.max(1) as f64;
        let mut below = 0.0;
        self.waits.iter().find_map(|(&shortest, &count)| {
            let within = (rank - below - 0.5) / count as f64;
            below += count as f64;
            (rank <= below).then(|| shortest as f64 + width_ns(shortest) as f64 * within)
        })
    }
}

/// The shortest wait of a bucket. This is the inverse of `bucket_of` in `bpf/runqueue.bpf.c`.
///
/// Up to [`STEPS`] a bucket is one nanosecond wide. From the second octave on, the width doubles
/// with each octave.
fn shortest_ns(bucket: u64) -> u64 {
    let octave = (bucket / STEPS).saturating_sub(1);
    (bucket - octave * STEPS) << octave
}

/// The width in nanoseconds of the bucket that starts at `shortest`.
fn width_ns(shortest: u64) -> u64 {
    (shortest / STEPS).checked_ilog2().map_or(1, |octave| 1 << octave)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The bucket of a wait, as the eBPF program computes it.
    fn bucket_of(ns: u64) -> usize {
        let octave = (ns / STEPS).checked_ilog2().unwrap_or(0);
        ((u64::from(octave) * STEPS + (ns >> octave)) as usize).min(BUCKETS - 1)
    }

    fn of(waits: &[u64]) -> RunqueueLatency {
        let mut counts = vec![0; BUCKETS];
        waits.iter().for_each(|ns| counts[bucket_of(*ns)] += 1);
        RunqueueLatency::from_counts(counts)
    }

    #[test]
    fn buckets_have_no_gaps() {
        for bucket in 0..BUCKETS as u64 {
            let shortest = shortest_ns(bucket);
            assert_eq!(bucket_of(shortest), bucket as usize);
            assert_eq!(shortest + width_ns(shortest), shortest_ns(bucket + 1), "{bucket}");
            assert!(width_ns(shortest) == 1 || width_ns(shortest) * STEPS <= shortest, "{bucket}");
        }
        assert_eq!(shortest_ns(BUCKETS as u64), 1 << 36);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn a_percentile_needs_ten_waits_above_it() {
        assert_eq!(of(&[5000; 999]).p99_ns(), None);
        let p99 = of(&[5000; 1000]).p99_ns().unwrap();
        assert!((p99 - 5000.0).abs() < 5000.0 / 32.0, "{p99}");
        assert_eq!(RunqueueLatency::default().p99_ns(), None);
    }

    proptest! {
        #[test]
        fn the_99th_percentile_is_within_a_bucket_of_the_exact_one(
            exponents in prop::collection::vec(0.0..36.0f64, 10..50), repeats in 100..150usize,
        ) {
            let mut waits: Vec<u64> = exponents.iter()
                .flat_map(|it| vec![it.exp2() as u64; repeats]).collect();
            let estimated = of(&waits).p99_ns().unwrap();
            waits.sort_unstable();
            let exact = waits[(waits.len() as f64 * 0.99).ceil() as usize - 1] as f64;
            prop_assert!((estimated - exact).abs() <= (exact / STEPS as f64).max(1.0),
                "{estimated}, not {exact}");
        }

        #[test]
        fn no_counts_panic(
            waits in prop::collection::btree_map(any::<u64>(), any::<u64>(), 0..9),
        ) {
            let _ = RunqueueLatency { waits }.p99_ns();
        }
    }
}
