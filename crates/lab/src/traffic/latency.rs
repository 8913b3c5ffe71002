//! Response times, counted by their magnitude.

use std::time::Duration;

/// Steps of each factor e: a step is 2 %.
const STEPS: f64 = 50.0;

/// Counts of response times from 0.1 us to ten minutes.
#[derive(Debug, Clone)]
pub(crate) struct Latencies(Vec<u64>);

impl Latencies {
    pub(crate) fn new() -> Self {
        Self(vec![0; 1 + step(Duration::from_secs(600))])
    }

    pub(crate) fn add(&mut self, latency: Duration) {
        let last = self.0.len() - 1;
        self.0[step(latency).min(last)] += 1;
    }

    /// The time in microseconds that this share of the responses took at most; 0 without any.
    pub(crate) fn quantile_us(&self, share: f64) -> f64 {
        let wanted = self.0.iter().sum::<u64>() as f64 * share;
        let mut seen = 0;
        for (step, count) in self.0.iter().enumerate() {
            seen += count;
            if seen > 0 && seen as f64 >= wanted {
                return ((step as f64 + 0.5) / STEPS).exp() / 10.0;
            }
        }
        0.0
    }
}

/// The step of a time.
fn step(latency: Duration) -> usize {
    ((latency.as_secs_f64() * 1e7).max(1.0).ln() * STEPS) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_within_two_percent() {
        let mut latencies = Latencies::new();
        assert_eq!(latencies.quantile_us(0.5), 0.0);
        for us in 1..=1000 {
            latencies.add(Duration::from_micros(us));
        }
        for share in [0.5, 0.99] {
            let ratio = latencies.quantile_us(share) / (share * 1000.0);
            assert!((0.98..1.02).contains(&ratio), "{share}: {ratio}");
        }
        latencies.add(Duration::from_secs(6000));
    }
}
