//! Which CPUs process and send packets of a queue: RPS, RFS, XPS.

use serde::{Deserialize, Serialize};

use crate::change::knob::{Capability, Effect, Errno, Knob, KnobFacts, put};
use crate::change::location::Location;
use crate::change::step::{Step, Traffic};
use crate::machine::cpuset::CpuSet;
use crate::snapshot::host::{OwnedKnob, Snapshot};
use crate::snapshot::netdev::NetdevIdentity;
use crate::snapshot::netdev::{RxQueue, TxQueue};

const NO_NETWORK_WORK: (Errno, &str) =
    (Errno::Inval, "none of these cpus may do network work (isolcpus, nohz_full); choose others");
const TOO_LARGE: (Errno, &str) =
    (Errno::Inval, "more than the kernel allows; choose a smaller number");

/// `queues/rx-<queue>/rps_cpus`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RpsCpus {
    /// The device.
    pub netdev: NetdevIdentity,
    /// The rx queue.
    pub queue: u32,
}

impl Knob for RpsCpus {
    type Value = CpuSet;

    const FACTS: &'static KnobFacts = &KnobFacts {
        kind: "rps_cpus",
        fields: "`queue`",
        value: "the empty set switches RPS off",
        place: "`/sys/class/net/DEV/queues/rx-N/`",
        step: Step::Rps,
        refusals: &[NO_NETWORK_WORK],
        ..KnobFacts::usual(Effect {
            traffic: Traffic::Unchanged,
            names_queues: true,
            owner: Some(OwnedKnob::Rps),
        })
    };

    fn location(&self) -> Location<'_> {
        Location::Netdev {
            netdev: &self.netdev,
            file: format!("queues/rx-{}/rps_cpus", self.queue),
        }
    }

    fn value_in(&self, snapshot: &Snapshot) -> Option<CpuSet> {
        rx(snapshot, &self.netdev, self.queue)?.rps_cpus.clone()
    }

    fn set_in(&self, snapshot: &mut Snapshot, cpus: CpuSet) {
        let rx = rx_mut(snapshot, &self.netdev, self.queue);
        put(rx.and_then(|rx| rx.rps_cpus.as_mut()), cpus);
    }

    fn all_in(snapshot: &Snapshot) -> Vec<Self> {
        rx_queues(snapshot, |netdev, queue| Self { netdev, queue })
    }

    fn settles_as(cpus: &CpuSet, reserved: &dyn Fn() -> CpuSet) -> CpuSet {
        cpus.minus(&reserved())
    }
}

/// `queues/rx-<queue>/rps_flow_cnt`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RpsFlowCnt {
    /// The device.
    pub netdev: NetdevIdentity,
    /// The rx queue.
    pub queue: u32,
}

impl Knob for RpsFlowCnt {
    type Value = u32;

    const FACTS: &'static KnobFacts = &KnobFacts {
        kind: "rps_flow_cnt",
        fields: "`queue`",
        value: "flows; the kernel rounds up to a power of two",
        place: "`/sys/class/net/DEV/queues/rx-N/`",
        step: Step::FlowCounts,
        refusals: &[TOO_LARGE],
        ..KnobFacts::usual(Effect {
            traffic: Traffic::Unchanged,
            names_queues: true,
            owner: Some(OwnedKnob::Rps),
        })
    };

    fn location(&self) -> Location<'_> {
        Location::Netdev {
            netdev: &self.netdev,
            file: format!("queues/rx-{}/rps_flow_cnt", self.queue),
        }
    }

    fn value_in(&self, snapshot: &Snapshot) -> Option<u32> {
        rx(snapshot, &self.netdev, self.queue)?.rps_flow_cnt
    }

    fn set_in(&self, snapshot: &mut Snapshot, count: u32) {
        let rx = rx_mut(snapshot, &self.netdev, self.queue);
        put(rx.and_then(|rx| rx.rps_flow_cnt.as_mut()), count);
    }

    fn all_in(snapshot: &Snapshot) -> Vec<Self> {
        rx_queues(snapshot, |netdev, queue| Self { netdev, queue })
    }

    fn settles_as(count: &u32, _: &dyn Fn() -> CpuSet) -> u32 {
        power_of_two(*count)
    }
}

/// `net.core.rps_sock_flow_entries`. A write flushes the flow table, even with the same value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RpsSockFlowEntries;

impl Knob for RpsSockFlowEntries {
    type Value = u32;

    const FACTS: &'static KnobFacts = &KnobFacts {
        kind: "rps_sock_flow_entries",
        value: "flows; the kernel rounds up to a power of two",
        place: "`/proc/sys/net/core/`",
        step: Step::FlowTable,
        needs: Capability::None,
        refusals: &[TOO_LARGE],
        ..KnobFacts::usual(Effect {
            traffic: Traffic::Unchanged,
            names_queues: false,
            owner: Some(OwnedKnob::Rps),
        })
    };

    fn location(&self) -> Location<'_> {
        Location::File("/proc/sys/net/core/rps_sock_flow_entries".into())
    }

    fn value_in(&self, snapshot: &Snapshot) -> Option<u32> {
        snapshot.net.rps_sock_flow_entries
    }

    fn set_in(&self, snapshot: &mut Snapshot, count: u32) {
        put(snapshot.net.rps_sock_flow_entries.as_mut(), count);
    }

    fn all_in(_: &Snapshot) -> Vec<Self> {
        vec![Self]
    }

    fn step(&self, off: bool) -> Step {
        if off { Step::FlowTableOff } else { Step::FlowTable }
    }

    fn settles_as(count: &u32, _: &dyn Fn() -> CpuSet) -> u32 {
        power_of_two(*count)
    }
}

