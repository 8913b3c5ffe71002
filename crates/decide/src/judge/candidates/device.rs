//! The knobs of one netdev that its driver can set, with values worth trying whatever a verdict
//! says. An estimate may be wrong, but a search measures.
//!
//! What a driver reports through ethtool determines which knobs exist. Where a query cannot show
//! that, the driver table does.

use std::fmt;

use netsilo_model::change::{Change, Settings, Table, knobs};
use netsilo_model::drivers::table::{DriverKnob, Drivers};
use netsilo_model::snapshot::ethtool::FlowType;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::{Netdev, NetdevIdentity};

use crate::judge::findings::{hash_ports, spread_over};
use crate::judge::moderation::Moderation;
use crate::judge::verdict::RemedyName;

/// A wait for more packets, in microseconds, if there is none that could be doubled.
const WAIT_USECS: u32 = 20;

/// Number of empty polls from the timer after which the interrupt is enabled again.
const EMPTY_POLLS: u32 = 2;

/// Flow types whose packets have ports.
const WITH_PORTS: [FlowType; 4] = [FlowType::Tcp4, FlowType::Tcp6, FlowType::Udp4, FlowType::Udp6];

/// The names of the settings, without the netdev.
#[derive(Debug, Clone, Copy)]
pub(super) enum DeviceSetting {
    ThreadedNapi,
    SoftirqNapi,
    CoalescingAdaptive,
    CoalescingOff,
    CoalescingLonger,
    IrqDeferral,
    TableEqual,
    HashPorts,
    RingMax,
}

impl fmt::Display for DeviceSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ThreadedNapi => "threaded-napi",
            Self::SoftirqNapi => "softirq-napi",
            Self::CoalescingAdaptive => "coalescing-adaptive",
            Self::CoalescingOff => "coalescing-off",
            Self::CoalescingLonger => "coalescing-longer",
            Self::IrqDeferral => "irq-deferral",
            Self::TableEqual => "table-equal",
            Self::HashPorts => "hash-ports",
            Self::RingMax => "ring-max",
        })
    }
}

/// A setting of a netdev to try.
pub(super) struct DeviceKnob {
    pub(super) name: DeviceSetting,
    /// The remedy whose verdict predicts the effect.
    pub(super) remedy: Option<RemedyName>,
    /// What it writes.
    pub(super) changes: Vec<Change>,
}

/// All settings to try on a netdev. None of them is in effect.
pub(super) fn device_knobs(snapshot: &Snapshot, netdev: &Netdev) -> Vec<DeviceKnob> {
    let host = Host { snapshot, netdev };
    let mut all = vec![host.threaded()];
    all.extend(host.coalescing());
    all.extend([host.deferral(), host.table(), host.hash(), host.ring()]);
    all.retain(|knob| !knob.changes.is_empty());
    all
}

/// A netdev on its machine.
struct Host<'a> {
    snapshot: &'a Snapshot,
    netdev: &'a Netdev,
}

