//! The settings of a snapshot that netsilo reads but has no knob for.

use std::collections::BTreeMap;

use crate::machine::reading::Reading;
use crate::snapshot::host::Snapshot;

/// The settings without a knob, by a name for people.
pub fn only_read(snapshot: &Snapshot) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for netdev in &snapshot.netdevs {
        let name = &netdev.name;
        all.insert(format!("{name} state"), if netdev.up { "up".into() } else { "down".into() });
        all.insert(
            format!("{name} master"),
            netdev.master.clone().unwrap_or_else(|| "none".into()),
        );
        all.insert(format!("{name} address"), netdev.mac.clone().unwrap_or_default());
        all.insert(
            format!("{name} xdp"),
            netdev.xdp.map_or_else(|| "none".into(), |xdp| format!("{xdp:?}")),
        );
        for tx in &netdev.tx_queues {
            let queues = tx.xps_rxqs.as_ref().map_or_else(|| "none".into(), ToString::to_string);
            all.insert(format!("{name} tx-{} xps_rxqs", tx.index), queues);
        }
        if let Some(Reading::Value(rules)) =
            netdev.ethtool.as_ref().map(|ethtool| &ethtool.ntuple_rules)
        {
            all.insert(format!("{name} number of ntuple rules"), rules.to_string());
        }
    }
    let Some(audit) = &snapshot.audit else { return all };
    for (name, netdev) in &audit.netdevs {
        let length = netdev.tx_queue_len.map_or_else(|| "none".into(), |length| length.to_string());
        all.insert(format!("{name} txqueuelen"), length);
    }
    for qdisc in audit.qdiscs.value().into_iter().flatten() {
        let netdev = snapshot.netdevs.iter().find(|netdev| netdev.ifindex == qdisc.ifindex);
        let name = netdev.map_or("?", |netdev| netdev.name.as_str());
        all.insert(
            format!("{name} qdisc below {:x}", qdisc.parent),
            format!("{} {:x}", qdisc.kind, qdisc.handle),
        );
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::Target;
    use crate::machine::cpuset::CpuSet;
    use crate::machine::ids::Irq;
    use crate::snapshot::host::{IrqState, Writable};
    use crate::snapshot::netdev::{Netdev, RxQueue, TxQueue};

    #[test]
    fn what_can_be_written_and_has_a_value_is_there_once() {
        let irq = |writable| IrqState {
            requested: Some(CpuSet::first(2)),
            writable,
            ..IrqState::default()
        };
        let rx =
            RxQueue { rps_cpus: Some(CpuSet::new()), rps_flow_cnt: Some(0), ..RxQueue::default() };
        let netdev = Netdev {
            name: "eth0".into(),
            irqs: vec![Irq(7)],
            rx_queues: vec![rx],
            tx_queues: vec![TxQueue { xps_cpus: None, ..TxQueue::default() }],
            mtu: 1500,
            ..Netdev::default()
        };
        let mut snapshot = Snapshot {
            irqs: [(Irq(7), irq(Writable::Yes)), (Irq(8), irq(Writable::Managed))].into(),
            netdevs: vec![netdev].into(),
            ..Snapshot::default()
        };
        snapshot.net.sysctls.insert("net.core.rmem_max".into(), "1".into());
        snapshot.net.sysctls.insert("net.ipv4.ip_forward".into(), "1".into());
        let names: Vec<String> =
            Target::all_in(&snapshot).iter().map(ToString::to_string).collect();
        assert_eq!(
            names,
            [
                "irq 7 ()",
                "eth0 rx-0 rps_cpus",
                "eth0 rx-0 rps_flow_cnt",
                "eth0 mtu",
                "net.core.rmem_max"
            ]
        );
        let read = only_read(&snapshot);
        assert_eq!((read["eth0 xdp"].as_str(), read["eth0 state"].as_str()), ("none", "down"));
    }
}
