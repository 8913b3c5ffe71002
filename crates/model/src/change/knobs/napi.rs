//! How the kernel polls a device: deferred interrupts, threaded NAPI and its kthreads.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::change::knob::{Capability, Effect, Errno, Knob, KnobFacts, put};
use crate::change::knobs::netdev::netdevs;
use crate::change::location::{EthtoolSetting, Location};
use crate::change::step::{Step, Traffic};
use crate::machine::cpuset::CpuSet;
use crate::snapshot::host::Snapshot;
use crate::snapshot::netdev::{self, NetdevIdentity};

/// `napi_defer_hard_irqs`: number of empty polls after which the interrupt is enabled again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NapiDeferHardIrqs {
    /// The device.
    pub netdev: NetdevIdentity,
}

impl Knob for NapiDeferHardIrqs {
    type Value = u32;

    const FACTS: &'static KnobFacts = &KnobFacts {
        kind: "napi_defer_hard_irqs",
        value: "empty polls",
        place: "`/sys/class/net/DEV/`",
        step: Step::Moderation,
        ..KnobFacts::usual(Effect { traffic: Traffic::Unchanged, names_queues: false, owner: None })
    };

    fn location(&self) -> Location<'_> {
        Location::Netdev { netdev: &self.netdev, file: "napi_defer_hard_irqs".into() }
    }

    fn value_in(&self, snapshot: &Snapshot) -> Option<u32> {
        snapshot.netdevs.identified(&self.netdev)?.napi_defer_hard_irqs
    }

    fn set_in(&self, snapshot: &mut Snapshot, polls: u32) {
        let netdev = snapshot.netdevs.identified_mut(&self.netdev);
        put(netdev.and_then(|netdev| netdev.napi_defer_hard_irqs.as_mut()), polls);
    }

    fn all_in(snapshot: &Snapshot) -> Vec<Self> {
        netdevs(snapshot, |netdev| Self { netdev })
    }
}

/// `gro_flush_timeout`, in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GroFlushTimeout {
    /// The device.
    pub netdev: NetdevIdentity,
}

impl Knob for GroFlushTimeout {
    type Value = u32;

    const FACTS: &'static KnobFacts = &KnobFacts {
        kind: "gro_flush_timeout",
        value: "nanoseconds",
        place: "`/sys/class/net/DEV/`",
        step: Step::Moderation,
        ..KnobFacts::usual(Effect { traffic: Traffic::Unchanged, names_queues: false, owner: None })
    };

    fn location(&self) -> Location<'_> {
        Location::Netdev { netdev: &self.netdev, file: "gro_flush_timeout".into() }
    }

    fn value_in(&self, snapshot: &Snapshot) -> Option<u32> {
        u32::try_from(snapshot.netdevs.identified(&self.netdev)?.gro_flush_timeout?).ok()
    }

    fn set_in(&self, snapshot: &mut Snapshot, nanoseconds: u32) {
        let netdev = snapshot.netdevs.identified_mut(&self.netdev);
        put(netdev.and_then(|netdev| netdev.gro_flush_timeout.as_mut()), nanoseconds.into());
    }

    fn all_in(snapshot: &Snapshot) -> Vec<Self> {
        netdevs(snapshot, |netdev| Self { netdev })
    }
}

/// `threaded`: 1 polls the device's NAPIs in kthreads, 0 in softirqs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Threaded {
    /// The device.
    pub netdev: NetdevIdentity,
}

const NO_KTHREADS: &str = "its driver cannot poll in kthreads";

impl Knob for Threaded {
    type Value = u32;

    const FACTS: &'static KnobFacts = &KnobFacts {
        kind: "threaded",
        value: "0 or 1",
        place: "`/sys/class/net/DEV/`",
        undo: "writes back, and what depends on it",
        step: Step::Threads,
        // `napi_stop_kthread` (6.17) polls a bit that a disabled NAPI never clears, under rtnl.
        waits_for_napis: true,
        refusals: &[(Errno::OpNotSupp, NO_KTHREADS), (Errno::Inval, NO_KTHREADS)],
        ..KnobFacts::usual(Effect { traffic: Traffic::Unchanged, names_queues: false, owner: None })
    };

    fn location(&self) -> Location<'_> {
        Location::Netdev { netdev: &self.netdev, file: "threaded".into() }
    }

    fn value_in(&self, snapshot: &Snapshot) -> Option<u32> {
        snapshot.netdevs.identified(&self.netdev)?.threaded
    }

    fn set_in(&self, snapshot: &mut Snapshot, threaded: u32) {
        let netdev = snapshot.netdevs.identified_mut(&self.netdev);
        put(netdev.and_then(|netdev| netdev.threaded.as_mut()), threaded);
    }

    fn all_in(snapshot: &Snapshot) -> Vec<Self> {
        netdevs(snapshot, |netdev| Self { netdev })
    }
}