impl Host<'_> {
    fn identity(&self) -> NetdevIdentity {
        NetdevIdentity::from_netdev(self.netdev)
    }

    fn lacks(&self, knob: DriverKnob) -> bool {
        Drivers::shipped().lacks(self.netdev, &self.snapshot.machine.release, knob)
    }

    /// NAPI in kthreads, or in softirqs if kthreads poll now.
    fn threaded(&self) -> DeviceKnob {
        let knob = knobs::Threaded { netdev: self.identity() };
        let (name, remedy, to, reason) = match self.netdev.threaded {
            Some(0) => (
                DeviceSetting::ThreadedNapi,
                Some(RemedyName::ThreadedNapi),
                1,
                "kthreads poll: the scheduler shares their cpus with other threads",
            ),
            _ => (
                DeviceSetting::SoftirqNapi,
                None,
                0,
                "softirqs poll: no context switch for each poll",
            ),
        };
        let changes = Change::of(self.snapshot, knob, to, reason).into_iter().collect();
        DeviceKnob { name, remedy, changes }
    }

    /// No wait before an interrupt, a longer wait, and a wait that the driver adapts.
    fn coalescing(&self) -> Vec<DeviceKnob> {
        let coalesce = self.netdev.ethtool.as_ref().and_then(|it| it.coalesce.value());
        let Some(now) = coalesce.filter(|_| !self.lacks(DriverKnob::Coalesce)) else {
            return Vec::new();
        };
        let (usecs, adaptive) = (now.rx_coalesce_usecs, now.use_adaptive_rx_coalesce);
        let supports = |parameter| {
            let release = &self.snapshot.machine.release;
            Drivers::shipped().supports_coalesce(self.netdev, release, parameter)
        };
        // a value other than 0 shows that the driver supports the setting
        let takes_usecs = usecs > 0 || supports("rx-usecs");
        let moderation = Moderation::of_device(self.netdev, now);
        let is_fixed = usecs > 0 && moderation != Moderation::Adaptive;
        let longer = if is_fixed { usecs.saturating_mul(2) } else { WAIT_USECS };
        let mut all = Vec::new();
        let mut add = |name, remedy, changed: &[(&str, u32)], reason: String| {
            let knob = knobs::Coalesce { netdev: self.identity() };
            let with = |all: Settings, (name, number): &(&str, u32)| all.with(name, *number);
            let new = changed.iter().fold(now.settings(), with);
            let changes = Change::of(self.snapshot, knob, new, reason).into_iter().collect();
            all.push(DeviceKnob { name, remedy, changes });
        };
        if supports("adaptive-rx") {
            let reason = "the driver waits longer as packets arrive faster";
            let remedy = Some(RemedyName::Coalescing);
            add(DeviceSetting::CoalescingAdaptive, remedy, &[("adaptive-rx", 1)], reason.into());
        }
        if takes_usecs {
            let off = [("adaptive-rx", 0), ("rx-usecs", 0)];
            add(
                DeviceSetting::CoalescingOff,
                None,
                &off,
                "each packet raises an interrupt at once".into(),
            );
            let fixed = [("adaptive-rx", 0), ("rx-usecs", longer)];
            let remedy = Some(RemedyName::Coalescing).filter(|_| !adaptive);
            add(
                DeviceSetting::CoalescingLonger,
                remedy,
                &fixed,
                format!("an interrupt is delayed by {longer} us"),
            );
        }
        all
    }

    /// The kernel's timer, if the device itself cannot wait.
    fn deferral(&self) -> DeviceKnob {
        let can_wait = self.netdev.ethtool.as_ref().is_some_and(|it| it.coalesce.value().is_some());
        let (polls, timeout) = (self.netdev.napi_defer_hard_irqs, self.netdev.gro_flush_timeout);
        let is_off = polls == Some(0) && timeout == Some(0);
        let timer = knobs::GroFlushTimeout { netdev: self.identity() };
        let empty = knobs::NapiDeferHardIrqs { netdev: self.identity() };
        let reason = format!("a timer polls every {WAIT_USECS} us instead of interrupts");
        let changes = [
            Change::of(self.snapshot, timer, WAIT_USECS * 1000, reason.clone()),
            Change::of(self.snapshot, empty, EMPTY_POLLS, reason),
        ];
        let changes = changes.into_iter().flatten().filter(|_| is_off && !can_wait).collect();
        DeviceKnob {
            name: DeviceSetting::IrqDeferral,
            remedy: Some(RemedyName::IrqDeferral),
            changes,
        }
    }

    /// The same number of buckets for each queue.
    fn table(&self) -> DeviceKnob {
        let changes = self.equal_table().into_iter().collect();
        DeviceKnob { name: DeviceSetting::TableEqual, remedy: None, changes }
    }

    fn equal_table(&self) -> Option<Change> {
        let ethtool = self.netdev.ethtool.as_ref()?;
        let now = &ethtool.rss.value()?.indirection;
        let rings = ethtool.rx_rings.value().copied();
        let queues = rings.unwrap_or(self.netdev.rx_queues.len() as u32);
        if queues < 2 || self.lacks(DriverKnob::RssTable) {
            return None;
        }
        let equal = (0..now.len() as u32).map(|bucket| bucket % queues).collect();
        let knob = knobs::RssTable { netdev: self.identity(), context: 0 };
        let reason = format!("each of {queues} queues has the same number of buckets");
        Change::of(self.snapshot, knob, Table(equal), reason)
    }

    /// Ports in the hash of all flows that have ports.
    fn hash(&self) -> DeviceKnob {
        let spreads = spread_over(self.netdev) > 1 && !self.lacks(DriverKnob::FlowHash);
        let flow_types = WITH_PORTS.into_iter().filter(|_| spreads);
        let reason = "flows of two hosts spread over the queues by their ports";
        let changes = flow_types.filter_map(|it| hash_ports(self.netdev, it, reason)).collect();
        DeviceKnob { name: DeviceSetting::HashPorts, remedy: None, changes }
    }

    /// The largest receive ring.
    fn ring(&self) -> DeviceKnob {
        let rings = self.netdev.ethtool.as_ref().and_then(|it| it.rings.value());
        let most = rings.filter(|_| !self.lacks(DriverKnob::Rings)).and_then(|rings| {
            let most = rings.rx.filter(|rx| rx.current < rx.max)?.max;
            let knob = knobs::Rings { netdev: self.identity() };
            let reason = format!("a ring of {most} descriptors holds longer bursts");
            Change::of(self.snapshot, knob, rings.settings().with("rx", most), reason)
        });
        let changes = most.into_iter().collect();
        DeviceKnob { name: DeviceSetting::RingMax, remedy: Some(RemedyName::BiggerRing), changes }
    }
}
