//! A [`Change`]: one knob, its old and new value, and why; how changes are ordered, reversed, tried
//! out and verified.

pub mod ethtool;
mod in_snapshot;
mod inventory;
mod order;
mod rule;
mod sysctl;
mod value;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::machine::cpuset::CpuSet;
use crate::machine::ids::Irq;
use crate::snapshot::ethtool::FlowType;
use crate::snapshot::host::Snapshot;
use crate::snapshot::netdev::NetdevIdentity;

pub use in_snapshot::apply_to;
pub use inventory::only_read;
pub use order::{Interruption, held_back, ordered};
pub use rule::{FlowRule, Steer};
pub use sysctl::{SYSCTLS, sysctl_path};
pub use value::{Key, Settings, Table, Value, ValueError};

/// A knob that netsilo may write.
///
/// Devices are named by what survives a renumbering too (path, queue, action name), so that a
/// journal can tell whether the knob is still the same one.
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
    /// `net.core.rps_sock_flow_entries`; writing it flushes the flow table, even with the same
    /// value.
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
    /// An offload (`ethtool -K`), by the kernel's name for it; a switch.
    ///
    /// `rx-ntuple-filter` lets the driver steer flows to queues by itself (aRFS); it was a knob of
    /// its own once.
    #[serde(alias = "ntuple_filter")]
    Offload {
        /// The device.
        netdev: NetdevIdentity,
        /// Its name (`rx-gro-hw`).
        #[serde(default = "ntuple_filter")]
        feature: String,
    },
    /// How many channels a device uses (`ethtool -L`); the driver sets up its queues and interrupts
    /// anew.
    Channels {
        /// The device.
        netdev: NetdevIdentity,
    },
    /// How many descriptors its rings have (`ethtool -G`); the driver sets them up anew.
    Rings {
        /// The device.
        netdev: NetdevIdentity,
    },
    /// Its MTU: the most bytes of a frame behind the link header. What is at the other end must
    /// take as many.
    Mtu {
        /// The device.
        netdev: NetdevIdentity,
    },
    /// How it moderates its interrupts (`ethtool -C`).
    Coalesce {
        /// The device.
        netdev: NetdevIdentity,
    },
    /// What RSS hashes of a type of flow (`ethtool -N <dev> rx-flow-hash udp4 sdfn`).
    FlowHash {
        /// The device.
        netdev: NetdevIdentity,
        /// The type of flow.
        flow_type: FlowType,
    },
    /// The RSS indirection table (`ethtool -X`).
    RssTable {
        /// The device.
        netdev: NetdevIdentity,
        /// The RSS context; 0 is the device's own.
        #[serde(default)]
        context: u32,
    },
    /// The RSS hash key (`ethtool -X <dev> hkey`).
    RssKey {
        /// The device.
        netdev: NetdevIdentity,
    },
    /// The RSS hash function, and what its input goes through (`toeplitz symmetric-xor`).
    RssHash {
        /// The device.
        netdev: NetdevIdentity,
    },
    /// An RSS context that spreads evenly over these rx queues and no others; a switch, there or
    /// not.
    RssContext {
        /// The device.
        netdev: NetdevIdentity,
        /// The rx queues, as a set of numbers.
        queues: CpuSet,
    },
    /// A flow steering rule (`ethtool -N`); a switch, there or not.
    NtupleRule {
        /// The device.
        netdev: NetdevIdentity,
        /// The rule, all that it says.
        rule: FlowRule,
    },
    /// `napi_defer_hard_irqs`: empty polls after which the interrupt is armed again.
    NapiDeferHardIrqs {
        /// The device.
        netdev: NetdevIdentity,
    },
    /// `gro_flush_timeout`, in nanoseconds.
    GroFlushTimeout {
        /// The device.
        netdev: NetdevIdentity,
    },
    /// `threaded`: 1 polls the device's NAPIs in kthreads, 0 in softirqs.
    Threaded {
        /// The device.
        netdev: NetdevIdentity,
    },
    /// A sysctl of [`SYSCTLS`].
    Sysctl {
        /// Its name (`net.core.netdev_budget`).
        name: String,
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

fn ntuple_filter() -> String {
    NTUPLE_FILTER.to_owned()
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
    /// The new affinity is set, but the interrupt still arrives where it did: the kernel moves it
    /// when the next one comes.
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
        match after
            .irqs
            .get(irq)
            .and_then(|state| Some((state.requested.as_ref()?, state.effective.as_ref()?)))
        {
            Some((requested, effective)) if !effective.is_subset(requested) => {
                Outcome::Pending(effective.clone())
            }
            _ => Outcome::InForce,
        }
    }

    /// The old and the new value for people: of settings only those that differ, of a table how
    /// much of it moves.
    pub fn from_to(&self) -> (String, String) {
        match (&self.old, &self.new) {
            (Value::Settings(old), Value::Settings(new)) => {
                (old.unlike(new).to_string(), new.unlike(old).to_string())
            }
            (Value::Table(old), Value::Table(new)) => {
                let (moved, all) = (new.moved_from(old), new.0.len());
                (old.to_string(), format!("{new} ({moved} of {all} buckets move)"))
            }
            (old, new) => (old.to_string(), new.to_string()),
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
    /// The device that it belongs to, if it is one's own.
    pub fn netdev(&self) -> Option<&NetdevIdentity> {
        match self {
            Self::IrqAffinity { netdev, .. } => netdev.as_ref(),
            Self::RpsCpus { netdev, .. }
            | Self::RpsFlowCnt { netdev, .. }
            | Self::XpsCpus { netdev, .. }
            | Self::Offload { netdev, .. }
            | Self::Channels { netdev }
            | Self::Rings { netdev }
            | Self::Mtu { netdev }
            | Self::Coalesce { netdev }
            | Self::FlowHash { netdev, .. }
            | Self::RssTable { netdev, .. }
            | Self::RssKey { netdev }
            | Self::RssHash { netdev }
            | Self::RssContext { netdev, .. }
            | Self::NtupleRule { netdev, .. }
            | Self::NapiDeferHardIrqs { netdev }
            | Self::GroFlushTimeout { netdev }
            | Self::Threaded { netdev } => Some(netdev),
            Self::DefaultSmpAffinity
            | Self::RpsSockFlowEntries
            | Self::RpsDefaultMask
            | Self::Sysctl { .. }
            | Self::NapiThread { .. }
            | Self::ThreadAffinity { .. }
            | Self::CgroupCpuset { .. } => None,
        }
    }

    /// Whether a driver takes or refuses it, through ethtool.
    pub fn is_of_ethtool(&self) -> bool {
        matches!(
            self,
            Self::Channels { .. }
                | Self::Rings { .. }
                | Self::Coalesce { .. }
                | Self::Offload { .. }
                | Self::FlowHash { .. }
                | Self::RssTable { .. }
                | Self::RssKey { .. }
                | Self::RssHash { .. }
                | Self::RssContext { .. }
                | Self::NtupleRule { .. }
        )
    }

    /// Whether it belongs to the netdev of this name; a NAPI kthread tells by its own
    /// (`napi/<dev>-<id>`, cut to 15 bytes).
    pub fn is_of(&self, name: &str) -> bool {
        match self {
            Self::NapiThread { comm, .. } => {
                let device = comm.strip_prefix("napi/").unwrap_or_default();
                name.starts_with(device)
                    || device.rsplit_once('-').is_some_and(|(device, _)| device == name)
            }
            _ => self.netdev().is_some_and(|netdev| netdev.name == name),
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
            Self::RpsFlowCnt { netdev, queue } => {
                write!(f, "{} rx-{queue} rps_flow_cnt", netdev.name)
            }
            Self::RpsSockFlowEntries => f.write_str("rps_sock_flow_entries"),
            Self::RpsDefaultMask => f.write_str("rps_default_mask"),
            Self::XpsCpus { netdev, queue } => write!(f, "{} tx-{queue} xps_cpus", netdev.name),
            Self::Offload { netdev, feature } => write!(f, "{} {feature}", netdev.name),
            Self::Channels { netdev } => write!(f, "{} channels", netdev.name),
            Self::Rings { netdev } => write!(f, "{} rings", netdev.name),
            Self::Mtu { netdev } => write!(f, "{} mtu", netdev.name),
            Self::Coalesce { netdev } => write!(f, "{} coalesce", netdev.name),
            Self::FlowHash { netdev, flow_type } => {
                write!(f, "{} rx-flow-hash {flow_type}", netdev.name)
            }
            Self::RssTable { netdev, context: 0 } => write!(f, "{} rss table", netdev.name),
            Self::RssTable { netdev, context } => {
                write!(f, "{} rss table of context {context}", netdev.name)
            }
            Self::RssKey { netdev } => write!(f, "{} rss key", netdev.name),
            Self::RssHash { netdev } => write!(f, "{} rss hash", netdev.name),
            Self::RssContext { netdev, queues } => {
                write!(f, "{} rss context over queues {queues}", netdev.name)
            }
            Self::NtupleRule { netdev, rule } => write!(f, "{} rule {rule}", netdev.name),
            Self::NapiDeferHardIrqs { netdev } => write!(f, "{} napi_defer_hard_irqs", netdev.name),
            Self::GroFlushTimeout { netdev } => write!(f, "{} gro_flush_timeout", netdev.name),
            Self::Threaded { netdev } => write!(f, "{} threaded", netdev.name),
            Self::Sysctl { name } => f.write_str(name),
            Self::NapiThread { pid, comm, .. } => write!(f, "kthread {comm} (pid {pid})"),
            Self::ThreadAffinity { pid, tid, comm, .. } if pid == tid => {
                write!(f, "{comm} (pid {pid})")
            }
            Self::ThreadAffinity { pid, tid, comm, .. } => {
                write!(f, "{comm} (thread {tid} of pid {pid})")
            }
            Self::CgroupCpuset { path } => write!(f, "cgroup {path} cpuset.cpus"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::snapshot::host::IrqState;

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
        Arc::make_mut(&mut snapshot.topology).online = CpuSet::first(4);
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
    fn of_settings_a_person_sees_those_that_differ() {
        let value = |text: &str| Value::Settings(text.parse().unwrap());
        let netdev = NetdevIdentity { name: "eth0".into(), device_path: None };
        let rings =
            change(Target::Rings { netdev }, value("rx=256 tx=512"), value("rx=4096 tx=512"));
        assert_eq!(rings.from_to(), ("rx=256".into(), "rx=4096".into()));
        let table = |queues: &[u32]| Value::Table(Table(queues.to_vec()));
        let table = change(Target::DefaultSmpAffinity, table(&[0, 1, 0, 1]), table(&[0, 1, 1, 1]));
        assert_eq!(table.from_to(), ("equal 2".into(), "weight 1 3 (1 of 4 buckets move)".into()));
    }

    #[test]
    fn the_offload_that_steers_flows_is_the_one_that_had_a_name_of_its_own() {
        let old = r#"{"knob":"ntuple_filter","netdev":{"name":"eth0","device_path":null}}"#;
        let netdev = NetdevIdentity { name: "eth0".into(), device_path: None };
        let target = Target::Offload { netdev, feature: NTUPLE_FILTER.into() };
        assert_eq!(serde_json::from_str::<Target>(old).unwrap(), target);
        let json = serde_json::to_string(&target).unwrap();
        assert_eq!(serde_json::from_str::<Target>(&json).unwrap(), target);
    }
}
