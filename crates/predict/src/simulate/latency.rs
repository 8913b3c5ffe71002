//! Latencies of transactions or packets.

use hdrhistogram::Histogram;
use serde::Serialize;

/// A distribution of latencies.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Latency {
    /// Mean (us).
    pub mean_us: f64,
    /// Half of them are longer (us).
    pub p50_us: f64,
    /// 1 % of them are longer (us).
    pub p99_us: f64,
}

impl Latency {
    /// Summarizes latencies in ns; `None` if there are none.
    pub(crate) fn new(latencies: &Histogram<u64>) -> Option<Self> {
        let at = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
        (!latencies.is_empty()).then(|| Self {
            mean_us: latencies.mean() / 1e3,
            p50_us: at(0.5),
            p99_us: at(0.99),
        })
    }
}

/// The longest latency (ns); longer ones count as this: an hour.
const LONGEST: u64 = 3_600_000_000_000;

/// An empty histogram (ns) with a precision of 1 %.
#[expect(clippy::expect_used, reason = "the bounds and the precision are in range")]
pub(crate) fn latencies() -> Histogram<u64> {
    Histogram::new_with_max(LONGEST, 2).expect("an hour with 2 digits")
}
