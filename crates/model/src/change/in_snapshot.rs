//! A knob in a snapshot: its value there, and the snapshot as it would be with another one.

use crate::change::value::{Key, Table, Value};
use crate::change::{Change, Target};
use crate::machine::cpuset::CpuSet;
use crate::machine::reading::Reading;
use crate::snapshot::ethtool::{Coalesce, Ethtool, Rss};
use crate::snapshot::host::Snapshot;
use crate::snapshot::netdev::NetdevIdentity;

impl Target {
    /// Its value in a snapshot; `None` when the snapshot does not have it, or has another one in
    /// its place.
    pub fn value_in(&self, snapshot: &Snapshot) -> Option<Value> {
        let device =
            |identity: &NetdevIdentity| snapshot.netdevs.iter().find(|netdev| identity.is(netdev));
        let rx = |identity: &NetdevIdentity, queue: &u32| {
            device(identity)?.rx_queues.iter().find(|rx| rx.index == *queue)
        };
        match self {
            Self::IrqAffinity { irq, action, .. } => {
                let state =
                    snapshot.irqs.get(irq).filter(|state| state.actions.join(",") == *action)?;
                state.requested.clone().map(Value::Cpus)
            }
            Self::DefaultSmpAffinity => snapshot.default_smp_affinity.clone().map(Value::Cpus),
            Self::RpsCpus { netdev, queue } => rx(netdev, queue)?.rps_cpus.clone().map(Value::Cpus),
            Self::RpsFlowCnt { netdev, queue } => rx(netdev, queue)?.rps_flow_cnt.map(Value::Count),
            Self::RpsSockFlowEntries => snapshot.net.rps_sock_flow_entries.map(Value::Count),
            Self::RpsDefaultMask => snapshot.net.rps_default_mask.clone().map(Value::Cpus),
            Self::XpsCpus { netdev, queue } => {
                let tx = device(netdev)?.tx_queues.iter().find(|tx| tx.index == *queue);
                tx?.xps_cpus.clone().map(Value::Cpus)
            }
            Self::Offload { .. }
            | Self::Channels { .. }
            | Self::Rings { .. }
            | Self::Coalesce { .. }
            | Self::FlowHash { .. }
            | Self::RssTable { .. }
            | Self::RssKey { .. }
            | Self::RssHash { .. } => self.value_of(device(self.netdev()?)?.ethtool.as_ref()?),
            Self::Mtu { netdev } => {
                Some(device(netdev)?.mtu).filter(|mtu| *mtu > 0).map(Value::Count)
            }
            Self::NapiDeferHardIrqs { netdev } => {
                device(netdev)?.napi_defer_hard_irqs.map(Value::Count)
            }
            Self::GroFlushTimeout { netdev } => device(netdev)?
                .gro_flush_timeout
                .and_then(|it| u32::try_from(it).ok())
                .map(Value::Count),
            Self::Threaded { netdev } => device(netdev)?.threaded.map(Value::Count),
            Self::Sysctl { name } => snapshot.net.sysctls.get(name).map(|text| Value::words(text)),
            Self::NapiThread { pid, start_time, .. } => {
                let napis = snapshot.netdevs.iter().flat_map(|netdev| &netdev.napis);
                let mut threads = napis.filter_map(|napi| napi.thread.as_ref());
                let thread = threads
                    .find(|thread| thread.pid == *pid && thread.start_time == *start_time)?;
                Some(Value::Cpus(thread.cpus.clone()))
            }
            // Consumers' settings are in no snapshot, nor are rules and contexts one by one.
            Self::ThreadAffinity { .. } | Self::CgroupCpuset { .. } => None,
            Self::NtupleRule { .. } | Self::RssContext { .. } => None,
        }
    }

