//! Merged latencies of several runs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use serde::{Deserialize, Serialize};

use crate::traffic::Latency;

/// The reported percentiles; a run of seconds cannot show more nines.
pub const PERCENTILES: [f64; 12] =
    [1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 99.999];

/// The responses of all rounds, each counted once: merges the histograms, never averages
/// percentiles.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MergedLatency {
    /// Number of responses.
    pub count: u64,
    /// Mean.
    pub mean_ns: f64,
    /// Maximum.
    pub max_ns: u64,
    /// Percent and nanoseconds, to three digits. Leaves out a percentile with fewer than ten
    /// responses above it.
    pub percentiles_ns: Vec<(f64, u64)>,
    /// Number of histograms that could not be read and are left out.
    pub unreadable: usize,
}

impl MergedLatency {
    /// Merges the latencies; `None` without responses.
    pub(super) fn merge<'a>(latencies: impl Iterator<Item = &'a Latency>) -> Option<Self> {
        let mut all = Histogram::<u64>::new(3).ok()?;
        let unreadable =
            latencies.filter(|latency| read(latency).is_none_or(|it| all.add(it).is_err())).count();
        let count = all.len();
        let shown = |percent: &f64| count as f64 * (1.0 - percent / 100.0) >= 10.0;
        let at = |percent: f64| (percent, all.value_at_percentile(percent));
        (count > 0 || unreadable > 0).then(|| Self {
            count,
            mean_ns: all.mean(),
            max_ns: all.max(),
            percentiles_ns: PERCENTILES.into_iter().filter(shown).map(at).collect(),
            unreadable,
        })
    }
}

fn read(latency: &Latency) -> Option<Histogram<u64>> {
    let bytes = STANDARD.decode(&latency.histogram).ok()?;
    Deserializer::new().deserialize(&mut bytes.as_slice()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::samples::latency;

    #[test]
    fn each_response_counts_once_in_any_number_of_rounds() {
        let (few, many) = (latency(vec![1_000_000; 100]), latency(vec![1000; 900]));
        let merged = MergedLatency::merge([&few, &many].into_iter()).unwrap();
        let at = |percent: f64| {
            merged.percentiles_ns.iter().find(|(it, _)| *it == percent).map(|(_, ns)| *ns)
        };
        let close = |ns: Option<u64>, to: u64| ns.is_some_and(|ns| ns.abs_diff(to) <= to / 500);
        assert!(
            merged.count == 1000 && close(at(75.0), 1000) && close(at(95.0), 1_000_000),
            "{merged:?}"
        );
        assert!(
            at(99.0).is_some() && at(99.9).is_none(),
            "the 99.9th percentile needs ten responses above it: {merged:?}"
        );
        let broken = Latency { histogram: "no histogram".into(), ..few.clone() };
        let merged = MergedLatency::merge([&few, &broken].into_iter()).unwrap();
        assert_eq!((merged.count, merged.unreadable), (100, 1));
        assert_eq!(MergedLatency::merge(std::iter::empty()), None);
    }
}
