//! A [`Change`]: one knob, its old and new value, and why; how changes are ordered, reversed, tried out and verified.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cpuset::CpuSet;
use crate::host::{Irq, Netdev, Snapshot};

/// A knob that netsilo may write.
///
/// Devices are named by what survives a renumbering too (path, queue, action name), so that a journal can tell whether
/// the knob is still the same one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "knob", rename_all = "snake_case")]
pub enum Target {
    /// `/proc/irq/<irq>/smp_affinity`.
    IrqAffinity {
        /// The interrupt.
        irq: Irq,
        /// Its action names, joined by commas: its identity.
        action: String,
        /// The device that it belongs to, if known.
        netdev: Option<NetdevIdentity>,
    },
    /// `/proc/irq/default_smp_affinity`.
    DefaultSmpAffinity,
    /// `queues/rx-<queue>/rps_cpus`.
    RpsCpus {
        /// The device.
        netdev: NetdevIdentity,
        /// The rx queue.
        queue: u32,
    },
    /// `queues/rx-<queue>/rps_flow_cnt`.
    RpsFlowCnt {
        /// The device.
        netdev: NetdevIdentity,
        /// The rx queue.
        queue: u32,
    },
    /// `net.core.rps_sock_flow_entries`; writing it flushes the flow table, even with the same value.
    RpsSockFlowEntries,
    /// `net.core.rps_default_mask`.
    RpsDefaultMask,
    /// `queues/tx-<queue>/xps_cpus`.
    XpsCpus {
        /// The device.
        netdev: NetdevIdentity,
        /// The tx queue.
        queue: u32,
    },
    /// The offload `rx-ntuple-filter` (`ethtool -K <dev> ntuple`): 1 lets the driver steer flows to queues by itself (aRFS).
    NtupleFilter {
        /// The device.
        netdev: NetdevIdentity,
    },
    /// The CPUs of a threaded NAPI's kthread (`sched_setaffinity`).
    NapiThread {
        /// Its process id.
        pid: u32,
        /// Its name.
        comm: String,
        /// Clock ticks after boot at which it started: with the pid, its identity.
        start_time: u64,
    },
    /// The CPUs of a consumer's thread (`sched_setaffinity`), on request only.
    ThreadAffinity {
        /// Its process id.
        pid: u32,
        /// Its own id.
        tid: u32,
        /// Its name, which it may change.
        comm: String,
        /// Clock ticks after boot at which it started: with the id, its identity.
        start_time: u64,
    },
    /// `cpuset.cpus` of a cgroup (v2), on request only; the empty set means those of its parent.
    CgroupCpuset {
        /// Its path below `/sys/fs/cgroup` (`/system.slice/nginx.service`).
        path: String,
    },
}

/// The kernel's name of the offload that lets a driver steer flows (`netdev_features_strings`).
pub const NTUPLE_FILTER: &str = "rx-ntuple-filter";

/// What a network device is recognised by.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NetdevIdentity {
    /// Interface name.
    pub name: String,
    /// Device path below `/sys`; `None` for virtual devices.
    pub device_path: Option<String>,
}

impl NetdevIdentity {
    /// What this netdev is recognised by.
    pub fn of(netdev: &Netdev) -> Self {
        Self { name: netdev.name.clone(), device_path: netdev.device_path.clone() }
    }

    /// Whether this is it: the same name on the same device.
    pub fn is(&self, netdev: &Netdev) -> bool {
        self.name == netdev.name && self.device_path == netdev.device_path
    }
}

/// A knob's value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    /// A set of CPUs; the empty one switches RPS or XPS off.
    Cpus(CpuSet),
    /// A number of flow table entries; 0 switches RFS off.
    Count(u32),
}

/// One knob, its old and new value, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The knob.
    pub target: Target,
    /// Its value when the plan was made.
    pub old: Value,
    /// Its value wanted.
    pub new: Value,
    /// Why, as a human would accept it.
    pub reason: String,
}

/// What became of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The knob has the new value and, if it is an interrupt's, the interrupt takes it.
    InForce,
    /// The new affinity is set, but the interrupt still arrives where it did: the kernel moves it when the next one comes.
    Pending(CpuSet),
    /// The knob has another value.
    Differs(Value),
    /// The knob is gone, or is another one's now.
    Gone,
}

impl Change {
    /// What became of it, by a snapshot taken after it was made.
    pub fn outcome(&self, after: &Snapshot) -> Outcome {
        let Some(value) = self.target.value_in(after) else { return Outcome::Gone };
        if value != self.new {
            return Outcome::Differs(value);
        }
        let Target::IrqAffinity { irq, .. } = &self.target else { return Outcome::InForce };
        match after.irqs.get(irq).and_then(|state| Some((state.requested.as_ref()?, state.effective.as_ref()?))) {
            Some((requested, effective)) if !effective.is_subset(requested) => Outcome::Pending(effective.clone()),
            _ => Outcome::InForce,
        }
    }