    /// Sets it in a snapshot; an interrupt's new affinity is in force at once. Nothing happens
    /// where it does not exist.
    fn set_in(&self, snapshot: &mut Snapshot, value: &Value) {
        let (cpus, count) = match value {
            Value::Cpus(cpus) => (Some(cpus.clone()), None),
            Value::Count(count) => (None, Some(*count)),
            _ => (None, None),
        };
        if self.value_in(snapshot).is_none() {
            return;
        }
        let device = |snapshot: &Snapshot, identity: &NetdevIdentity| {
            snapshot.netdevs.iter().position(|n| identity.is(n))
        };
        match self {
            Self::IrqAffinity { irq, .. } => {
                let effective = cpus
                    .as_ref()
                    .and_then(|cpus| cpus.and(&snapshot.topology.online).lowest())
                    .map(CpuSet::from_cpu);
                if let Some(state) = snapshot.irqs.get_mut(irq) {
                    (state.requested, state.effective) = (cpus, effective);
                }
            }
            Self::DefaultSmpAffinity => snapshot.default_smp_affinity = cpus,
            Self::RpsSockFlowEntries => snapshot.net.rps_sock_flow_entries = count,
            Self::RpsDefaultMask => snapshot.net.rps_default_mask = cpus,
            Self::RpsCpus { netdev, queue } | Self::RpsFlowCnt { netdev, queue } => {
                let Some(at) = device(snapshot, netdev) else { return };
                let rx = snapshot.netdevs[at].rx_queues.iter_mut().find(|rx| rx.index == *queue);
                match (rx, self) {
                    (Some(rx), Self::RpsCpus { .. }) => rx.rps_cpus = cpus,
                    (Some(rx), _) => rx.rps_flow_cnt = count,
                    (None, _) => {}
                }
            }
            Self::XpsCpus { netdev, queue } => {
                let Some(at) = device(snapshot, netdev) else { return };
                if let Some(tx) =
                    snapshot.netdevs[at].tx_queues.iter_mut().find(|tx| tx.index == *queue)
                {
                    tx.xps_cpus = cpus;
                }
            }
            Self::Offload { netdev, .. }
            | Self::Channels { netdev }
            | Self::Rings { netdev }
            | Self::Coalesce { netdev }
            | Self::FlowHash { netdev, .. }
            | Self::RssTable { netdev, .. }
            | Self::RssKey { netdev }
            | Self::RssHash { netdev } => {
                let Some(at) = device(snapshot, netdev) else { return };
                if let Some(ethtool) = &mut snapshot.netdevs[at].ethtool {
                    self.set_of(ethtool, value);
                }
            }
            Self::Mtu { netdev }
            | Self::NapiDeferHardIrqs { netdev }
            | Self::GroFlushTimeout { netdev }
            | Self::Threaded { netdev } => {
                let Some(at) = device(snapshot, netdev) else { return };
                let netdev = &mut snapshot.netdevs[at];
                match self {
                    Self::Mtu { .. } => netdev.mtu = count.unwrap_or(netdev.mtu),
                    Self::NapiDeferHardIrqs { .. } => netdev.napi_defer_hard_irqs = count,
                    Self::Threaded { .. } => netdev.threaded = count,
                    _ => netdev.gro_flush_timeout = count.map(u64::from),
                }
            }
            Self::Sysctl { name } => {
                snapshot.net.sysctls.insert(name.clone(), value.to_string());
            }
            Self::NapiThread { pid, .. } => {
                let napis = snapshot.netdevs.iter_mut().flat_map(|netdev| &mut netdev.napis);
                for thread in napis
                    .filter_map(|napi| napi.thread.as_mut())
                    .filter(|thread| thread.pid == *pid)
                {
                    thread.cpus = cpus.clone().unwrap_or_default();
                }
            }
            Self::ThreadAffinity { .. } | Self::CgroupCpuset { .. } => {}
            Self::NtupleRule { .. } | Self::RssContext { .. } => {}
        }
    }

    /// The value of a knob of ethtool's.
    fn value_of(&self, ethtool: &Ethtool) -> Option<Value> {
        match self {
            Self::Offload { feature, .. } => {
                ethtool.feature(feature).map(|it| Value::Switch(it.active))
            }
            Self::Channels { .. } => Some(Value::Settings(ethtool.channels.value()?.settings())),
            Self::Rings { .. } => Some(Value::Settings(ethtool.rings.value()?.settings())),
            Self::Coalesce { .. } => Some(Value::Settings(ethtool.coalesce.value()?.settings())),
            Self::FlowHash { flow_type, .. } => {
                ethtool.flow_hash.get(flow_type)?.value().copied().map(Value::Fields)
            }
            Self::RssTable { context: 0, .. } => {
                let table = &ethtool.rss.value()?.indirection;
                (!table.is_empty()).then(|| Value::Table(Table(table.clone())))
            }
            Self::RssKey { .. } => ethtool.rss.value()?.key.clone().map(|key| Value::Key(Key(key))),
            Self::RssHash { .. } => ethtool.rss.value()?.hash_words(),
            _ => None,
        }
    }

