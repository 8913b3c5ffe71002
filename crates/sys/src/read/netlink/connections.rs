//! Reads the TCP connections of this thread's network namespace by `sock_diag`: `struct tcp_info`
//! and buffer sizes.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};

use netlink_bindings::inet_diag::{IterableReplyAttrs, Msg};
use netlink_socket2::NetlinkSocket;
use netsilo_model::snapshot::audit::{Connection, Connections};
use netsilo_model::snapshot::netdev::Netdev;

use crate::read::netlink::sock_diag::{STATES, address, addresses, cookie};
use crate::read::netlink::tcp_dump::TcpDump;

/// Requested extensions, one bit per attribute from bit 0: `INET_DIAG_INFO` (2) and
/// `INET_DIAG_SKMEMINFO` (7).
const EXTENSIONS: u8 = 1 << 1 | 1 << 6;

/// The connections that moved the most bytes, without loopback.
pub(crate) fn read(netdevs: &[Netdev]) -> io::Result<Connections> {
    let mut socket = NetlinkSocket::new();
    let owners = owners(&mut socket, netdevs)?;
    let mut connections = Connections::default();
    let mut replies = socket.request(&TcpDump::new(EXTENSIONS, &STATES))?;
    while let Some(reply) = replies.recv() {
        let (message, attributes) = reply?;
        let Some(connection) = connection(&message, &attributes, &owners) else { continue };
        connections.seen += 1;
        connections.busiest.push(connection);
        if connections.busiest.len() >= 2 * Connections::MAX_LISTED {
            keep_largest(&mut connections.busiest);
        }
    }
    keep_largest(&mut connections.busiest);
    Ok(connections)
}

fn keep_largest(kept: &mut Vec<Connection>) {
    let moved =
        |connection: &Connection| connection.bytes_received.saturating_add(connection.bytes_acked);
    kept.sort_unstable_by_key(|connection| {
        (std::cmp::Reverse(moved(connection)), connection.cookie)
    });
    kept.truncate(Connections::MAX_LISTED);
}

/// The netdev of each address.
fn owners(socket: &mut NetlinkSocket, netdevs: &[Netdev]) -> io::Result<BTreeMap<IpAddr, String>> {
    let mut owners = BTreeMap::new();
    for (ifindex, own) in addresses(socket)? {
        let Some(netdev) = netdevs.iter().find(|netdev| netdev.ifindex == ifindex) else {
            continue;
        };
        owners.extend(own.into_iter().map(|address| (address, netdev.name.clone())));
    }
    Ok(owners)
}

/// Returns `None` for loopback, for a peer on this machine, and without `tcp_info`.
fn connection(
    message: &Msg,
    attributes: &IterableReplyAttrs<'_>,
    owners: &BTreeMap<IpAddr, String>,
) -> Option<Connection> {
    let info = attributes.get_tcp_info().ok()?;
    let id = &message.sockid;
    let local = address(message.family, &id.src);
    let peer = SocketAddr::new(address(message.family, &id.dst), id.dport());
    if peer.ip().is_loopback() || owners.contains_key(&peer.ip()) {
        return None;
    }
    let memory = attributes.get_skmeminfo().unwrap_or_default();
    Some(Connection {
        cookie: cookie(id.cookie),
        netdev: owners.get(&local).cloned(),
        peer: Some(peer),
        snd_mss: info.snd_mss,
        rcv_mss: info.rcv_mss,
        advmss: info.advmss,
        pmtu: info.pmtu,
        rtt_usecs: info.rtt,
        rcv_rtt_usecs: info.rcv_rtt,
        snd_cwnd: info.snd_cwnd,
        rcv_space: info.rcv_space,
        rcv_ssthresh: info.rcv_ssthresh,
        // an older kernel returns a shorter struct; the missing fields read as 0
        rcv_wnd: Some(info.rcv_wnd).filter(|window| *window != 0),
        delivery_rate: info.delivery_rate,
        bytes_acked: info.bytes_acked,
        bytes_received: info.bytes_received,
        data_segs_in: info.data_segs_in,
        total_retrans: info.total_retrans,
        busy_usecs: info.busy_time,
        rwnd_limited_usecs: info.rwnd_limited,
        sndbuf_limited_usecs: info.sndbuf_limited,
        rcvbuf_bytes: word(memory, SK_MEMINFO_RCVBUF),
        sndbuf_bytes: word(memory, SK_MEMINFO_SNDBUF),
    })
}

/// Indexes of `include/uapi/linux/sock_diag.h`.
const SK_MEMINFO_RCVBUF: usize = 1;
const SK_MEMINFO_SNDBUF: usize = 3;

fn word(memory: &[u8], index: usize) -> Option<u32> {
    let bytes = memory.get(index * 4..index * 4 + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connections_with_the_most_bytes_are_kept() {
        let moved =
            |cookie, bytes_received| Connection { cookie, bytes_received, ..Connection::default() };
        let mut kept: Vec<Connection> = (0..300).map(|at| moved(at, at * 10)).collect();
        keep_largest(&mut kept);
        assert_eq!(kept.len(), Connections::MAX_LISTED);
        assert_eq!((kept[0].cookie, kept[255].cookie), (299, 44));
    }

    #[test]
    fn a_missing_word_is_none() {
        let memory: Vec<u8> = [10_u32, 20, 30].iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(word(&memory, SK_MEMINFO_RCVBUF), Some(20));
        assert_eq!(word(&memory, SK_MEMINFO_SNDBUF), None);
    }
}
