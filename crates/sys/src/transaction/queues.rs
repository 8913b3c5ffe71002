//! Finds where the settings of a netdev's queues are now. It finds them by queue, never by the
//! number of an interrupt, NAPI or thread, because the driver may have recreated those.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use netsilo_model::change::EthtoolSetting;
use netsilo_model::parse::pid_stat::pid_stat;
use serde::{Deserialize, Serialize};

use crate::read::process::napi_id;
use crate::transaction::kernel::{Kernel, KnobAddress};

/// A setting of a netdev's queues. They are restored in this order: a NAPI must have its kthread
/// before the kthread's CPUs can be set.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueSetting {
    /// Whether a NAPI has its own kthread.
    NapiThreaded(NapiIndex),
    /// The CPUs of a NAPI's kthread.
    KthreadCpus(NapiIndex),
    /// Policy, nice value and priority of a NAPI's kthread.
    KthreadScheduler(NapiIndex),
    /// The CPUs of an interrupt.
    IrqCpus {
        /// Its action names, joined by commas.
        action: String,
        /// Its index, by number, among interrupts with the same action names.
        index: usize,
    },
    /// The RSS table.
    RssTable,
    /// A file below the netdev's `queues`.
    File(String),
}

/// A NAPI of a netdev, by the order in which its driver made the NAPIs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NapiIndex {
    /// Its index among the NAPIs that have an id, or among the kthreads of those without one (tx
    /// only, or the kthread's name is cut before the id).
    pub index: usize,
    /// Whether it has an id.
    pub has_id: bool,
}

impl std::fmt::Display for QueueSetting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NapiThreaded(napi) => write!(f, "{napi} threaded"),
            Self::KthreadCpus(napi) => write!(f, "kthread of {napi} cpus"),
            Self::KthreadScheduler(napi) => write!(f, "kthread of {napi} scheduling"),
            Self::IrqCpus { action, index: 0 } => write!(f, "interrupt {action} cpus"),
            Self::IrqCpus { action, index } => write!(f, "interrupt {action} ({index}) cpus"),
            Self::RssTable => f.write_str("rss table"),
            Self::File(file) => f.write_str(&file.replace('/', " ")),
        }
    }
}

impl std::fmt::Display for NapiIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", if self.has_id { "napi" } else { "tx napi" }, self.index)
    }
}

/// A kernel thread.
struct Kthread {
    tid: u32,
    comm: String,
}

/// Finds settings. Searches for kernel threads only once.
pub(crate) struct Finder<'a> {
    kernel: &'a dyn Kernel,
    kthreads: OnceCell<Vec<Kthread>>,
}

impl<'a> Finder<'a> {
    pub(crate) fn new(kernel: &'a dyn Kernel) -> Self {
        Self { kernel, kthreads: OnceCell::new() }
    }

    /// All settings of the queues of the netdev with this name.
    pub(crate) fn places(&self, netdev: &str) -> BTreeMap<QueueSetting, KnobAddress> {
        let mut places = BTreeMap::new();
        for (napi, place) in self.napis(netdev) {
            match place {
                KnobAddress::Thread(tid) => {
                    places.insert(QueueSetting::KthreadCpus(napi), place);
                    places
                        .insert(QueueSetting::KthreadScheduler(napi), KnobAddress::Scheduler(tid));
                }
                place => drop(places.insert(QueueSetting::NapiThreaded(napi), place)),
            }
        }
        for (action, index, irq) in self.irqs(netdev) {
            let place = KnobAddress::File(format!("/proc/irq/{irq}/smp_affinity"));
            places.insert(QueueSetting::IrqCpus { action, index }, place);
        }
        places.insert(
            QueueSetting::RssTable,
            KnobAddress::Ethtool(netdev.to_owned(), EthtoolSetting::RssTable(0)),
        );
        let queues = format!("/sys/class/net/{netdev}/queues");
        for queue in self.kernel.names(&queues).unwrap_or_default() {
            let files: &[&str] = match queue.split_once('-') {
                Some(("rx", _)) => &["rps_cpus", "rps_flow_cnt"],
                Some(("tx", _)) => &["xps_cpus", "xps_rxqs"],
                _ => &[],
            };
            for file in files {
                let place = KnobAddress::File(format!("{queues}/{queue}/{file}"));
                places.insert(QueueSetting::File(format!("{queue}/{file}")), place);
            }
        }
        places
    }

