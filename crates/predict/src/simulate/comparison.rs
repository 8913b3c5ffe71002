//! Simulated settings beside each other.

use netsilo_stats::Estimate;
use serde::Serialize;

use crate::comparison::{Comparison, Predicted};
use crate::simulate::run::{Options, Simulated};
use crate::simulate::timeline::Timeline;

/// Simulations of several settings for one load.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SimulatedComparison {
    /// What a rate counts: `transactions/s` or `packets/s`.
    pub unit: &'static str,
    /// The setting that the others are compared with.
    pub against: String,
    /// Simulated time (s).
    pub seconds: f64,
    /// Each setting.
    pub settings: Vec<SimulatedSetting>,
}

/// What the simulation of one setting shows.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SimulatedSetting {
    /// As the analytic form has it, with simulated values. The intervals are as wide as those of
    /// the analytic form, which are from the uncertainty of the parameters.
    #[serde(flatten)]
    pub predicted: Predicted,
    /// The rate by the analytic form.
    pub analytic_rate: f64,
    /// Standard error of the simulated rate.
    pub rate_error: f64,
    /// Half of the transactions or packets take longer (us); absent if none was completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<f64>,
    /// 1 % of the transactions or packets take longer (us).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f64>,
    /// Packets per second that found a ring, a backlog or a transmit queue full.
    pub lost_per_s: f64,
    /// How each CPU spends its time.
    pub timeline: Timeline,
}

impl SimulatedComparison {
    /// Puts simulations of the settings of `analytic`, in their order, in place of its values.
    pub fn new(analytic: Comparison, simulated: Vec<Simulated>, options: &Options) -> Self {
        let other = simulated.first().map_or(0.0, |first| first.prediction.rate);
        let settings = analytic.settings.into_iter().zip(simulated);
        Self {
            unit: analytic.unit,
            against: analytic.against,
            seconds: options.seconds,
            settings: settings.map(|(analytic, own)| setting(analytic, own, other)).collect(),
        }
    }
}

fn setting(analytic: Predicted, simulated: Simulated, other_rate: f64) -> SimulatedSetting {
    let prediction = simulated.prediction;
    let rate = prediction.rate;
    let gain = analytic.gain.map(|gain| around(gain, rate / other_rate - 1.0, 1.0));
    SimulatedSetting {
        analytic_rate: analytic.rate.value,
        rate_error: simulated.rate_error,
        p50_us: simulated.latency.map(|latency| latency.p50_us),
        p99_us: simulated.latency.map(|latency| latency.p99_us),
        lost_per_s: simulated.lost,
        timeline: simulated.timeline,
        predicted: Predicted {
            name: analytic.name,
            rate: around(analytic.rate, rate, 0.0),
            gain,
            is_clear: gain.is_some_and(|gain| !gain.contains(0.0)),
            latency_us: prediction.latency_us,
            ipis_per_s: prediction.ipis,
            interrupts_per_s: prediction.interrupts,
            bottleneck: prediction.bottleneck,
            cpus: prediction.cpus,
        },
    }
}

/// An interval around `value` that is as wide as `estimate`, as factors of the value and `base`.
fn around(estimate: Estimate, value: f64, base: f64) -> Estimate {
    let factor = (value + base) / (estimate.value + base);
    let scaled = |end: f64| (end + base) * factor - base;
    Estimate { value, low: scaled(estimate.low), high: scaled(estimate.high) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_keeps_its_width_as_a_factor() {
        let analytic = Estimate { value: 1.0, low: 0.5, high: 3.0 };
        let rate = Estimate { value: 2.0, low: 1.0, high: 6.0 };
        assert_eq!(around(analytic, 2.0, 0.0), rate);
        // a gain of +100 % (+50 % to +300 %) is a factor of 2 (1.5 to 4)
        let gain = Estimate { value: 3.0, low: 2.0, high: 7.0 };
        assert_eq!(around(analytic, 3.0, 1.0), gain);
    }
}