    /// Sets a knob of ethtool's.
    fn set_of(&self, ethtool: &mut Ethtool, value: &Value) {
        match (self, value) {
            (Self::Offload { feature, .. }, Value::Switch(on)) => {
                if let Some(feature) = ethtool.feature_mut(feature) {
                    (feature.active, feature.requested) = (*on, *on);
                }
            }
            (Self::Channels { .. }, Value::Settings(settings)) => {
                if let Reading::Value(channels) = &mut ethtool.channels {
                    channels.set(settings);
                }
            }
            (Self::Rings { .. }, Value::Settings(settings)) => {
                if let Reading::Value(rings) = &mut ethtool.rings {
                    rings.set(settings);
                }
            }
            (Self::Coalesce { .. }, Value::Settings(settings)) => {
                ethtool.coalesce = Reading::Value(Coalesce::of(settings));
            }
            (Self::FlowHash { flow_type, .. }, Value::Fields(fields)) => {
                ethtool.flow_hash.insert(*flow_type, Reading::Value(*fields));
            }
            _ => {
                if let Reading::Value(rss) = &mut ethtool.rss {
                    self.set_rss(rss, value);
                }
            }
        }
    }

    fn set_rss(&self, rss: &mut Rss, value: &Value) {
        match (self, value) {
            (Self::RssTable { context: 0, .. }, Value::Table(table)) => {
                rss.indirection.clone_from(&table.0)
            }
            (Self::RssKey { .. }, Value::Key(key)) => rss.key = Some(key.0.clone()),
            (Self::RssHash { .. }, Value::Words(words)) => {
                if let Some((function, input_xfrm)) = Rss::hash_of_words(words) {
                    (rss.function, rss.input_xfrm) = (Some(function), input_xfrm);
                }
            }
            _ => {}
        }
    }
}

