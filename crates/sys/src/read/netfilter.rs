//! Counters of connection tracking and NFQUEUE of this thread's network namespace.

use std::io;

use netlink_bindings::conntrack::{Nfgenmsg, Request};
use netlink_socket2::NetlinkSocket;
use netsilo_model::parse::nfnetlink_queue::nfnetlink_queue;
use netsilo_model::parse::scalar;
use netsilo_model::snapshot::netfilter::{Conntrack, Netfilter};
use netsilo_model::snapshot::sockets::Holder;

use crate::files::error::ReadError;
use crate::files::root::Root;

const ENTRIES: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
const MAX: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

/// Reads the counters of the namespace whose `/proc/.../net` is `net`. Asks nothing of connection
/// tracking that is not loaded: the kernel would load it.
pub(crate) fn read(root: &Root, net: &str) -> Result<Netfilter, ReadError> {
    let entries: Option<u64> = root.optional(ENTRIES, scalar::number)?;
    let counted = entries.map(|entries| {
        let counted = conntrack().map_err(|e| ReadError::from_io("ctnetlink", e))?;
        Ok(Conntrack {
            entries: Some(entries),
            max: root.optional(MAX, scalar::number)?,
            ..counted
        })
    });
    let file = format!("{net}/netfilter/nfnetlink_queue");
    let mut queues = root.optional(&file, nfnetlink_queue)?.unwrap_or_default();
    for queue in &mut queues {
        let comm = root.parse(&format!("/proc/{}/comm", queue.port), scalar::word).ok();
        queue.reader = comm.map(|comm| Holder { tgid: queue.port, comm });
    }
    Ok(Netfilter { conntrack: counted.transpose()?, queues })
}

/// The sums over all CPUs (`IPCTNL_MSG_CT_GET_STATS_CPU`).
fn conntrack() -> io::Result<Conntrack> {
    let mut socket = NetlinkSocket::new();
    let mut replies = socket.request(&Request::new().op_get_stats_dump(&Nfgenmsg::new()))?;
    let mut sums = Conntrack::default();
    while let Some(reply) = replies.recv() {
        let (_, cpu) = reply?;
        sums.drop += u64::from(cpu.get_drop().unwrap_or(0));
        sums.insert_failed += u64::from(cpu.get_insert_failed().unwrap_or(0));
        sums.early_drop += u64::from(cpu.get_early_drop().unwrap_or(0));
    }
    Ok(sums)
}
