//! Known results that the model and its simulation are held to.

/// Throughput of `customers` who think for `think` and share one server, `demand` each: exact mean
/// value analysis (Reiser and Lavenberg, 1980), which for exponential times is the machine
/// repairman. With processor sharing it holds for any distribution of both times.
pub(crate) fn repairman(customers: u32, think: f64, demand: f64) -> f64 {
    let (mut queue, mut rate) = (0.0, 0.0);
    for population in 1..=customers {
        let residence = demand * (1.0 + queue);
        rate = f64::from(population) / (think + residence);
        queue = rate * residence;
    }
    rate
}