/// The snapshot as it would be after these changes, counters and all else alike.
pub fn apply_to(snapshot: &Snapshot, changes: &[Change]) -> Snapshot {
    let mut after = snapshot.clone();
    for change in changes {
        change.target.set_in(&mut after, &change.new);
    }
    after
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::snapshot::ethtool::{Channels, Feature, FlowType, HashFunction, Limit, Rings};
    use crate::snapshot::netdev::Netdev;

    fn host() -> Snapshot {
        let limit = |current| Some(Limit { current, max: 4096 });
        let absent = || "not asked for".to_owned();
        let ethtool = Ethtool {
            driver: Reading::Absent(absent()),
            channels: Reading::Value(Channels {
                rx: None,
                tx: None,
                other: limit(1),
                combined: limit(8),
            }),
            rings: Reading::Value(Rings {
                rx: limit(256),
                rx_mini: None,
                rx_jumbo: None,
                tx: limit(256),
            }),
            coalesce: Reading::Value(Coalesce { rx_coalesce_usecs: 3, ..Coalesce::default() }),
            features: Reading::Value(vec![Feature {
                name: "rx-lro".into(),
                available: true,
                requested: true,
                active: true,
                never_changed: false,
            }]),
            rss: Reading::Value(Rss {
                function: Some(HashFunction::Toeplitz),
                key: Some(vec![1, 2]),
                indirection: vec![0, 1, 0, 1],
                input_xfrm: 0,
            }),
            rx_rings: Reading::Absent(absent()),
            ntuple_rules: Reading::Absent(absent()),
            flow_hash: BTreeMap::from([(FlowType::Udp4, Reading::Value("sd".parse().unwrap()))]),
            link: Reading::Absent(absent()),
            stats: Reading::Absent(absent()),
        };
        let netdev = Netdev {
            name: "eth0".into(),
            mtu: 1500,
            threaded: Some(0),
            napi_defer_hard_irqs: Some(0),
            gro_flush_timeout: Some(0),
            ethtool: Some(ethtool),
            ..Netdev::default()
        };
        let mut snapshot = Snapshot { netdevs: vec![netdev], ..Snapshot::default() };
        snapshot.net.sysctls.insert("net.ipv4.tcp_rmem".into(), "4096\t131072\t6291456".into());
        snapshot
    }

    #[test]
    fn each_remedy_is_read_as_ethtool_says_it_tried_out_and_taken_back() {
        let netdev = NetdevIdentity { name: "eth0".into(), device_path: None };
        let settings = |text: &str| Value::Settings(text.parse().unwrap());
        let table = |queues: &[u32]| Value::Table(Table(queues.to_vec()));
        let of = || netdev.clone();
        let knobs = [
            (
                Target::Channels { netdev: of() },
                settings("combined=8 other=1"),
                settings("combined=4 other=1"),
            ),
            (Target::Rings { netdev: of() }, settings("rx=256 tx=256"), settings("rx=4096 tx=256")),
            (
                Target::Coalesce { netdev: of() },
                settings("rx-usecs=3"),
                settings("rx-usecs=50 rx-frames=8"),
            ),
            (
                Target::Offload { netdev: of(), feature: "rx-lro".into() },
                Value::Switch(true),
                Value::Switch(false),
            ),
            (
                Target::FlowHash { netdev: of(), flow_type: FlowType::Udp4 },
                Value::Fields("sd".parse().unwrap()),
                Value::Fields("sdfn".parse().unwrap()),
            ),
            (
                Target::RssTable { netdev: of(), context: 0 },
                table(&[0, 1, 0, 1]),
                table(&[0, 1, 1, 1]),
            ),
            (
                Target::RssKey { netdev: of() },
                Value::Key(Key(vec![1, 2])),
                Value::Key(Key(vec![3, 4])),
            ),
            (
                Target::RssHash { netdev: of() },
                Value::words("toeplitz"),
                Value::words("toeplitz symmetric-xor"),
            ),
            (Target::NapiDeferHardIrqs { netdev: of() }, Value::Count(0), Value::Count(2)),
            (Target::GroFlushTimeout { netdev: of() }, Value::Count(0), Value::Count(20_000)),
            (Target::Mtu { netdev: of() }, Value::Count(1500), Value::Count(9000)),
            (Target::Threaded { netdev: of() }, Value::Count(0), Value::Count(1)),
            (
                Target::Sysctl { name: "net.ipv4.tcp_rmem".into() },
                Value::words("4096 131072 6291456"),
                Value::words("4096 131072 16777216"),
            ),
        ];
        let before = host();
        for (target, old, new) in knobs {
            assert_eq!(target.value_in(&before), Some(old.clone()), "{target}");
            let change = Change { target, old, new, reason: "because".into() };
            let after = apply_to(&before, std::slice::from_ref(&change));
            assert_eq!(change.target.value_in(&after), Some(change.new.clone()));
            assert_ne!(after, before, "{change:?}");
            let back = apply_to(&after, &[change.inverse()]);
            assert_eq!(change.target.value_in(&back), Some(change.old.clone()));
            let json = serde_json::to_string(&change).unwrap();
            assert_eq!(serde_json::from_str::<Change>(&json).unwrap(), change, "{json}");
        }
    }

    #[test]
    fn what_a_netdev_does_not_have_has_no_value() {
        let mut snapshot = host();
        snapshot.netdevs[0].ethtool = None;
        let netdev = NetdevIdentity { name: "eth0".into(), device_path: None };
        assert_eq!(Target::Rings { netdev: netdev.clone() }.value_in(&snapshot), None);
        assert_eq!(
            Target::Sysctl { name: "net.core.netdev_budget".into() }.value_in(&snapshot),
            None
        );
        let change = Change {
            target: Target::Rings { netdev },
            old: Value::Count(0),
            new: Value::Settings("rx=4096".parse().unwrap()),
            reason: String::new(),
        };
        assert_eq!(apply_to(&snapshot, &[change]), snapshot);
    }
}
