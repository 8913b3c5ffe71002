//! Findings on tunnels and switch tags whose inner flows look like one flow to the NIC.

use std::collections::BTreeSet;

use netsilo_model::rss::model::flows_on;
use netsilo_model::snapshot::flow::{Flow, Outer};
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_model::snapshot::subject::Subject;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::finding::Finding;
use crate::judge::findings::id::FindingId;
use crate::judge::findings::judged::Judged;
use crate::judge::findings::rss::{
    ENOUGH_PACKETS, ONE_QUEUE, QueueConcentration, SOURCE, fields, hash_ports, relief, rps,
    severity, silo_of, spread_over,
};

/// Minimum share of a netdev's packets for a tunnel to be reported.
const MATTERS: f64 = 0.2;

/// One finding per netdev and kind of tunnel whose packets arrive on one queue.
pub(super) fn find(judged: &Judged<'_>) -> Vec<Finding> {
    let is_spread = |netdev: &&Netdev| !judged.has_one_cpu() && spread_over(netdev) > 1;
    let netdevs = judged.analysis.after().netdevs.iter().filter(is_spread);
    netdevs.flat_map(|netdev| of(judged, netdev)).collect()
}

fn of(judged: &Judged<'_>, netdev: &Netdev) -> Vec<Finding> {
    let flows: Vec<&Flow> = flows_on(judged.analysis.observation, netdev).collect();
    let all: u64 = flows.iter().map(|flow| flow.packets).fold(0, u64::saturating_add);
    let kinds: BTreeSet<Outer> =
        flows.iter().map(|flow| flow.outer).filter(|outer| outer.is_tunnel()).collect();
    let found = |kind: Outer| {
        let of_kind: Vec<&Flow> = flows.iter().copied().filter(|flow| flow.outer == kind).collect();
        let taken = QueueConcentration::of(of_kind.iter().copied())?;
        let rps_on = silo_of(judged.analysis, netdev, taken.queue)
            .is_some_and(|silo| silo.rps_cpus.as_ref().is_some_and(|cpus| !cpus.is_empty()));
        let matters = taken.all >= ENOUGH_PACKETS && taken.all as f64 >= MATTERS * all as f64;
        (matters && taken.share() >= ONE_QUEUE && !rps_on)
            .then(|| finding(judged, netdev, kind, &of_kind, &taken, all))
    };
    kinds.into_iter().filter_map(found).collect()
}

fn finding(
    judged: &Judged<'_>,
    netdev: &Netdev,
    kind: Outer,
    flows: &[&Flow],
    taken: &QueueConcentration,
    all: u64,
) -> Finding {
    let hashes: BTreeSet<Option<u32>> = flows.iter().map(|flow| flow.hash).collect();
    let hashed = match (hashes.len(), hashes.first()) {
        (1, Some(None)) => "none: the NIC does not hash this protocol".to_owned(),
        (1, _) => "one".to_owned(),
        (n, _) => n.to_string(),
    };
    Finding {
        id: FindingId::TunnelOneQueue,
        severity: severity(judged.analysis, silo_of(judged.analysis, netdev, taken.queue)),
        subject: Subject::Netdev(netdev.name.clone()),
        title: format!(
            "{kind}: {:.0}% of its packets arrive on rx-{}, regardless of the inner flows",
            taken.share() * 100.0,
            taken.queue
        ),
        evidence: vec![
            Evidence::new(
                format!("{kind} packets on rx-{}", taken.queue),
                Measure::Share(taken.share()),
                SOURCE,
            ),
            Evidence::new(format!("{kind} packets"), Measure::Count(taken.all), SOURCE),
            Evidence::new(
                "share of the netdev's packets",
                Measure::Share(taken.all as f64 / all.max(1) as f64),
                SOURCE,
            ),
            Evidence::new("outer flows", Measure::Count(taken.flows as u64), SOURCE),
            Evidence::new("different hashes from the NIC", Measure::Text(hashed), SOURCE),
        ],
        remedies: vec![remedy(judged, netdev, kind, flows, taken)],
    }
}

fn remedy(
    judged: &Judged<'_>,
    netdev: &Netdev,
    kind: Outer,
    flows: &[&Flow],
    taken: &QueueConcentration,
) -> Remedy {
    let advice = |what: &str, gain: Gain| Remedy {
        what: what.into(),
        gain,
        cost: None,
        not_when: None,
        changes: Vec::new(),
        interrupts_traffic: false,
    };
    match kind {
        Outer::Vxlan | Outer::Geneve => by_source_port(judged, netdev, kind, flows, taken),
        Outer::Gre | Outer::IpIp | Outer::SixInIp => rps(
            judged,
            netdev,
            taken.queue,
            "the kernel hashes the inner flow (a NIC that hashes inner headers would be better)",
        ),
        Outer::Pppoe | Outer::Dsa => rps(
            judged,
            netdev,
            taken.queue,
            "the kernel hashes the headers behind the one that the NIC does not parse",
        ),
        Outer::Esp | Outer::EspInUdp | Outer::Ah => advice(
            "use several tunnels between more addresses; RPS on the tunnel's own netdev spreads \
             the work after decryption",
            Gain::Unknown("neither the NIC nor RPS can see the encrypted inner flows".into()),
        ),
        _ => advice(
            "use a NIC that hashes inner headers (for GTP-U the tunnel id), or several outer \
             addresses",
            Gain::Unknown(
                "neither the NIC's hash nor that of RPS includes the inner headers".into(),
            ),
        ),
    }
}

/// VXLAN and Geneve derive the outer source port from the inner flow, so a hash with ports
/// separates the inner flows.
fn by_source_port(
    judged: &Judged<'_>,
    netdev: &Netdev,
    kind: Outer,
    flows: &[&Flow],
    taken: &QueueConcentration,
) -> Remedy {
    let v6 = flows.iter().any(|flow| flow.v6);
    let flow_type = kind.flow_type(v6).filter(|flow_type| fields(netdev, *flow_type).is_some());
    let reason = format!("{kind} derives its source port from the inner flow");
    let change = flow_type.and_then(|flow_type| hash_ports(netdev, flow_type, &reason));
    match (change, flow_type) {
        _ if taken.flows < 2 => Remedy {
            what: "nothing: the single source port shows a single inner flow".into(),
            gain: Gain::Nothing("packets of one flow stay on one queue to keep their order".into()),
            cost: None,
            not_when: None,
            changes: Vec::new(),
            interrupts_traffic: false,
        },
        (Some(change), Some(flow_type)) => Remedy {
            what: format!(
                "hash by ports: ethtool -N {} rx-flow-hash {flow_type} sdfn",
                netdev.name
            ),
            gain: relief(
                judged,
                silo_of(judged.analysis, netdev, taken.queue),
                std::slice::from_ref(&change),
            ),
            cost: Some("packets of flows in transit may be reordered once".into()),
            not_when: Some(
                "outer packets are fragmented: first raise the outer MTU or lower the inner MTU"
                    .into(),
            ),
            changes: vec![change],
            interrupts_traffic: false,
        },
        _ => rps(
            judged,
            netdev,
            taken.queue,
            "the kernel hashes ports, and the source port is derived from the inner flow",
        ),
    }
}
