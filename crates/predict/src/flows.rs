//! How many flows arrive, and how a hash divides them: the heaviest one stays on one CPU.

use std::collections::BTreeMap;

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::silo::Silo;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::rss::model;
use netsilo_model::snapshot::netdev::Netdev;

use crate::assumptions::End;
use crate::placement::Shares;

/// Minimum number of packets for a count of flows.
const FLOW_PACKETS: u64 = 100;

/// The number of flows and the weight of the heaviest one, which cannot be spread over CPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Flows {
    /// Lower bound of the number of flows.
    pub least: usize,
    /// Upper bound of the number of flows; `None` when nothing bounds it.
    pub most: Option<usize>,
    /// The heaviest flow's share of the packets: the greatest and the smallest that fit.
    pub heaviest: (f64, f64),
    /// The source of these values.
    pub source: &'static str,
}

impl Flows {
    /// The flows as counted on arrival, else bounds from the readers; `None` if neither was seen.
    pub fn of(analysis: &Analysis<'_>, netdev: &Netdev, silos: &[&Silo]) -> Option<Self> {
        let packets: Vec<u64> = model::flows_on(analysis.observation, netdev)
            .map(|flow| flow.packets)
            .filter(|it| *it > 0)
            .collect();
        let all = packets.iter().copied().fold(0, u64::saturating_add);
        let missed = analysis.observation.attribution.flows_missed;
        match packets.iter().max() {
            Some(most) if all >= FLOW_PACKETS => {
                let share = *most as f64 / (all as f64 + missed as f64);
                Some(Self {
                    least: packets.len(),
                    most: (missed == 0).then_some(packets.len()),
                    heaviest: (share, share),
                    source: "eBPF (flows that arrived)",
                })
            }
            _ => Self::of_readers(silos),
        }
    }

    /// Bounds from the readers: each reads at least one flow, and no flow exceeds its reader's
    /// bytes.
    fn of_readers(silos: &[&Silo]) -> Option<Self> {
        let mut read: BTreeMap<u32, f64> = BTreeMap::new();
        for consumer in silos.iter().flat_map(|silo| &silo.consumers) {
            *read.entry(consumer.tgid).or_default() += consumer.bytes_per_s;
        }
        let all: f64 = read.values().sum();
        let most = read.values().copied().fold(0.0, f64::max) / all.max(f64::MIN_POSITIVE);
        (read.len() > 1).then_some(Self {
            least: read.len(),
            most: None,
            heaviest: (most, 0.0),
            source: "readers, each with at least one flow",
        })
    }

    /// The heaviest flow's share.
    fn heaviest_at(&self, end: End) -> f64 {
        let (most, least) = self.heaviest;
        match end {
            End::Worst => most,
            End::Likely => f64::midpoint(most, least),
            End::Best => least,
        }
    }

    /// How many flows there are.
    fn count_at(&self, end: End) -> usize {
        if end == End::Worst { self.least } else { self.most.unwrap_or(usize::MAX) }
    }
}

/// The shares of CPUs over which a hash divides flows, the busiest CPU first. The heaviest flow is
/// not split: it goes to the busiest CPU, at best to the idlest one. No more CPUs than flows get
/// packets. Where flows were not counted there is one at worst, and at best they are even.
pub(crate) fn hashed(mut cpus: Vec<CpuId>, flows: Option<&Flows>, end: End) -> Shares {
    if end == End::Best {
        cpus.reverse();
    }
    let (count, heaviest) = match (flows, end) {
        (Some(flows), _) => (flows.count_at(end), flows.heaviest_at(end)),
        (None, End::Worst) => (1, 1.0),
        (None, _) => (usize::MAX, 0.0),
    };
    cpus.truncate(count.max(1));
    let first = heaviest.max(1.0 / cpus.len().max(1) as f64);
    let rest = (1.0 - first) / (cpus.len() as f64 - 1.0).max(1.0);
    let share = |(at, cpu)| (cpu, if at == 0 { first } else { rest });
    cpus.into_iter().enumerate().map(share).filter(|(_, share)| *share > 0.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heaviest_flow_is_not_split_and_no_more_cpus_than_flows_are_used() {
        let cpus = || (0..4).map(CpuId).collect::<Vec<_>>();
        let of = |shares: Shares| [0, 1, 2, 3].map(|cpu| shares.of(CpuId(cpu)));
        assert_eq!(of(hashed(cpus(), None, End::Likely)), [0.25; 4]);
        assert_eq!(of(hashed(cpus(), None, End::Worst)), [1.0, 0.0, 0.0, 0.0]);
        let flows = Flows { least: 3, most: Some(3), heaviest: (0.5, 0.5), source: "" };
        assert_eq!(of(hashed(cpus(), Some(&flows), End::Worst)), [0.5, 0.25, 0.25, 0.0]);
        assert_eq!(of(hashed(cpus(), Some(&flows), End::Best)), [0.0, 0.25, 0.25, 0.5]);
    }
}