/// The CPUs of a kthread that polls a NAPI, or works for a Wi-Fi driver (`sched_setaffinity`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NapiThread {
    /// Its process id.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// When it started, in clock ticks after boot. Together with the pid this identifies the
    /// kthread.
    pub start_time: u64,
}

impl Knob for NapiThread {
    type Value = CpuSet;

    const FACTS: &'static KnobFacts = &KnobFacts {
        kind: "napi_thread",
        fields: "`pid`, `comm`, `start_time` (clock ticks after boot)",
        place: "`sched_setaffinity`",
        step: Step::Kthreads,
        needs: Capability::SysNice,
        refusals: &[(
            Errno::Inval,
            "none of these cpus is online and open to this thread; choose others",
        )],
        ..KnobFacts::usual(Effect { traffic: Traffic::Unchanged, names_queues: true, owner: None })
    };

    fn name(&self) -> String {
        format!("kthread {} (pid {})", self.comm, self.pid)
    }

    fn location(&self) -> Location<'_> {
        Location::Thread { id: self.pid, comm: Some(&self.comm), start_time: self.start_time }
    }

    fn value_in(&self, snapshot: &Snapshot) -> Option<CpuSet> {
        let is_same = |pid, start_time| pid == self.pid && start_time == self.start_time;
        let mut napis = snapshot.netdevs.iter().flat_map(|it| &it.napis);
        let of_napi = napis.find_map(|napi| {
            let thread = napi.thread.as_ref()?;
            is_same(thread.pid, thread.start_time).then(|| thread.cpus.clone())
        });
        let other = || {
            let thread = snapshot.net_threads.get(&self.pid)?;
            thread.cpus.clone().filter(|_| is_same(self.pid, thread.start_time))
        };
        of_napi.or_else(other)
    }

    fn set_in(&self, snapshot: &mut Snapshot, cpus: CpuSet) {
        let napis = snapshot.netdevs.iter_mut().flat_map(|netdev| &mut netdev.napis);
        let threads = napis.filter_map(|napi| napi.thread.as_mut());
        for thread in threads.filter(|thread| thread.pid == self.pid) {
            thread.cpus.clone_from(&cpus);
        }
        put(snapshot.net_threads.get_mut(&self.pid).and_then(|it| it.cpus.as_mut()), cpus);
    }

    fn all_in(snapshot: &Snapshot) -> Vec<Self> {
        let napis = snapshot.netdevs.iter().flat_map(|netdev| &netdev.napis);
        let threads = napis.filter_map(|napi| napi.thread.as_ref());
        let mut all: BTreeMap<u32, Self> = BTreeMap::new();
        for netdev::NapiThread { pid, comm, start_time, .. } in threads.cloned() {
            all.insert(pid, Self { pid, comm, start_time });
        }
        for (pid, thread) in &snapshot.net_threads {
            if thread.is_movable() {
                let (comm, start_time) = (thread.comm.clone(), thread.start_time);
                all.insert(*pid, Self { pid: *pid, comm, start_time });
            }
        }
        all.into_values().collect()
    }

    /// A driver that recreates its NAPIs ends their kthreads (a veth does so when `rx-gro` is
    /// switched). So does `threaded` from 6.17 on.
    fn is_void_after(&self, other: &Location<'_>) -> bool {
        let ends = match other {
            Location::Netdev { file, .. } => ["threaded", "mtu"].contains(&file.as_str()),
            Location::Ethtool { setting, .. } => match setting {
                EthtoolSetting::Channels | EthtoolSetting::Rings => true,
                EthtoolSetting::Offload(feature) => feature == "rx-gro",
                _ => false,
            },
            _ => false,
        };
        ends && other.netdev().is_some_and(|netdev| self.is_of(&netdev.name))
    }

    /// The kthread's name contains that of its device (`napi/<dev>-<id>`, cut to 15 bytes).
    fn is_of(&self, netdev: &str) -> bool {
        let of_netdev = |device: &str| {
            netdev.starts_with(device)
                || device.rsplit_once('-').is_some_and(|(device, _)| device == netdev)
        };
        self.comm.strip_prefix("napi/").is_some_and(of_netdev)
    }
}
