//! Properties of receive work that decide what a setting can move: which part of a softirq another
//! CPU can take, which data RFS can steer, and which readers stay.

use std::collections::BTreeMap;

use crate::machine::cpuset::{CpuId, CpuSet};
use crate::snapshot::attribution::{Attribution, Consumption, Protocol};
use crate::snapshot::stage_samples::ReceiveStage;

/// Fewest samples of stages that say how a softirq is divided.
const LEAST_SAMPLES: f64 = 50.0;
/// Standard errors that bound a sampled share in 95 of 100 cases.
const DEVIATIONS: f64 = 2.0;
/// Least share of all data that readers pinned to the same CPUs read, for their CPUs to limit the
/// load.
const LEAST_PINNED: f64 = 0.05;

/// A share that was not measured exactly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// The least that fits what was measured.
    pub least: f64,
    /// The most likely.
    pub likely: f64,
    /// The most that fits.
    pub most: f64,
}

impl Bounds {
    /// The share of samples that are hits, with Wilson's interval. There must be a sample.
    pub fn of_samples(hits: u64, all: u64) -> Self {
        let (all, share) = (all as f64, hits as f64 / all as f64);
        let shrunk = DEVIATIONS * DEVIATIONS / all;
        let middle = (share + shrunk / 2.0) / (1.0 + shrunk);
        let variance = (share * (1.0 - share) + shrunk / 4.0) / all;
        let error = DEVIATIONS * variance.sqrt() / (1.0 + shrunk);
        Self { least: (middle - error).max(0.0), likely: share, most: (middle + error).min(1.0) }
    }
}

/// The sampled division of softirqs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MovableShare {
    /// The share after driver and GRO, which RPS can take to another CPU.
    pub share: Bounds,
    /// Number of samples.
    pub samples: f64,
}

/// The share of the softirqs on these CPUs after driver and GRO; `None` with too few samples of
/// stages.
///
/// Samples of unknown functions may belong to either part; they are likely to be divided as the
/// known ones are.
pub fn movable_share<'a>(
    attribution: &Attribution,
    cpus: impl Iterator<Item = &'a CpuId>,
) -> Option<MovableShare> {
    let stages = attribution.stages.as_ref().filter(|stages| stages.refused.is_none())?;
    let mut by_stage: BTreeMap<ReceiveStage, f64> = BTreeMap::new();
    for (stage, samples) in cpus.filter_map(|cpu| stages.cpus.get(cpu)).flatten() {
        *by_stage.entry(*stage).or_default() += *samples as f64;
    }
    let of = |stage: ReceiveStage| by_stage.get(&stage).copied().unwrap_or(0.0);
    let all: f64 = by_stage.values().sum();
    let unknown = of(ReceiveStage::Other);
    let stays =
        [ReceiveStage::DriverGro, ReceiveStage::DmaMapping, ReceiveStage::TxCompletion].map(of);
    let moves = all - unknown - stays.iter().sum::<f64>();
    if all < LEAST_SAMPLES || all <= unknown {
        return None;
    }
    let error = |share: f64| DEVIATIONS * (share * (1.0 - share) / all).sqrt();
    let (least, most) = (moves / all, (moves + unknown) / all);
    let share = Bounds {
        least: (least - error(least)).max(0.0),
        likely: moves / (all - unknown),
        most: (most + error(most)).min(1.0),
    };
    Some(MovableShare { share, samples: all })
}

/// The share of what was read that RFS can steer: that of connected sockets. `None` where nothing
/// was read.
pub fn steerable_share<'a>(rows: impl Iterator<Item = &'a Consumption>) -> Option<Bounds> {
    let (mut all, mut connected, mut unknown) = (0.0, 0.0, 0.0);
    for row in rows {
        let bytes = row.bytes as f64;
        all += bytes;
        match (row.protocol, row.connected) {
            (Protocol::Tcp, _) | (_, Some(true)) => connected += bytes,
            (Protocol::Udp, None) => unknown += bytes,
            // RFS records the hash of TCP's and UDP's packets only.
            _ => {}
        }
    }
    (all > 0.0).then(|| Bounds {
        least: connected / all,
        likely: (connected + unknown / 2.0) / all,
        most: (connected + unknown) / all,
    })
}

/// The sets of CPUs to which readers are pinned that read a good part of the data.
pub fn pinned_readers(attribution: &Attribution) -> Vec<CpuSet> {
    let mut bytes: Vec<(&CpuSet, f64)> = Vec::new();
    for row in attribution.consumption.iter().filter(|row| row.bytes > 0) {
        let Some(cpus) = attribution.pinned.get(&row.consumer.tgid) else { continue };
        match bytes.iter_mut().find(|(known, _)| *known == cpus) {
            Some((_, sum)) => *sum += row.bytes as f64,
            None => bytes.push((cpus, row.bytes as f64)),
        }
    }
    let all: f64 = attribution.consumption.iter().map(|row| row.bytes as f64).sum();
    bytes.retain(|(_, bytes)| *bytes >= LEAST_PINNED * all);
    bytes.into_iter().map(|(cpus, _)| cpus.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_samples_bound_a_share_more_closely() {
        let percent = |hits, all| {
            let it = Bounds::of_samples(hits, all);
            [it.least, it.likely, it.most].map(|share| (share * 100.0).round())
        };
        assert_eq!(percent(4, 13), [12.0, 31.0, 58.0]);
        assert_eq!(percent(40, 100), [31.0, 40.0, 50.0]);
        assert_eq!(percent(400, 1000), [37.0, 40.0, 43.0]);
        assert_eq!([percent(0, 1), percent(5, 5)], [[0.0, 0.0, 80.0], [56.0, 100.0, 100.0]]);
    }
}
