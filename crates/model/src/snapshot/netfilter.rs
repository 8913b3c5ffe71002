//! Counters of connection tracking and of the NFQUEUEs of one network namespace.

use serde::{Deserialize, Serialize};

use crate::snapshot::sockets::Holder;

/// What netfilter counts of packets that it could not handle.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Netfilter {
    /// Of connection tracking; `None` if the kernel has not loaded it.
    pub conntrack: Option<Conntrack>,
    /// The NFQUEUEs that a program has bound.
    pub queues: Vec<NfQueue>,
}

/// Sums over all CPUs (`ctnetlink_ct_stat_cpu_fill_info`). A packet may be in more than one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conntrack {
    /// Packets dropped: no new entry was possible, or an entry could not be confirmed.
    pub drop: u64,
    /// Entries that could not be inserted.
    pub insert_failed: u64,
    /// Entries that were removed early to make room. Their packets were not lost.
    pub early_drop: u64,
    /// Entries now.
    pub entries: Option<u64>,
    /// The most entries that this namespace may have (`nf_conntrack_max`).
    pub max: Option<u64>,
}

/// One NFQUEUE (`net/netfilter/nfnetlink_queue.c:seq_show`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NfQueue {
    /// Its number.
    pub number: u16,
    /// The netlink port of the program that reads it. Nearly always its process id.
    pub port: u32,
    /// That process, if there is one with that id.
    pub reader: Option<Holder>,
    /// Packets that wait for a verdict.
    pub waiting: u32,
    /// Packets dropped because the queue was full.
    pub dropped: u64,
    /// Packets dropped because the program's netlink buffer was full.
    pub user_dropped: u64,
}

impl NfQueue {
    /// Packets lost: each is in one of both counters.
    pub fn lost(&self) -> u64 {
        self.dropped.saturating_add(self.user_dropped)
    }
}
