//! The network namespaces of a machine, save for the one in which netsilo runs.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::machine::reading::Reading;
use crate::snapshot::netdevs::Netdevs;
use crate::snapshot::netfilter::Netfilter;
use crate::snapshot::sockets::{Holder, LosingSocket};

/// The other network namespaces of a machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Namespaces {
    /// Those that a process is in or a file holds, by inode number.
    pub all: Vec<Namespace>,
    /// Number of further namespaces, which only processes are in that the kernel hides.
    #[serde(default)]
    pub hidden: u32,
}

/// A network namespace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Namespace {
    /// Inode number.
    pub inode: u32,
    /// The file that holds it (`/run/netns/blue`); `None` if only processes do.
    #[serde(default)]
    pub mount: Option<String>,
    /// Number of processes in it.
    #[serde(default)]
    pub processes: u32,
    /// The process in it with the lowest pid.
    #[serde(default)]
    pub process: Option<Holder>,
    /// The cgroup of this process.
    #[serde(default)]
    pub cgroup: Option<String>,
    /// The pod of this cgroup, `namespace/pod`, if the kubelet logs its name.
    #[serde(default)]
    pub pod: Option<String>,
    /// What was read in it.
    pub counters: Reading<NamespaceCounters>,
}

/// What was read in a network namespace at one moment: what a snapshot has of netsilo's own.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NamespaceCounters {
    /// Time since boot (CLOCK_BOOTTIME).
    pub at: Duration,
    /// `SO_NETNS_COOKIE`, which no other namespace of this boot has; `None` before 5.14.
    #[serde(default)]
    pub cookie: Option<u64>,
    /// Its netdevs, with the statistics that count losses. Of a device, also what ethtool shows.
    pub netdevs: Netdevs,
    /// Protocol counters that the ledger of loss and its findings use, with the names of `nstat`.
    pub protocols: BTreeMap<String, u64>,
    /// Its sockets that have dropped something.
    pub losing_sockets: Vec<LosingSocket>,
    /// Connection tracking and NFQUEUEs.
    pub netfilter: Netfilter,
    /// Sysctls that limit sockets. Empty if no socket has dropped anything.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sysctls: BTreeMap<String, String>,
}

impl Namespace {
    /// A namespace of which nothing but the number is known.
    pub fn unread(inode: u32) -> Self {
        Self {
            inode,
            mount: None,
            processes: 0,
            process: None,
            cgroup: None,
            pod: None,
            counters: Reading::Absent("not read yet".into()),
        }
    }
}

impl Namespaces {
    /// The namespace with this inode number.
    pub fn get(&self, inode: u32) -> Option<&Namespace> {
        self.all.binary_search_by_key(&inode, |it| it.inode).ok().and_then(|at| self.all.get(at))
    }
}
