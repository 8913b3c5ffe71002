//! The host as a whole.

use std::collections::BTreeSet;

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::forwarding::ForwardTotals;
use netsilo_model::derive::locality::Locality;
use netsilo_model::derive::silo::OutsideTraffic;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::snapshot::attribution::AttributionSource;
use serde::{Deserialize, Serialize};

/// Sums over all netdevs and readers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HostTotals {
    /// Payload bytes read per second, from all sources; `None` if consumers were not counted.
    pub bytes_per_s: Option<f64>,
    /// Packets polled from queues per second; `None` if polls were not counted.
    pub packets_per_s: Option<f64>,
    /// Interrupts of rx queues per second.
    pub interrupts_per_s: f64,
    /// Locality of all bytes that a queue received.
    pub locality: Locality,
    /// Data that no NIC received.
    pub local: OutsideTraffic,
    /// Data from a NIC of another network namespace.
    pub foreign: OutsideTraffic,
    /// Data whose queue was not found.
    pub unresolved: OutsideTraffic,
    /// Share of the read bytes whose queue was not found.
    pub unresolved_share: Option<f64>,
    /// Forwarded packets; the other totals exclude them.
    #[serde(default)]
    pub forwarded: ForwardTotals,
    /// Netdevs of other network namespaces whose NAPIs were polled, most packets first.
    #[serde(default)]
    pub polled_elsewhere: Vec<PolledElsewhere>,
}

/// A netdev of another network namespace whose NAPIs this machine polled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PolledElsewhere {
    /// Inode number of the namespace.
    pub netns: u32,
    /// The netdev's name there.
    pub netdev: String,
    /// Packets that the polls returned per second.
    pub packets_per_s: f64,
    /// The CPUs that polled.
    pub cpus: CpuSet,
}

/// The totals of an analysis.
pub(super) fn totals(analysis: &Analysis<'_>) -> HostTotals {
    let (silos, attribution) = (&analysis.silos, &analysis.observation.attribution);
    let by_queue: f64 = silos.queues.iter().filter_map(|silo| silo.bytes_per_s).sum();
    let elsewhere = [&silos.local, &silos.foreign, &silos.unresolved]
        .map(|e| e.bytes_per_s)
        .iter()
        .sum::<f64>();
    let counted = attribution.source != AttributionSource::None && !attribution.elapsed.is_zero();
    let all = by_queue + elsewhere;
    // sock_diag sees TCP of visible processes only: no such bytes are not 0 bytes.
    let sees_all = attribution.source == AttributionSource::Bpf;
    let bytes = (counted && (sees_all || all > 0.0)).then_some(all);
    let polled = silos.queues.iter().filter_map(|silo| silo.packets_per_s);
    let is_whole = silos.queues.iter().all(|silo| silo.not_counted.is_none());
    let mut seen = BTreeSet::new();
    let interrupts =
        silos.queues.iter().filter(|silo| silo.irq.as_ref().is_some_and(|irq| seen.insert(irq.to)));
    HostTotals {
        bytes_per_s: bytes,
        packets_per_s: (is_whole && polled.clone().count() > 0).then(|| polled.sum()),
        interrupts_per_s: interrupts
            .flat_map(|silo| silo.interrupts_per_s.iter().flatten())
            .map(|(_, rate)| rate)
            .sum(),
        locality: silos.locality(),
        local: silos.local.clone(),
        foreign: silos.foreign.clone(),
        unresolved: silos.unresolved.clone(),
        forwarded: silos.forwarded.clone(),
        unresolved_share: bytes
            .filter(|bytes| *bytes > 0.0)
            .map(|bytes| silos.unresolved.bytes_per_s / bytes),
        polled_elsewhere: polled_elsewhere(analysis),
    }
}

fn polled_elsewhere(analysis: &Analysis<'_>) -> Vec<PolledElsewhere> {
    let (machine, attribution) = (&analysis.after().machine, &analysis.observation.attribution);
    let seconds = attribution.elapsed.as_secs_f64();
    let mut all: Vec<PolledElsewhere> = Vec::new();
    let elsewhere = attribution.polls.iter().filter(|poll| !machine.is_own_netns(poll.netns));
    // without a NAPI's id it is a backlog or only sends
    for poll in elsewhere.filter(|poll| poll.napi.0 != 0 && poll.packets > 0 && seconds > 0.0) {
        let rate = poll.packets as f64 / seconds;
        let same = |it: &&mut PolledElsewhere| it.netns == poll.netns && it.netdev == poll.netdev;
        match all.iter_mut().find(same) {
            Some(it) => {
                it.packets_per_s += rate;
                it.cpus.insert(poll.cpu);
            }
            None => all.push(PolledElsewhere {
                netns: poll.netns,
                netdev: poll.netdev.clone(),
                packets_per_s: rate,
                cpus: CpuSet::from_cpu(poll.cpu),
            }),
        }
    }
    all.sort_by(|a, b| b.packets_per_s.total_cmp(&a.packets_per_s));
    all
}

#[cfg(test)]
mod tests {
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::machine::cpuset::CpuId;
    use netsilo_model::machine::ids::NapiId;
    use netsilo_model::snapshot::attribution::Poll;
    use netsilo_model::synthetic::scene::Scene;

    use super::*;

    #[test]
    fn netdevs_of_other_namespaces_are_told_apart_by_namespace() {
        let mut observation = Scene::default().observation();
        observation.before.machine.netns = 1;
        observation.after.machine.netns = 1;
        let seconds = observation.attribution.elapsed.as_secs();
        let mut polled = |napi, netns, cpu, packets| {
            observation.attribution.polls.push(Poll {
                napi: NapiId(napi),
                netdev: "eth0".into(),
                ifindex: 2,
                netns,
                cpu: CpuId(cpu),
                polls: 1,
                packets: packets * seconds,
                ns: None,
            });
        };
        for (napi, netns, cpu, packets) in
            [(8193, 1, 0, 9), (0, 2, 0, 9), (8194, 2, 0, 1), (8195, 2, 1, 2), (8196, 3, 1, 5)]
        {
            polled(napi, netns, cpu, packets);
        }
        let all = totals(&Analysis::new(&observation, &Costs::default())).polled_elsewhere;
        let all: Vec<_> =
            all.iter().map(|it| (it.netns, it.packets_per_s, it.cpus.to_string())).collect();
        assert_eq!(all, [(3, 5.0, "1".into()), (2, 3.0, "0-1".into())]);
    }
}