/// `net.core.rps_default_mask`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RpsDefaultMask;

impl Knob for RpsDefaultMask {
    type Value = CpuSet;

    const FACTS: &'static KnobFacts = &KnobFacts {
        kind: "rps_default_mask",
        value: "RPS of devices that appear later",
        place: "`/proc/sys/net/core/`",
        step: Step::Rps,
        needs: Capability::None,
        refusals: &[NO_NETWORK_WORK],
        ..KnobFacts::usual(Effect { traffic: Traffic::Unchanged, names_queues: false, owner: None })
    };

    fn location(&self) -> Location<'_> {
        Location::File("/proc/sys/net/core/rps_default_mask".into())
    }

    fn value_in(&self, snapshot: &Snapshot) -> Option<CpuSet> {
        snapshot.net.rps_default_mask.clone()
    }

    fn set_in(&self, snapshot: &mut Snapshot, cpus: CpuSet) {
        put(snapshot.net.rps_default_mask.as_mut(), cpus);
    }

    fn all_in(_: &Snapshot) -> Vec<Self> {
        vec![Self]
    }

    fn settles_as(cpus: &CpuSet, reserved: &dyn Fn() -> CpuSet) -> CpuSet {
        cpus.minus(&reserved())
    }
}

/// `queues/tx-<queue>/xps_cpus`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct XpsCpus {
    /// The device.
    pub netdev: NetdevIdentity,
    /// The tx queue.
    pub queue: u32,
}

impl Knob for XpsCpus {
    type Value = CpuSet;

    const FACTS: &'static KnobFacts = &KnobFacts {
        kind: "xps_cpus",
        fields: "`queue`",
        value: "the empty set switches XPS off",
        place: "`/sys/class/net/DEV/queues/tx-N/`",
        step: Step::Xps,
        absent: Some("a netdev with one tx queue has no XPS"),
        ..KnobFacts::usual(Effect {
            traffic: Traffic::Unchanged,
            names_queues: true,
            owner: Some(OwnedKnob::Xps),
        })
    };

    fn location(&self) -> Location<'_> {
        Location::Netdev {
            netdev: &self.netdev,
            file: format!("queues/tx-{}/xps_cpus", self.queue),
        }
    }

    fn value_in(&self, snapshot: &Snapshot) -> Option<CpuSet> {
        let is_it = |tx: &&TxQueue| tx.index == self.queue;
        snapshot.netdevs.identified(&self.netdev)?.tx_queues.iter().find(is_it)?.xps_cpus.clone()
    }

    fn set_in(&self, snapshot: &mut Snapshot, cpus: CpuSet) {
        let is_it = |tx: &&mut TxQueue| tx.index == self.queue;
        let netdev = snapshot.netdevs.identified_mut(&self.netdev);
        let tx = netdev.and_then(|netdev| netdev.tx_queues.iter_mut().find(is_it));
        put(tx.and_then(|tx| tx.xps_cpus.as_mut()), cpus);
    }

    fn all_in(snapshot: &Snapshot) -> Vec<Self> {
        let of = |netdev: &crate::snapshot::netdev::Netdev| {
            let identity = NetdevIdentity::from_netdev(netdev);
            let knob = move |tx: &TxQueue| Self { netdev: identity.clone(), queue: tx.index };
            netdev.tx_queues.iter().map(knob).collect::<Vec<_>>()
        };
        snapshot.netdevs.iter().flat_map(of).collect()
    }
}

fn rx<'a>(snapshot: &'a Snapshot, netdev: &NetdevIdentity, queue: u32) -> Option<&'a RxQueue> {
    snapshot.netdevs.identified(netdev)?.rx_queues.iter().find(|rx| rx.index == queue)
}

fn rx_mut<'a>(
    snapshot: &'a mut Snapshot,
    netdev: &NetdevIdentity,
    queue: u32,
) -> Option<&'a mut RxQueue> {
    snapshot.netdevs.identified_mut(netdev)?.rx_queues.iter_mut().find(|rx| rx.index == queue)
}

fn rx_queues<K>(snapshot: &Snapshot, knob: impl Fn(NetdevIdentity, u32) -> K) -> Vec<K> {
    let mut all = Vec::new();
    for netdev in &snapshot.netdevs {
        all.extend(
            netdev.rx_queues.iter().map(|rx| knob(NetdevIdentity::from_netdev(netdev), rx.index)),
        );
    }
    all
}

/// The kernel rounds flow counts up to a power of two. 0 stays 0 (`store_rps_dev_flow_table_cnt`,
/// `rps_sock_flow_sysctl`).
fn power_of_two(count: u32) -> u32 {
    if count == 0 { 0 } else { count.checked_next_power_of_two().unwrap_or(count) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_counts_settle_as_the_kernel_rounds_them() {
        assert_eq!([0, 1000, 1024, u32::MAX].map(power_of_two), [0, 1024, 1024, u32::MAX]);
    }
}
