//! Reads the queueing disciplines of this thread's network namespace by rtnetlink (`RTM_GETQDISC`).

use std::io;

use netlink_bindings::tc::{IterableAttrs, Request, Tcmsg};
use netlink_socket2::NetlinkSocket;
use netsilo_model::snapshot::audit::Qdisc;

/// All queueing disciplines in the kernel's order, including `noqueue` of netdevs without a queue.
pub(crate) fn read() -> io::Result<Vec<Qdisc>> {
    let mut socket = NetlinkSocket::new();
    let mut replies = socket.request(&Request::new().op_getqdisc_dump(&Tcmsg::new()))?;
    let mut qdiscs = Vec::new();
    while let Some(reply) = replies.recv() {
        let (header, attributes) = reply?;
        qdiscs.extend(qdisc(&header, &attributes));
    }
    Ok(qdiscs)
}

/// `None` for a queueing discipline without a name.
fn qdisc(header: &Tcmsg, attributes: &IterableAttrs<'_>) -> Option<Qdisc> {
    let mut qdisc = Qdisc {
        ifindex: u32::try_from(header.ifindex).ok()?,
        kind: attributes.get_kind().ok()?.to_string_lossy().into_owned(),
        handle: header.handle,
        parent: header.parent,
        ..Qdisc::default()
    };
    let Ok(stats) = attributes.get_stats2() else { return Some(qdisc) };
    if let Ok(basic) = stats.get_basic() {
        qdisc.bytes = basic.bytes;
        // 32 bits; the wider counter is sent only if the two differ (gnet_stats_copy_basic)
        qdisc.packets = stats.get_pkt64().unwrap_or(u64::from(basic.packets));
    }
    if let Ok(queue) = stats.get_queue() {
        qdisc.drops = queue.drops;
        qdisc.requeues = queue.requeues;
        qdisc.overlimits = queue.overlimits;
        qdisc.qlen = queue.qlen;
        qdisc.backlog_bytes = queue.backlog;
    }
    Some(qdisc)
}

#[cfg(test)]
mod tests {
    use netlink_bindings::tc::Attrs;

    use super::*;

    /// Encodes an attribute: length, type, value, padded to 4 bytes.
    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes =
            [&(value.len() as u16 + 4).to_ne_bytes()[..], &kind.to_ne_bytes()[..], value].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn numbers(values: &[u32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_ne_bytes()).collect()
    }

    #[test]
    fn packets_beyond_32_bits_come_from_the_wide_counter() {
        let basic = [&9_000_u64.to_ne_bytes()[..], &numbers(&[5, 0])].concat();
        let wide = ((1_u64 << 32) + 5).to_ne_bytes();
        // TCA_STATS_BASIC 1, TCA_STATS_QUEUE 3, TCA_STATS_PKT64 8 in TCA_STATS2 7; TCA_KIND 1
        let stats = [
            attribute(1, &basic),
            attribute(3, &numbers(&[1, 1514, 7, 8, 9])),
            attribute(8, &wide),
        ]
        .concat();
        let bytes = [attribute(1, b"fq_codel\0"), attribute(7, &stats)].concat();
        let mut header = Tcmsg::new();
        (header.ifindex, header.parent) = (2, Qdisc::ROOT);
        let parsed = qdisc(&header, &Attrs::new(&bytes)).unwrap();
        assert_eq!(
            (parsed.kind.as_str(), parsed.bytes, parsed.packets),
            ("fq_codel", 9_000, (1 << 32) + 5)
        );
        assert_eq!(
            (parsed.qlen, parsed.backlog_bytes, parsed.drops, parsed.requeues, parsed.overlimits),
            (1, 1514, 7, 8, 9)
        );
        assert!(parsed.is_root());
    }

    #[test]
    fn loopback_has_a_qdisc_unless_the_kernel_lists_none() {
        // a kernel without traffic control has no queueing disciplines
        match read() {
            Ok(qdiscs) => assert!(qdiscs.iter().all(|qdisc| !qdisc.kind.is_empty())),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP)),
        }
    }
}
