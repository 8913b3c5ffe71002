//! The silos of a map as a flow graph: from queues through interrupts and CPUs to consumers.
//!
//! Each silo gives the rates at every stage, but not the path of single packets. So packets of a
//! queue are split in proportion (to polls by CPU, to bytes by reader and by the reader's CPU).

use std::collections::BTreeMap;

use netsilo_model::derive::silo::Silo;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use serde::{Deserialize, Serialize};

use crate::experiment::records::SiloMap;

/// A stage on the path of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum HopStage {
    /// An rx queue.
    Queue,
    /// Its interrupt.
    Irq,
    /// The CPU that polls it.
    Polled,
    /// The CPU that runs the protocol; only where RPS makes it differ from the polling CPU.
    Protocol,
    /// The CPU on which the consumer reads.
    Read,
    /// The consumer, or the device that forwards the packet.
    Consumer,
}

/// A node of the graph.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Hop {
    /// The stage of the node.
    pub stage: HopStage,
    /// Display order within the stage: index of the queue, number of the interrupt or CPU.
    pub order: u32,
    /// Display name, unique in the graph.
    pub name: String,
}

/// An edge of the graph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HopLink {
    /// The source node, as an index into the places.
    pub from: usize,
    /// The destination node, as an index into the places.
    pub to: usize,
    /// Rate of the edge; see [`FlowMap::in_packets`] for the unit.
    pub per_s: f64,
}

/// The path of packets under a setting and a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FlowMap {
    /// Name of the load.
    pub load: String,
    /// Name of the setting.
    pub setting: String,
    /// Whether links are packets per second; otherwise, without poll counts, interrupts per second.
    pub in_packets: bool,
    /// All nodes, grouped by stage.
    #[serde(rename = "places")]
    pub hops: Vec<Hop>,
    /// All edges.
    pub links: Vec<HopLink>,
}

impl FlowMap {
    /// Builds the graph of a map.
    pub(super) fn from_map(map: &SiloMap) -> Self {
        let queues = &map.silos.queues;
        let in_packets = queues.iter().any(|silo| silo.packets_per_s.is_some());
        let mut links: BTreeMap<(Hop, Hop), f64> = BTreeMap::new();
        let steered = queues.iter().any(is_steered);
        for (at, silo) in queues.iter().enumerate() {
            follow(silo, at as u32, in_packets, steered, &mut |from, to, per_s| {
                if per_s > 0.0 && per_s.is_finite() {
                    *links.entry((from.clone(), to.clone())).or_default() += per_s;
                }
            });
        }
        let mut hops: Vec<Hop> =
            links.keys().flat_map(|(from, to)| [from.clone(), to.clone()]).collect();
        hops.sort_unstable();
        hops.dedup();
        let index = |place: &Hop| hops.binary_search(place).unwrap_or_default();
        let links = links.iter().map(|((from, to), per_s)| HopLink {
            from: index(from),
            to: index(to),
            per_s: *per_s,
        });
        let links = links.collect();
        Self { load: map.load.clone(), setting: map.setting.clone(), in_packets, hops, links }
    }
}

/// Whether the protocol runs on a CPU other than the polling one.
fn is_steered(silo: &Silo) -> bool {
    let polls: CpuSet = silo.polls.keys().copied().collect();
    !polls.is_empty() && silo.protocol_cpus.keys().any(|cpu| !polls.contains(*cpu))
}

/// Passes each edge of a queue's packets to `step`.
fn follow(
    silo: &Silo,
    at: u32,
    in_packets: bool,
    steered: bool,
    step: &mut impl FnMut(&Hop, &Hop, f64),
) {
    let interrupts = silo.interrupts_per_s.clone().unwrap_or_default();
    let all =
        if in_packets { silo.packets_per_s.unwrap_or(0.0) } else { interrupts.values().sum() };
    let queue = Hop { stage: HopStage::Queue, order: at, name: silo.label() };
    let irq = silo.irq.as_ref().map(|irq| irq.to.0);
    let irq_name = irq.map_or_else(|| "irq unknown".to_owned(), |irq| format!("irq {irq}"));
    let irq = Hop { stage: HopStage::Irq, order: irq.unwrap_or(u32::MAX), name: irq_name };
    step(&queue, &irq, all);
    let polls: BTreeMap<CpuId, f64> = if in_packets {
        silo.polls.iter().map(|(cpu, poll)| (*cpu, poll.packets_per_s)).collect()
    } else {
        interrupts
    };
    for (polled, share) in shares(&polls) {
        let polled = on(HopStage::Polled, polled);
        step(&irq, &polled, all * share);
        let protocol =
            if silo.protocol_cpus.is_empty() { Vec::new() } else { shares(&silo.protocol_cpus) };
        if !steered || protocol.is_empty() {
            leave(silo, &polled, all * share, step);
            continue;
        }
        for (protocol, part) in protocol {
            let protocol = on(HopStage::Protocol, protocol);
            step(&polled, &protocol, all * share * part);
            leave(silo, &protocol, all * share * part, step);
        }
    }
}

/// Adds the edges from the CPU that processed a queue's packets to their consumers and egress
/// devices.
fn leave(silo: &Silo, from: &Hop, packets: f64, step: &mut impl FnMut(&Hop, &Hop, f64)) {
    for consumer in &silo.consumers {
        let who = Hop { stage: HopStage::Consumer, order: 0, name: consumer.comm.clone() };
        for (cpu, share) in shares(&consumer.cpus) {
            let read = on(HopStage::Read, cpu);
            step(from, &read, packets * consumer.share * share);
            step(&read, &who, packets * consumer.share * share);
        }
    }
    for forward in &silo.forwards {
        let to = Hop {
            stage: HopStage::Consumer,
            order: 1,
            name: format!("sent by {}", forward.label()),
        };
        step(from, &to, packets * forward.share);
    }
}