    /// The kthreads of a netdev's NAPIs, and the NAPIs whose kthreads can be switched on or off.
    fn napis(&self, netdev: &str) -> Vec<(NapiIndex, KnobAddress)> {
        let mut found = Vec::new();
        let listed = self.listed_napis(netdev);
        for (index, napi) in listed.iter().enumerate() {
            let at = NapiIndex { index, has_id: true };
            found.extend(napi.threaded.map(|_| (at, KnobAddress::NapiThreaded(napi.id))));
        }
        found.extend(
            self.kthreads_of(netdev).into_iter().map(|(at, tid)| (at, KnobAddress::Thread(tid))),
        );
        found
    }

    fn listed_napis(&self, netdev: &str) -> Vec<netsilo_model::snapshot::netdev_genl::Napi> {
        let ifindex = self.kernel.read(&format!("/sys/class/net/{netdev}/ifindex"));
        let ifindex = ifindex.ok().and_then(|text| text.trim().parse().ok());
        ifindex.and_then(|ifindex| self.kernel.napis(ifindex).ok()).unwrap_or_default()
    }

    /// The kthreads of a netdev's NAPIs.
    pub(crate) fn kthreads_of(&self, netdev: &str) -> Vec<(NapiIndex, u32)> {
        let listed = self.listed_napis(netdev);
        let mut named: Vec<(u32, u32)> = Vec::new();
        for kthread in self.kthreads() {
            let napi = listed.iter().find(|napi| napi.pid == Some(kthread.tid));
            let id = napi.map(|napi| napi.id).or_else(|| napi_id(&kthread.comm, netdev));
            named.extend(id.map(|id| (id, kthread.tid)));
        }
        named.sort_unstable();
        let mut without_id = 0;
        let mut with_id = 0;
        let kthread = |(id, tid)| {
            let has_id = id != 0;
            let position = listed.iter().position(|napi| napi.id == id);
            let next = if has_id { &mut with_id } else { &mut without_id };
            let index = position.unwrap_or(*next);
            *next += 1;
            (NapiIndex { index, has_id }, tid)
        };
        named.into_iter().map(kthread).collect()
    }

    /// All kernel threads that poll a NAPI. An ordinary program may have the same name.
    fn kthreads(&self) -> &[Kthread] {
        self.kthreads.get_or_init(|| {
            let kthread = |name: String| {
                let tid: u32 = name.parse().ok()?;
                let comm = self.kernel.read(&format!("/proc/{tid}/comm")).ok()?;
                let comm = comm.trim_end().to_owned();
                let read = |file| self.kernel.read(&format!("/proc/{tid}/{file}")).ok();
                let is_kthread = || {
                    read("stat").and_then(|text| pid_stat(&text).ok()).is_some_and(|it| it.kthread)
                };
                (comm.starts_with("napi/") && is_kthread()).then_some(Kthread { tid, comm })
            };
            self.kernel.names("/proc").unwrap_or_default().into_iter().filter_map(kthread).collect()
        })
    }

    /// The interrupts of a netdev's device that have a handler: action names, index among those
    /// with the same names, and number.
    pub(crate) fn irqs(&self, netdev: &str) -> Vec<(String, usize, u32)> {
        let mut numbers = self.irq_numbers(netdev);
        numbers.sort_unstable();
        let mut alike: BTreeMap<String, usize> = BTreeMap::new();
        let irq = |irq: u32| {
            let action = self.kernel.read(&format!("/sys/kernel/irq/{irq}/actions")).ok()?;
            let action = action.trim_end().to_owned();
            if action.is_empty() {
                return None;
            }
            let next = alike.entry(action.clone()).or_default();
            *next += 1;
            Some((action, *next - 1, irq))
        };
        numbers.into_iter().filter_map(irq).collect()
    }

    /// The numbers of the device's message-signalled interrupts. Without any, the numbers of the
    /// interrupts that have the netdev's name.
    fn irq_numbers(&self, netdev: &str) -> Vec<u32> {
        let device = format!("/sys/class/net/{netdev}/device");
        // A virtio device's interrupts belong to the PCI device above it.
        let is_virtio =
            |link: String| link.rsplit('/').next().is_some_and(|name| name.starts_with("virtio"));
        let above = if self.kernel.read_link(&device).is_ok_and(is_virtio) { "/.." } else { "" };
        let numbers = |folder: &str| -> Vec<u32> {
            let names = self.kernel.names(folder).unwrap_or_default();
            names.into_iter().filter_map(|name| name.parse().ok()).collect()
        };
        let own = numbers(&format!("{device}{above}/msi_irqs"));
        if !own.is_empty() {
            return own;
        }
        let is_of = |irq: &u32| {
            let action = self.kernel.read(&format!("/sys/kernel/irq/{irq}/actions"));
            action.is_ok_and(|action| {
                let rest = action.trim_end().strip_prefix(netdev);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', ':', '.']))
            })
        };
        numbers("/sys/kernel/irq").into_iter().filter(is_of).collect()
    }
}