    /// The change that takes this one back.
    pub fn inverse(&self) -> Self {
        Self {
            target: self.target.clone(),
            old: self.new.clone(),
            new: self.old.clone(),
            reason: format!("undo: {}", self.reason),
        }
    }
}

impl Target {
    /// Its value in a snapshot; `None` when the snapshot does not have it, or has another one in its place.
    pub fn value_in(&self, snapshot: &Snapshot) -> Option<Value> {
        let rx = |identity: &NetdevIdentity, queue: &u32| {
            let netdev = snapshot.netdevs.iter().find(|netdev| identity.is(netdev))?;
            netdev.rx_queues.iter().find(|rx| rx.index == *queue)
        };
        match self {
            Self::IrqAffinity { irq, action, .. } => {
                let state = snapshot.irqs.get(irq).filter(|state| state.actions.join(",") == *action)?;
                state.requested.clone().map(Value::Cpus)
            }
            Self::DefaultSmpAffinity => snapshot.default_smp_affinity.clone().map(Value::Cpus),
            Self::RpsCpus { netdev, queue } => rx(netdev, queue)?.rps_cpus.clone().map(Value::Cpus),
            Self::RpsFlowCnt { netdev, queue } => rx(netdev, queue)?.rps_flow_cnt.map(Value::Count),
            Self::RpsSockFlowEntries => snapshot.net.rps_sock_flow_entries.map(Value::Count),
            Self::RpsDefaultMask => snapshot.net.rps_default_mask.clone().map(Value::Cpus),
            Self::XpsCpus { netdev, queue } => {
                let netdev = snapshot.netdevs.iter().find(|known| netdev.is(known))?;
                netdev.tx_queues.iter().find(|tx| tx.index == *queue)?.xps_cpus.clone().map(Value::Cpus)
            }
            Self::NtupleFilter { netdev } => {
                let netdev = snapshot.netdevs.iter().find(|known| netdev.is(known))?;
                netdev.ethtool.as_ref()?.feature(NTUPLE_FILTER).map(|it| Value::Count(it.active.into()))
            }
            Self::NapiThread { pid, start_time, .. } => {
                let napis = snapshot.netdevs.iter().flat_map(|netdev| &netdev.napis);
                let mut threads = napis.filter_map(|napi| napi.thread.as_ref());
                let thread = threads.find(|thread| thread.pid == *pid && thread.start_time == *start_time)?;
                Some(Value::Cpus(thread.cpus.clone()))
            }
            // Consumers' settings are in no snapshot.
            Self::ThreadAffinity { .. } | Self::CgroupCpuset { .. } => None,
        }
    }