fn on(stage: HopStage, cpu: CpuId) -> Hop {
    let verb = match stage {
        HopStage::Polled => "polled",
        HopStage::Protocol => "protocol",
        _ => "read",
    };
    Hop { stage, order: cpu.0, name: format!("{verb} on cpu {cpu}") }
}

/// Each value as a share of the sum; empty when all are 0.
fn shares(parts: &BTreeMap<CpuId, f64>) -> Vec<(CpuId, f64)> {
    let all: f64 = parts.values().sum();
    parts.iter().filter(|_| all > 0.0).map(|(cpu, part)| (*cpu, part / all)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsilo_model::derive::rates::rates;
    use netsilo_model::derive::silos::silos;
    use netsilo_model::synthetic::scene::Scene;

    fn map(scene: &str) -> FlowMap {
        let scene: Scene = serde_json::from_str(scene).unwrap();
        let observation = scene.observation();
        let silos = silos(&observation, &rates(&observation.before, &observation.after));
        FlowMap::from_map(&SiloMap {
            load: "a".into(),
            setting: "none".into(),
            silos,
            sampled: None,
        })
    }

    fn edges(map: &FlowMap) -> Vec<String> {
        let name = |at: usize| &map.hops[at].name;
        map.links
            .iter()
            .map(|it| format!("{} > {} {:.0}", name(it.from), name(it.to), it.per_s))
            .collect()
    }

    #[test]
    fn edges_lead_from_queue_over_irq_and_cpus_to_readers() {
        let map = map(
            r#"{ "grid": { "l2s": 4 }, "netdevs": [{ "name": "eth0", "driver": "igb", "queues": [
            { "irq": 41, "cpus": "0", "packets_per_s": 9000, "load": 0.1, "readers": [
                { "comm": "redis", "cpu": 3, "bytes_per_s": 3000 },
                { "comm": "nginx", "cpu": 0, "bytes_per_s": 1000 }] },
            { "irq": 42, "cpus": "1", "packets_per_s": 1000, "load": 0.1, "readers": [
                { "comm": "redis", "cpu": 3, "bytes_per_s": 500 }] }] }] }"#,
        );
        assert!(map.in_packets);
        insta::assert_snapshot!(edges(&map).join("\n"), @r"
        eth0 rx-0 > irq 41 9000
        eth0 rx-1 > irq 42 1000
        irq 41 > polled on cpu 0 9000
        irq 42 > polled on cpu 1 1000
        polled on cpu 0 > read on cpu 0 2250
        polled on cpu 0 > read on cpu 3 6750
        polled on cpu 1 > read on cpu 3 1000
        read on cpu 0 > nginx 2250
        read on cpu 3 > redis 7750
        ");
    }

    #[test]
    fn forwarded_packets_lead_to_the_egress_device() {
        let map = map(
            r#"{ "grid": { "l2s": 2 }, "netdevs": [{ "name": "eth0", "driver": "igb", "queues": [
            { "irq": 41, "cpus": "0", "packets_per_s": 9000, "load": 0.1, "forwards": [
                { "to": "eth1", "queue": 2, "packets_per_s": 9000, "bytes_per_s": 900000 }] }] },
            { "name": "eth1", "driver": "igb", "queues": [{ "irq": 51, "cpus": "1" }] }] }"#,
        );
        insta::assert_snapshot!(edges(&map).join("\n"), @r"
        eth0 rx-0 > irq 41 9000
        irq 41 > polled on cpu 0 9000
        polled on cpu 0 > sent by eth1 tx-2 9000
        ");
    }

    #[test]
    fn under_rps_the_protocol_cpu_is_its_own_stage() {
        let polls = |cpu| {
            (
                CpuId(cpu),
                netsilo_model::derive::silo::PollRate {
                    polls_per_s: 1.0,
                    packets_per_s: 100.0,
                    time_share: None,
                },
            )
        };
        let consumer = netsilo_model::derive::silo::ConsumerShare {
            comm: "redis".into(),
            share: 1.0,
            cpus: [(CpuId(3), 1.0)].into(),
            ..Default::default()
        };
        let silo = Silo {
            queue: Some(0),
            packets_per_s: Some(100.0),
            polls: [polls(0)].into(),
            protocol_cpus: [(CpuId(2), 0.75), (CpuId(3), 0.25)].into(),
            consumers: vec![consumer],
            ..Silo::default()
        };
        let silos = netsilo_model::derive::silo::Silos { queues: vec![silo], ..Default::default() };
        let map = FlowMap::from_map(&SiloMap {
            load: "a".into(),
            setting: "rps".into(),
            silos,
            sampled: None,
        });
        insta::assert_snapshot!(edges(&map).join("\n"), @r"
         rx-0 > irq unknown 100
        irq unknown > polled on cpu 0 100
        polled on cpu 0 > protocol on cpu 2 75
        polled on cpu 0 > protocol on cpu 3 25
        protocol on cpu 2 > read on cpu 3 75
        protocol on cpu 3 > read on cpu 3 25
        read on cpu 3 > redis 100
        ");
    }
}
