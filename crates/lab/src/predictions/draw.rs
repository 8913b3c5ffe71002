//! Random loads, and random settings for each.

use fastrand::Rng;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};

use crate::veths::VethSetting;
use crate::wire::{CLIENT_CPU, SERVER_CPU, cpus_of};

/// Settings of each load, apart from the current one.
pub(super) const SETTINGS: usize = 5;

/// A load of `netsilo-bench run`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RandomLoad {
    /// `TCP_RR`, `UDP_RR` or `TCP_STREAM`.
    pub(super) test: String,
    pub(super) instances: u32,
    /// Bytes of request and response; 0 for a stream.
    pub(super) bytes: u32,
    /// The server's work per request.
    pub(super) work_us: u32,
}

impl RandomLoad {
    pub(super) fn name(&self) -> String {
        let Self { test, instances, bytes, work_us } = self;
        match bytes {
            0 => format!("{test} x {instances}"),
            _ => format!("{test} x {instances}, {bytes} B, {work_us} us"),
        }
    }

    pub(super) fn arguments(&self) -> String {
        let Self { test, instances, bytes, .. } = self;
        match bytes {
            0 => format!("-t {test} -n {instances}"),
            _ => format!("-t {test} -n {instances} -r {bytes}"),
        }
    }
}

/// A setting of a veth with one kthread, in words.
pub(super) fn words(setting: &VethSetting) -> String {
    let VethSetting { kthreads, rps } = setting;
    let rps = if *rps == 0 { "off".to_owned() } else { cpus_of(*rps).to_string() };
    let cpus: CpuSet = kthreads.iter().copied().map(CpuId).collect();
    format!("polled on {cpus}, RPS {rps}")
}

/// The name of a load, with the numbers from which it is drawn.
pub(super) fn name(seed: u64, number: usize, load: &str) -> String {
    format!("{seed}-{number:03}: {load}")
}

/// The load with this number, the current setting, and those to be predicted.
pub(super) fn draw(seed: u64, number: usize) -> (RandomLoad, Vec<VethSetting>) {
    let mut rng = Rng::with_seed(seed.wrapping_mul(1_000_003).wrapping_add(number as u64));
    let test = ["TCP_RR", "TCP_RR", "TCP_RR", "UDP_RR", "UDP_RR", "TCP_STREAM"];
    let test = test[rng.usize(..test.len())].to_owned();
    // Evenly over the magnitudes, because all sizes matter equally.
    let mut between = |least: f64, most: f64| (least * (most / least).powf(rng.f64())) as u32;
    let load = match test.as_str() {
        "TCP_STREAM" => RandomLoad { test, instances: between(1.0, 9.0), bytes: 0, work_us: 0 },
        _ => {
            // With fewer instances, latency limits the rate, not the CPUs.
            let (instances, bytes) = (between(16.0, 257.0), between(1.0, 1400.0));
            // Half of the servers only answer.
            let work_us = between(0.01, 300.0);
            RandomLoad { test, instances, bytes, work_us }
        }
    };
    let mut settings: Vec<VethSetting> = Vec::new();
    for poll in [SERVER_CPU, CLIENT_CPU] {
        settings.extend((0..4).map(|rps| VethSetting { kthreads: vec![poll], rps }));
    }
    rng.shuffle(&mut settings);
    settings.truncate(SETTINGS + 1);
    (load, settings)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_seed_gives_the_same_pairs_and_none_twice() {
        for number in 0..50 {
            let (load, settings) = draw(7, number);
            assert_eq!((&load, &settings), (&draw(7, number).0, &draw(7, number).1));
            let names: BTreeSet<String> = settings.iter().map(words).collect();
            assert_eq!(names.len(), SETTINGS + 1);
            assert!((1..=256).contains(&load.instances) && load.work_us < 300, "{load:?}");
        }
        assert_ne!(draw(7, 0), draw(8, 0));
    }
}
