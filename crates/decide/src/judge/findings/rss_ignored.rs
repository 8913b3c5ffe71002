//! The finding on a NIC that does not distribute packets by its own indirection table.

use std::collections::BTreeSet;

use netsilo_model::rss::model::flows_on;
use netsilo_model::snapshot::ethtool::{Ethtool, HashFields};
use netsilo_model::snapshot::flow::{Ends, Flow, Outer};
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_model::snapshot::subject::Subject;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::finding::Finding;
use crate::judge::findings::id::FindingId;
use crate::judge::findings::judged::Judged;
use crate::judge::findings::rss::{QueueConcentration, SOURCE, rps, severity, silo_of};

/// Minimum number of packets in an interval for a conclusion.
const ENOUGH_PACKETS: u64 = 1000;
/// From this share of the packets on one queue, the rest are a few stray packets.
const NEARLY_ALL: f64 = 0.99;
/// Below this probability, that all flows share a queue is no chance.
const CHANCE: f64 = 1e-6;

pub(super) fn find(judged: &Judged<'_>) -> Vec<Finding> {
    let analysis = judged.analysis;
    analysis.after().netdevs.iter().filter_map(|netdev| ignored(judged, netdev)).collect()
}

/// Nearly all packets of many flows arrive on one queue, though the table has others, and no rule
/// steers flows.
fn ignored(judged: &Judged<'_>, netdev: &Netdev) -> Option<Finding> {
    let analysis = judged.analysis;
    let ethtool = netdev.ethtool.as_ref()?;
    let table = &ethtool.rss.value()?.indirection;
    let steered = ethtool.ntuple_rules.value().is_some_and(|rules| *rules > 0);
    let by_reader = netdev.rx_queues.iter().any(|rx| rx.rps_flow_cnt.is_some_and(|it| it > 0));
    if table.is_empty() || steered || by_reader {
        return None;
    }
    let flows = || flows_on(analysis.observation, netdev);
    let hashed = flows().filter(|flow| input(ethtool, flow).is_some());
    let all = QueueConcentration::of(hashed)?;
    let inputs = flows().filter_map(|flow| input(ethtool, flow)).collect::<BTreeSet<_>>().len();
    let entries = table.iter().filter(|queue| **queue == all.queue).count();
    let chance = (entries as f64 / table.len() as f64).powf(inputs as f64);
    if all.packets < ENOUGH_PACKETS || all.share() < NEARLY_ALL || chance >= CHANCE {
        return None;
    }
    let why = "its NIC puts all flows on one queue";
    let queue = all.queue;
    Some(Finding {
        id: FindingId::RssTableIgnored,
        severity: severity(analysis, silo_of(analysis, netdev, queue)),
        subject: Subject::Netdev(netdev.name.clone()),
        title: format!(
            "it does not follow its indirection table: {inputs} different flows are on rx-{queue}, \
             which has {entries} of {} entries",
            table.len()
        ),
        evidence: vec![
            Evidence::new(format!("packets on rx-{queue}"), Measure::Share(all.share()), SOURCE),
            Evidence::new(
                "flows that differ in hashed fields",
                Measure::Count(inputs as u64),
                SOURCE,
            ),
            Evidence::new(
                "chance that all of them share a queue",
                Measure::Text("below one in a million".into()),
                "entries of the queue / all entries, to the power of the flows",
            ),
            Evidence::new(
                "entries of the queue",
                Measure::Text(format!("{entries} of {}", table.len())),
                "ethtool -x DEV",
            ),
        ],
        remedies: vec![
            rps(judged, netdev, queue, why),
            Remedy::new(
                "update driver and firmware (igb with an i211 ignores its table before 5.10.35)",
                Gain::Unknown("the cause is in the device or its driver".into()),
            ),
        ],
    })
}

/// What distinguishes flows for the hash: the connection or, unless the ports are known to be
/// hashed, the peer; with addresses where they are known. `None` where the NIC hashes nothing that
/// is known.
fn input(ethtool: &Ethtool, flow: &Flow) -> Option<(u32, Option<Ends>)> {
    let kind = flow.outer.flow_type(flow.v6)?;
    let fields = ethtool.flow_hash.get(&kind).and_then(|fields| fields.value());
    if fields.is_some_and(|fields| !fields.contains(HashFields::ADDRESSES)) {
        return None;
    }
    let ports = fields.is_some_and(|fields| fields.contains(HashFields::ADDRESSES_AND_PORTS));
    let is_apart = matches!(flow.outer, Outer::Tcp | Outer::Udp) && ports && !flow.fragments;
    let without_ports = |mut ends: Ends| {
        ends.source.set_port(0);
        ends.target.set_port(0);
        ends
    };
    let (number, ends) = if is_apart {
        (flow.connection, flow.ends)
    } else {
        (flow.peer, flow.ends.map(without_ports))
    };
    (number != 0 || ends.is_some()).then_some((number, ends))
}
