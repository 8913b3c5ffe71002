//! How sure a prediction is: the same prediction for many draws of the parameters.

use fastrand::Rng;
use netsilo_trial::stats::Estimate;

use crate::parameters::{Table, Values};
use crate::predict;
use crate::prediction::Prediction;
use crate::scenario::{Scenario, Setting};

/// A number with the interval that contains nine of ten draws of the parameters.
fn estimate(value: f64, mut draws: Vec<f64>) -> Estimate {
    draws.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| {
        let index = (share * draws.len().saturating_sub(1) as f64).round() as usize;
        draws.get(index).copied().unwrap_or(value)
    };
    Estimate { value, low: at(0.05).min(value), high: at(0.95).max(value) }
}

/// What one setting gives, compared with another.
#[derive(Debug, Clone, PartialEq)]
pub struct Expected {
    /// With the fitted parameters.
    pub prediction: Prediction,
    /// Transactions, packets or bits per second.
    pub rate: Estimate,
    /// Relative change of the rate against the other setting (1 is +100 %).
    pub gain: Estimate,
    /// Share of each CPU's time that the kernel books as softirq.
    pub booked_softirq: Vec<Estimate>,
}

/// Draws of the parameters, the same ones for all settings, so that what settings have in common
/// does not blur their difference.
pub struct Draws {
    /// The fitted parameters.
    pub(crate) fitted: Values,
    draws: Vec<(Values, Errors)>,
}

/// What the model itself is off by, in one draw: factors, and a share of a CPU's time.
struct Errors {
    rate: f64,
    gain: f64,
    softirq: f64,
}

impl Draws {
    /// As many draws as an interval that is printed is from.
    pub const USUAL: usize = 200;

    /// Makes `count` draws.
    pub fn new(table: &Table, count: usize, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut normal = move || normal(&mut rng);
        let draws = (0..count)
            .map(|_| {
                let values = table.draw(&mut normal);
                let (rate, gain, softirq) = (normal(), normal(), normal());
                let errors = Errors {
                    rate: (table.error.rate * rate).exp(),
                    gain: (table.error.gain * gain).exp(),
                    softirq: table.error.softirq * softirq,
                };
                (values, errors)
            })
            .collect();
        Self { fitted: table.values(), draws }
    }

    /// Predicts `scenario` under `setting`, compared with `other`.
    pub fn expect(&self, scenario: &Scenario, setting: &Setting, other: &Setting) -> Expected {
        let prediction = predict(scenario, setting, &self.fitted);
        let beside = predict(scenario, other, &self.fitted);
        let same = setting == other;
        let cpus = prediction.cpus.len();
        let (mut rates, mut gains) = (Vec::new(), Vec::new());
        let mut softirqs = vec![Vec::with_capacity(self.draws.len()); cpus];
        for (values, errors) in &self.draws {
            let drawn = predict(scenario, setting, values);
            let against = if same { drawn.rate } else { predict(scenario, other, values).rate };
            rates.push(drawn.rate * errors.rate);
            let error = if same { 1.0 } else { errors.gain };
            gains.push(drawn.rate / against * error - 1.0);
            for (softirqs, cpu) in softirqs.iter_mut().zip(&drawn.cpus) {
                softirqs.push((cpu.booked_softirq + errors.softirq).clamp(0.0, 1.0));
            }
        }
        Expected {
            rate: estimate(prediction.rate, rates),
            gain: estimate(prediction.rate / beside.rate - 1.0, gains),
            booked_softirq: (prediction.cpus.iter().zip(softirqs))
                .map(|(cpu, draws)| estimate(cpu.booked_softirq, draws))
                .collect(),
            prediction,
        }
    }
}

/// A standard normal number (Box and Muller).
fn normal(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * rng.f64().max(f64::MIN_POSITIVE).ln()).sqrt();
    radius * (2.0 * std::f64::consts::PI * rng.f64()).cos()
}
