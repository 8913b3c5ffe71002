//! Sockets of this thread's network namespace that have lost packets.
//!
//! UDP sockets are read from `/proc/net/udp`, listeners from sock_diag.

use std::io;

use netlink_bindings::inet_diag::{self, IterableReplyAttrs, Msg, ReqV2, TcpState};
use netlink_socket2::NetlinkSocket;
use netsilo_model::parse::net_udp::{UdpSocket, net_udp};
use netsilo_model::parse::sockstat::in_use;
use netsilo_model::snapshot::sockets::{Holder, LosingSocket, SocketKind};

use crate::files::error::ReadError;
use crate::files::root::Root;
use crate::read::sock_owners::Holders;

/// `SK_MEMINFO_DROPS` of `include/uapi/linux/sock_diag.h`: the word of `INET_DIAG_SKMEMINFO` that
/// counts drops.
const DROPS: usize = 8;

/// A socket that may have dropped something, with the number of sockets of its address and port.
pub(crate) struct Candidate {
    pub(crate) socket: LosingSocket,
    pub(crate) group: u32,
    /// Inode number of its network namespace, if it is another than netsilo's.
    pub(crate) netns: Option<u32>,
}

/// All UDP sockets and listeners of this thread's network namespace, whose `/proc/.../net` is
/// `net`. Leaves out listeners if the kernel has no `tcp_diag`.
pub(crate) fn candidates(
    root: &Root,
    net: &str,
    netns: Option<u32>,
) -> Result<Vec<Candidate>, ReadError> {
    let mut sockets: Vec<Candidate> = Vec::new();
    for (family, version) in [(libc::AF_INET, ""), (libc::AF_INET6, "6")] {
        // the kernel searches the sockets of all namespaces, even if this one has none
        let numbers = root.read(&format!("{net}/sockstat{version}")).unwrap_or_default();
        let is_used = |name: &str| in_use(&numbers, &format!("{name}{version}")) != Some(0);
        if is_used("UDP") {
            let file = format!("{net}/udp{version}");
            let read = root.optional(&file, net_udp)?.unwrap_or_default();
            let of =
                |socket: &UdpSocket| Candidate { socket: udp(socket), group: socket.group, netns };
            sockets.extend(read.iter().map(of));
        }
        if is_used("TCP") {
            let read = listeners(family).unwrap_or_default();
            sockets.extend(read.into_iter().map(|socket| Candidate { socket, group: 1, netns }));
        }
    }
    Ok(sockets)
}

/// The sockets that have dropped something, with their holders.
pub(crate) fn losing<'a>(
    root: &Root,
    candidates: impl Iterator<Item = &'a Candidate>,
    holders: &Holders,
) -> Vec<LosingSocket> {
    let with_holder = |socket: &LosingSocket| {
        let tgid = holders.get(&socket.inode).and_then(|fds| fds.keys().next());
        LosingSocket { holder: tgid.and_then(|tgid| holder(root, *tgid)), ..socket.clone() }
    };
    let all = candidates.map(|it| &it.socket).filter(|socket| socket.drops > 0);
    let mut losing: Vec<LosingSocket> = all.map(with_holder).collect();
    losing.sort_unstable();
    losing
}

fn holder(root: &Root, tgid: u32) -> Option<Holder> {
    let comm =
        root.parse(&format!("/proc/{tgid}/comm"), netsilo_model::parse::scalar::word).ok()?;
    Some(Holder { tgid, comm })
}

fn udp(socket: &UdpSocket) -> LosingSocket {
    LosingSocket {
        kind: SocketKind::Udp,
        port: socket.port,
        inode: socket.inode,
        drops: socket.drops,
        queued: socket.queued,
        limit: None,
        holder: None,
    }
}

fn listeners(family: i32) -> io::Result<Vec<LosingSocket>> {
    let mut netlink = NetlinkSocket::new();
    let mut sockets = Vec::new();
    let header = ReqV2 {
        family: family as u8,
        protocol: libc::IPPROTO_TCP as u8,
        // one bit per attribute, from bit 0: INET_DIAG_SKMEMINFO is attribute 7
        ext: 1 << 6,
        states: 1 << TcpState::Listen as u32,
        ..ReqV2::default()
    };
    let mut replies = netlink.request(&inet_diag::Request::new().op_tcp_diag_dump(&header))?;
    while let Some(reply) = replies.recv() {
        let (message, attributes) = reply?;
        sockets.extend(listener(&message, &attributes));
    }
    Ok(sockets)
}

/// For a listener `rqueue` is the length of its accept queue and `wqueue` the limit
/// (`net/ipv4/tcp_diag.c:tcp_diag_get_info`).
fn listener(message: &Msg, attributes: &IterableReplyAttrs<'_>) -> Option<LosingSocket> {
    let words = attributes.get_skmeminfo().ok()?;
    let drops = words
        .chunks_exact(4)
        .nth(DROPS)
        .and_then(|word| word.try_into().ok())
        .map(u32::from_ne_bytes)?;
    Some(LosingSocket {
        kind: SocketKind::TcpListen,
        port: message.sockid.sport(),
        inode: message.inode,
        drops: drops.into(),
        queued: message.rqueue,
        limit: Some(message.wqueue),
        holder: None,
    })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, listen, socket_with};

    use super::*;

    fn lost(kind: SocketKind, port: u16) -> Option<LosingSocket> {
        let read =
            crate::read::socket_readers::Sockets::read(&Root::live(), None, Vec::new()).unwrap();
        read.losing.into_iter().find(|socket| socket.kind == kind && socket.port == port)
    }

    #[test]
    fn an_unread_socket_loses_datagrams_and_we_are_its_holder() {
        let reader = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = reader.local_addr().unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        while lost(SocketKind::Udp, address.port()).is_none() {
            for _ in 0..1000 {
                sender.send_to(&[0; 1024], address).unwrap();
            }
        }
        let socket = lost(SocketKind::Udp, address.port()).unwrap();
        assert!(socket.queued > 0, "{socket:?}");
        assert_eq!(socket.holder.map(|holder| holder.tgid), Some(std::process::id()));
    }

    #[test]
    fn a_listener_whose_queue_is_full_loses_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listen(&listener, 1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut clients = Vec::new();
        while lost(SocketKind::TcpListen, address.port()).is_none() {
            assert!(clients.len() < 1000, "no connection was turned away");
            let client =
                socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::NONBLOCK, None)
                    .unwrap();
            // still in progress, or refused at the end
            let _ = connect(&client, &address);
            clients.push(client);
        }
        let socket = lost(SocketKind::TcpListen, address.port()).unwrap();
        assert_eq!(socket.limit, Some(1), "{socket:?}");
    }
}
