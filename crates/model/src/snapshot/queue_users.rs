//! Processes that hold rx queues past the kernel's stack, or may hold them.
//!
//! netlink tells that io_uring or device memory holds a queue, and no process. So a process is
//! named with what shows it, as a guess; no plan depends on it.

use serde::{Deserialize, Serialize};

use crate::machine::cpuset::CpuSet;
use crate::machine::words::cpus;
use crate::snapshot::sockets::Holder;

/// A process that holds or may hold queues.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct QueueUser {
    /// The process.
    pub holder: Holder,
    /// What it has.
    pub has: QueueAccess,
    /// Where the kernel thread ran that polls its io_uring (`SqThreadCpu`), or else its threads, at
    /// the moment of reading.
    pub ran_on: CpuSet,
}

/// What a process has that can take packets from a queue; what shows most first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueAccess {
    /// The refill ring of a zero-copy receiver, in its memory map.
    ZeroCopyRing,
    /// An io_uring.
    Ring,
    /// A dmabuf, and a generic netlink socket, with which its binding to a queue ends.
    DeviceMemory,
    /// An `AF_XDP` socket, bound to the queue. This is certain.
    Xdp,
}

impl QueueAccess {
    fn text(self) -> &'static str {
        match self {
            Self::ZeroCopyRing => "maps a zero-copy ring",
            Self::Ring => "has an io_uring",
            Self::DeviceMemory => "has a dmabuf and a netlink socket",
            Self::Xdp => "has the AF_XDP socket",
        }
    }
}

impl QueueUser {
    /// `, ran on cpus 2-3 when read`; empty if that is not known.
    pub fn ran_on(&self) -> String {
        if self.ran_on.is_empty() {
            return String::new();
        }
        format!(", ran on {} when read", cpus(&self.ran_on))
    }
}

/// Who may hold a queue, of all users: those that show most. Empty if there is none.
pub fn possibly(users: &[QueueUser], has: &[QueueAccess]) -> String {
    const NAMED: usize = 3;
    let most = users.iter().map(|it| it.has).filter(|it| has.contains(it)).min();
    let of_most: Vec<&QueueUser> = users.iter().filter(|it| Some(it.has) == most).collect();
    let Some(has) = most.map(QueueAccess::text) else { return String::new() };
    let one = |user: &&QueueUser| {
        let Holder { tgid, comm } = &user.holder;
        format!("{comm} (pid {tgid} {has}{})", user.ran_on())
    };
    match of_most.len() {
        count if count > NAMED => format!(", possibly by one of {count} processes: each {has}"),
        _ => format!(", possibly by {}", of_most.iter().map(one).collect::<Vec<_>>().join(" or ")),
    }
}
