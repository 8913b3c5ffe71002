//! Many flows that look like one from outside: tunnels, and the tags of switches.

use std::collections::BTreeSet;

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::rss::model::flows_of;
use netsilo_model::snapshot::flow::{Flow, Outer};
use netsilo_model::snapshot::netdev::Netdev;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::rss::{Concentrated, ENOUGH_PACKETS, ONE_QUEUE, SOURCE, fields, hash_ports, relief, rps, severity, silo_of, spread_over};
use crate::judge::findings::{Finding, FindingId};

/// Less than this share of a netdev's packets is no reason to change anything.
const MATTERS: f64 = 0.2;

/// Each kind of tunnel that one queue of a netdev takes.
pub(super) fn find(seen: &Analysis<'_>) -> Vec<Finding> {
    let netdevs = seen.observation.after.netdevs.iter().filter(|netdev| spread_over(netdev) > 1);
    netdevs.flat_map(|netdev| of(seen, netdev)).collect()
}

fn of(seen: &Analysis<'_>, netdev: &Netdev) -> Vec<Finding> {
    let flows: Vec<&Flow> = flows_of(seen.observation, netdev).collect();
    let all: u64 = flows.iter().map(|flow| flow.packets).fold(0, u64::saturating_add);
    let kinds: BTreeSet<Outer> = flows.iter().map(|flow| flow.outer).filter(|outer| outer.is_tunnel()).collect();
    let found = |kind: Outer| {
        let of_kind: Vec<&Flow> = flows.iter().copied().filter(|flow| flow.outer == kind).collect();
        let taken = Concentrated::of(of_kind.iter().copied())?;
        let rps_on = silo_of(seen, netdev, taken.queue)
            .is_some_and(|silo| silo.rps_cpus.as_ref().is_some_and(|cpus| !cpus.is_empty()));
        let matters = taken.all >= ENOUGH_PACKETS && taken.all as f64 >= MATTERS * all as f64;
        (matters && taken.share() >= ONE_QUEUE && !rps_on).then(|| finding(seen, netdev, kind, &of_kind, &taken, all))
    };
    kinds.into_iter().filter_map(found).collect()
}

fn finding(seen: &Analysis<'_>, netdev: &Netdev, kind: Outer, flows: &[&Flow], taken: &Concentrated, all: u64) -> Finding {
    let hashes: BTreeSet<Option<u32>> = flows.iter().map(|flow| flow.hash).collect();
    let hashed = match (hashes.len(), hashes.first()) {
        (1, Some(None)) => "no hash: the NIC does not know what to hash".to_owned(),
        (1, _) => "one".to_owned(),
        (n, _) => n.to_string(),
    };
    Finding {
        id: FindingId::TunnelOneQueue,
        severity: severity(seen, silo_of(seen, netdev, taken.queue)),
        subject: netdev.name.clone(),
        title: format!(
            "{kind}: {:.0}% of its packets come through rx-{}, whatever is inside",
            taken.share() * 100.0,
            taken.queue
        ),
        evidence: vec![
            Evidence::new(format!("{kind} packets on rx-{}", taken.queue), Measure::Share(taken.share()), SOURCE),
            Evidence::new(format!("{kind} packets"), Measure::Count(taken.all), SOURCE),
            Evidence::new("of the netdev's packets", Measure::Share(taken.all as f64 / all.max(1) as f64), SOURCE),
            Evidence::new("outer flows", Measure::Count(taken.flows as u64), SOURCE),
            Evidence::new("hashes that the NIC gave them", Measure::Text(hashed), SOURCE),
        ],
        remedies: vec![remedy(seen, netdev, kind, flows, taken)],
    }
}

fn remedy(seen: &Analysis<'_>, netdev: &Netdev, kind: Outer, flows: &[&Flow], taken: &Concentrated) -> Remedy {
    let only_words = |what: &str, gain: Gain| Remedy {
        what: what.into(),
        gain,
        cost: None,
        not_when: None,
        changes: Vec::new(),
        interrupts_traffic: false,
    };
    match kind {
        Outer::Vxlan | Outer::Geneve => by_source_port(seen, netdev, kind, flows, taken),
        Outer::Gre | Outer::IpIp | Outer::SixInIp => {
            rps(seen, netdev, taken.queue, "the kernel's own hash is of the flow inside (a NIC that hashes inner headers does better)")
        }
        Outer::Pppoe | Outer::Dsa => {
            rps(seen, netdev, taken.queue, "the kernel's own hash looks behind the header that the NIC does not know")
        }
        Outer::Esp | Outer::EspInUdp | Outer::Ah => only_words(
            "use several tunnels between more addresses; RPS on the netdev behind the tunnel spreads what follows decryption",
            Gain::Unknown("what is inside can't be seen from outside, neither by the NIC nor by RPS".into()),
        ),
        _ => only_words(
            "a NIC whose hash looks inside (for GTP-U the tunnel's id), or several outer addresses",
            Gain::Unknown("neither this hash nor RPS's looks inside".into()),
        ),
    }
}

/// VXLAN and Geneve make the source port of the flow inside: hashing by ports tells the inner flows
/// apart.
fn by_source_port(seen: &Analysis<'_>, netdev: &Netdev, kind: Outer, flows: &[&Flow], taken: &Concentrated) -> Remedy {
    let v6 = flows.iter().any(|flow| flow.v6);
    let flow_type = kind.flow_type(v6).filter(|flow_type| fields(netdev, *flow_type).is_some());
    let reason = format!("{kind}'s source port is made of the flow inside");
    let change = flow_type.and_then(|flow_type| hash_ports(netdev, flow_type, &reason));
    let queues = spread_over(netdev) as f64;
    match (change, flow_type) {
        _ if taken.flows < 2 => Remedy {
            what: "nothing: there is one flow inside, as far as its source port tells".into(),
            gain: Gain::Nothing("packets of one flow stay in order on one queue".into()),
            cost: None,
            not_when: None,
            changes: Vec::new(),
            interrupts_traffic: false,
        },
        (Some(change), Some(flow_type)) => Remedy {
            what: format!("hash by ports: ethtool -N {} rx-flow-hash {flow_type} sdfn", netdev.name),
            gain: relief(
                silo_of(seen, netdev, taken.queue),
                1.0 - 1.0 / queues.min(taken.flows as f64),
                &format!("{} source ports over {queues:.0} queues; {reason}", taken.flows),
            ),
            cost: Some("packets of a flow that is on its way may overtake each other once".into()),
            not_when: Some("outer packets are fragmented: raise the MTU outside, or lower it inside, first".into()),
            changes: vec![change],
            interrupts_traffic: false,
        },
        _ => rps(seen, netdev, taken.queue, "the kernel's own hash takes ports, and the source port is made of the flow inside"),
    }
}
