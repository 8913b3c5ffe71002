//! Noise for simulations in tests.

use fastrand::Rng;

/// A kind of noise around 0, each with its own skew and tails.
#[derive(Debug, Clone, Copy)]
pub enum Noise {
    /// Gaussian, variance 1.
    Normal,
    /// Skewed, like measured times.
    LogNormal,
    /// Student's distribution with 2 degrees of freedom: infinite variance.
    Heavy,
    /// Mostly small values; one in ten is far away.
    Spikes,
}

impl Noise {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Normal, Self::LogNormal, Self::Heavy, Self::Spikes];

    /// Draws one value.
    pub fn sample(self, rng: &mut Rng) -> f64 {
        let normal = normal(rng);
        match self {
            Self::Normal => normal,
            Self::LogNormal => normal.exp(),
            Self::Heavy => normal / (-rng.f64().max(f64::MIN_POSITIVE).ln()).sqrt(),
            Self::Spikes if rng.f64() < 0.1 => normal + 30.0,
            Self::Spikes => normal,
        }
    }
}

/// A normal sample, by the Box-Muller transform.
pub fn normal(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.f64()).cos()
}

/// The share of `simulations` in which `holds` is true.
pub fn share(simulations: u64, mut holds: impl FnMut(&mut Rng) -> bool) -> f64 {
    let held = (0..simulations).filter(|seed| holds(&mut Rng::with_seed(*seed))).count();
    held as f64 / simulations as f64
}