    /// Sets it in a snapshot; an interrupt's new affinity is in force at once. Nothing happens where it does not exist.
    fn set_in(&self, snapshot: &mut Snapshot, value: &Value) {
        let (cpus, count) = match value {
            Value::Cpus(cpus) => (Some(cpus.clone()), None),
            Value::Count(count) => (None, Some(*count)),
        };
        if self.value_in(snapshot).is_none() {
            return;
        }
        let device =
            |snapshot: &Snapshot, identity: &NetdevIdentity| snapshot.netdevs.iter().position(|n| identity.is(n));
        match self {
            Self::IrqAffinity { irq, .. } => {
                let effective =
                    cpus.as_ref().and_then(|cpus| cpus.and(&snapshot.topology.online).lowest()).map(CpuSet::of);
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
                if let Some(tx) = snapshot.netdevs[at].tx_queues.iter_mut().find(|tx| tx.index == *queue) {
                    tx.xps_cpus = cpus;
                }
            }
            Self::NtupleFilter { netdev } => {
                let Some(at) = device(snapshot, netdev) else { return };
                let ethtool = snapshot.netdevs[at].ethtool.as_mut();
                if let Some(feature) = ethtool.and_then(|ethtool| ethtool.feature_mut(NTUPLE_FILTER)) {
                    feature.active = count == Some(1);
                    feature.requested = feature.active;
                }
            }
            Self::NapiThread { pid, .. } => {
                let napis = snapshot.netdevs.iter_mut().flat_map(|netdev| &mut netdev.napis);
                for thread in napis.filter_map(|napi| napi.thread.as_mut()).filter(|thread| thread.pid == *pid) {
                    thread.cpus = cpus.clone().unwrap_or_default();
                }
            }
            Self::ThreadAffinity { .. } | Self::CgroupCpuset { .. } => {}
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

/// The order in which changes are made; undoing them goes the other way.
///
/// First the default for interrupts to come, then interrupts, each kthread after the interrupt that wakes it, then which
/// queue a CPU sends through (its completions arrive at their new place by then), then RPS. The RFS table is
/// there before the queues count flows into it, and goes after they have stopped. Consumers come last: a cgroup before its
/// threads, whose CPUs it may narrow.
pub fn ordered(mut changes: Vec<Change>) -> Vec<Change> {
    changes.sort_by_key(|change| match (&change.target, &change.new) {
        (Target::DefaultSmpAffinity, _) => 0,
        (Target::IrqAffinity { .. }, _) => 1,
        (Target::NapiThread { .. }, _) => 2,
        (Target::XpsCpus { .. }, _) => 3,
        (Target::RpsDefaultMask, _) => 4,
        (Target::RpsCpus { .. }, _) => 5,
        (Target::RpsSockFlowEntries, Value::Count(0)) => 8,
        (Target::RpsSockFlowEntries, _) => 6,
        (Target::RpsFlowCnt { .. }, _) => 7,
        // Steering by the flow table begins when the table is there, and ends before it goes.
        (Target::NtupleFilter { .. }, Value::Count(0)) => 5,
        (Target::NtupleFilter { .. }, _) => 9,
        (Target::CgroupCpuset { .. }, _) => 10,
        (Target::ThreadAffinity { .. }, _) => 11,
    });
    changes
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpus(cpus) if cpus.is_empty() => f.write_str("none"),
            Self::Cpus(cpus) => cpus.fmt(f),
            Self::Count(count) => count.fmt(f),
        }
    }
}

/// The knob as a person calls it (`irq 27 (virtio0-input.1)`, `eth0 rx-3 rps_cpus`).
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IrqAffinity { irq, action, .. } => write!(f, "irq {irq} ({action})"),
            Self::DefaultSmpAffinity => f.write_str("default_smp_affinity"),
            Self::RpsCpus { netdev, queue } => write!(f, "{} rx-{queue} rps_cpus", netdev.name),
            Self::RpsFlowCnt { netdev, queue } => write!(f, "{} rx-{queue} rps_flow_cnt", netdev.name),
            Self::RpsSockFlowEntries => f.write_str("rps_sock_flow_entries"),
            Self::RpsDefaultMask => f.write_str("rps_default_mask"),
            Self::XpsCpus { netdev, queue } => write!(f, "{} tx-{queue} xps_cpus", netdev.name),
            Self::NtupleFilter { netdev } => write!(f, "{} ntuple", netdev.name),
            Self::NapiThread { pid, comm, .. } => write!(f, "kthread {comm} (pid {pid})"),
            Self::ThreadAffinity { pid, tid, comm, .. } if pid == tid => write!(f, "{comm} (pid {pid})"),
            Self::ThreadAffinity { pid, tid, comm, .. } => write!(f, "{comm} (thread {tid} of pid {pid})"),
            Self::CgroupCpuset { path } => write!(f, "cgroup {path} cpuset.cpus"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::IrqState;

    fn set(text: &str) -> CpuSet {
        CpuSet::parse_list(text).unwrap()
    }

    fn change(target: Target, old: Value, new: Value) -> Change {
        Change { target, old, new, reason: String::new() }
    }

    fn host() -> (Snapshot, Change) {
        let mut snapshot = Snapshot::default();
        let state = IrqState {
            actions: vec!["eth0-rx-0".into()],
            requested: Some(set("0-3")),
            effective: Some(set("0")),
            ..IrqState::default()
        };
        snapshot.irqs.insert(Irq(30), state);
        snapshot.topology.online = CpuSet::first(4);
        let target = Target::IrqAffinity { irq: Irq(30), action: "eth0-rx-0".into(), netdev: None };
        (snapshot, change(target, Value::Cpus(set("0-3")), Value::Cpus(set("2"))))
    }

    #[test]
    fn applied_and_taken_back_leaves_what_was_asked_for() {
        let (snapshot, change) = host();
        let after = apply_to(&snapshot, std::slice::from_ref(&change));
        assert_eq!(change.outcome(&after), Outcome::InForce);
        let back = apply_to(&after, &[change.inverse()]);
        assert_eq!(change.target.value_in(&back), Some(change.old));
    }

    #[test]
    fn an_interrupt_that_has_not_moved_yet_is_pending() {
        let (mut snapshot, change) = host();
        snapshot.irqs.get_mut(&Irq(30)).unwrap().requested = Some(set("2"));
        assert_eq!(change.outcome(&snapshot), Outcome::Pending(set("0")));
    }

    #[test]
    fn a_number_that_another_interrupt_has_now_is_gone() {
        let (mut snapshot, change) = host();
        snapshot.irqs.get_mut(&Irq(30)).unwrap().actions = vec!["nvme0q3".into()];
        assert_eq!(change.outcome(&snapshot), Outcome::Gone);
        assert_eq!(apply_to(&snapshot, &[change]), snapshot);
    }

    #[test]
    fn the_flow_table_is_there_before_the_queues_count_into_it_and_goes_after() {
        let netdev = NetdevIdentity { name: "eth0".into(), device_path: None };
        let table = |count| change(Target::RpsSockFlowEntries, Value::Count(0), Value::Count(count));
        let queue = |count| {
            change(Target::RpsFlowCnt { netdev: netdev.clone(), queue: 0 }, Value::Count(0), Value::Count(count))
        };
        let order = |changes| {
            ordered(changes).into_iter().map(|c: Change| c.target == Target::RpsSockFlowEntries).collect::<Vec<_>>()
        };
        assert_eq!(order(vec![queue(1024), table(4096)]), [true, false]);
        assert_eq!(order(vec![table(0), queue(0)]), [false, true]);
    }
}
