//! Every setting that a snapshot tells of: those that netsilo writes, and those that it only reads.

use std::collections::BTreeMap;

use crate::change::{SYSCTLS, Target};
use crate::machine::reading::Reading;
use crate::snapshot::host::{Snapshot, Writable};
use crate::snapshot::netdev::{Netdev, NetdevIdentity};

impl Target {
    /// All knobs that a snapshot has a value of, and that can be written. Rules and RSS contexts
    /// are not among them.
    pub fn all_in(snapshot: &Snapshot) -> Vec<Self> {
        let mut all =
            vec![Self::DefaultSmpAffinity, Self::RpsSockFlowEntries, Self::RpsDefaultMask];
        all.extend(SYSCTLS.iter().map(|name| Self::Sysctl { name: (*name).to_owned() }));
        for (irq, state) in
            snapshot.irqs.iter().filter(|(_, state)| state.writable == Writable::Yes)
        {
            let netdev = snapshot
                .netdevs
                .iter()
                .find(|netdev| netdev.irqs.contains(irq))
                .map(NetdevIdentity::from_netdev);
            all.push(Self::IrqAffinity { irq: *irq, action: state.actions.join(","), netdev });
        }
        snapshot.netdevs.iter().for_each(|netdev| of_netdev(netdev, &mut all));
        all.retain(|target| target.value_in(snapshot).is_some());
        all
    }
}

fn of_netdev(device: &Netdev, all: &mut Vec<Target>) {
    let netdev = || NetdevIdentity::from_netdev(device);
    for rx in &device.rx_queues {
        all.push(Target::RpsCpus { netdev: netdev(), queue: rx.index });
        all.push(Target::RpsFlowCnt { netdev: netdev(), queue: rx.index });
    }
    all.extend(
        device.tx_queues.iter().map(|tx| Target::XpsCpus { netdev: netdev(), queue: tx.index }),
    );
    let threads = device.napis.iter().filter_map(|napi| napi.thread.as_ref());
    all.extend(threads.map(|it| Target::NapiThread {
        pid: it.pid,
        comm: it.comm.clone(),
        start_time: it.start_time,
    }));
    all.extend([
        Target::Mtu { netdev: netdev() },
        Target::NapiDeferHardIrqs { netdev: netdev() },
        Target::GroFlushTimeout { netdev: netdev() },
        Target::Threaded { netdev: netdev() },
    ]);
    let Some(ethtool) = &device.ethtool else { return };
    all.extend([
        Target::Channels { netdev: netdev() },
        Target::Rings { netdev: netdev() },
        Target::Coalesce { netdev: netdev() },
        Target::RssTable { netdev: netdev(), context: 0 },
        Target::RssKey { netdev: netdev() },
        Target::RssHash { netdev: netdev() },
    ]);
    let kinds = ethtool.flow_hash.keys();
    all.extend(kinds.map(|flow_type| Target::FlowHash { netdev: netdev(), flow_type: *flow_type }));
    let features = ethtool.features.value().into_iter().flatten();
    let ours = features.filter(|it| it.available && !it.never_changed);
    all.extend(ours.map(|it| Target::Offload { netdev: netdev(), feature: it.name.clone() }));
}

/// What else is set on a machine, by a name for people: netsilo reads it and has no knob for it.
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
    use crate::machine::cpuset::CpuSet;
    use crate::machine::ids::Irq;
    use crate::snapshot::host::IrqState;
    use crate::snapshot::netdev::{RxQueue, TxQueue};

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
            netdevs: vec![netdev],
            ..Snapshot::default()
        };
        snapshot.net.sysctls.insert("net.core.rmem_max".into(), "1".into());
        snapshot.net.sysctls.insert("net.ipv4.ip_forward".into(), "1".into());
        let names: Vec<String> =
            Target::all_in(&snapshot).iter().map(ToString::to_string).collect();
        assert_eq!(
            names,
            [
                "net.core.rmem_max",
                "irq 7 ()",
                "eth0 rx-0 rps_cpus",
                "eth0 rx-0 rps_flow_cnt",
                "eth0 mtu"
            ]
        );
        let read = only_read(&snapshot);
        assert_eq!((read["eth0 xdp"].as_str(), read["eth0 state"].as_str()), ("none", "down"));
    }
}
