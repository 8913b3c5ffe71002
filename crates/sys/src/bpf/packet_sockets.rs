//! Decodes what `bpf/packet_sockets.bpf.c` prints, and subtracts what was counted before.

use std::collections::BTreeMap;

use netsilo_model::snapshot::packet_sockets::{CaptureKind, PacketSocket};
use netsilo_model::snapshot::sockets::Holder;

use crate::bpf::layout;

/// The counts of each socket (by inode) at the last read.
#[derive(Debug, Default)]
pub(crate) struct PacketSockets {
    before: BTreeMap<u64, (u64, u64, i64)>,
}

impl PacketSockets {
    /// What each socket took and lost since the last call, from what the iterator printed.
    pub(crate) fn since(&mut self, bytes: &[u8]) -> Vec<PacketSocket> {
        let all: BTreeMap<u64, PacketSocket> =
            bytes.chunks_exact(layout::SIZEOF_PACKET_SOCKET).rev().filter_map(socket).collect();
        let counts =
            all.iter().map(|(inode, it)| (*inode, (it.packets, it.lost, it.waiting))).collect();
        let before = std::mem::replace(&mut self.before, counts);
        let since = |(inode, mut it): (u64, PacketSocket)| {
            let (packets, lost, waiting) = before.get(&inode).copied().unwrap_or_default();
            // A program that reads its statistics sets both to 0.
            it.packets = it.packets.checked_sub(packets).unwrap_or(it.packets);
            it.lost = it.lost.checked_sub(lost).unwrap_or(it.lost);
            it.waiting -= waiting;
            it
        };
        all.into_iter().map(since).collect()
    }
}

/// Decodes `struct packet_socket` with its inode; `None` if the bytes are malformed. The same
/// socket may be in several files and processes: its first process, usually the one that opened
/// it, counts as its holder.
fn socket(bytes: &[u8]) -> Option<(u64, PacketSocket)> {
    let word = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let text = |at: usize| {
        let text = bytes.get(at..)?.first_chunk::<16>()?.split(|byte| *byte == 0).next()?;
        Some(String::from_utf8_lossy(text).into_owned())
    };
    let long = |at: usize| Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let inode = long(layout::PACKET_SOCKET_INODE)?;
    let holder =
        Holder { tgid: word(layout::PACKET_SOCKET_TGID)?, comm: text(layout::PACKET_SOCKET_COMM)? };
    let socket = PacketSocket {
        holder,
        netns: word(layout::PACKET_SOCKET_NETNS)?,
        netdev: text(layout::PACKET_SOCKET_NETDEV)?,
        kind: match word(layout::PACKET_SOCKET_KIND)? as usize {
            layout::CAPTURE_RECV => CaptureKind::Recv,
            layout::CAPTURE_RING => CaptureKind::Ring,
            _ => CaptureKind::Xdp,
        },
        packets: word(layout::PACKET_SOCKET_PACKETS)?.into(),
        waiting: word(layout::PACKET_SOCKET_WAITING)?.into(),
        queue: word(layout::PACKET_SOCKET_QUEUE)?.checked_sub(1),
        lost: long(layout::PACKET_SOCKET_LOST)?,
    };
    Some((inode, socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_read_from_the_programs_struct() {
        let mut bytes = vec![0; layout::SIZEOF_PACKET_SOCKET];
        bytes[..8].copy_from_slice(&77_u64.to_ne_bytes());
        bytes[8..16].copy_from_slice(&30_u64.to_ne_bytes());
        for (at, word) in [(16, 812_u32), (20, 5), (24, 900), (28, 1), (32, 4), (36, 3)] {
            bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        bytes[40..43].copy_from_slice(b"ids");
        bytes[56..60].copy_from_slice(b"eth0");
        let (inode, read) = socket(&bytes).unwrap();
        assert_eq!(inode, 77);
        assert_eq!((read.holder.tgid, read.holder.comm.as_str()), (812, "ids"));
        assert_eq!((read.netns, read.netdev.as_str()), (5, "eth0"));
        assert_eq!(read.kind, CaptureKind::Ring);
        assert_eq!((read.packets, read.lost, read.waiting), (900, 30, 4));
        assert_eq!(read.queue, Some(2));
        for end in 0..bytes.len() {
            assert_eq!(socket(&bytes[..end]), None, "{end} bytes");
        }
    }
}
