//! Samples all TCP sockets of this thread's network namespace, for attribution without eBPF.
//!
//! `sock_diag` reports bytes and inodes, `/proc` the holders, `pidfd_getfd` the NAPI. Two samples
//! make an attribution ([`netsilo_model::derive::sock_diag`]). Listing sockets needs no privilege;
//! reading other users' processes needs root.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use netlink_bindings::inet_diag::{IterableReplyAttrs, Msg, TcpState};
use netlink_bindings::rt_addr::{self, Ifaddrmsg};
use netlink_socket2::NetlinkSocket;
use netsilo_model::derive::sock_diag::{SocketSample, TcpSocket, read_bytes};
use netsilo_model::parse::schedstat;
use rustix::io::Errno;

use crate::clock::since_boot;
use crate::read::netlink::tcp_dump::TcpDump;
use crate::read::pidfd;
use crate::read::sock_owners::{self, Holders};

/// Why sockets cannot be sampled.
#[derive(Debug, thiserror::Error)]
pub enum SockDiagError {
    /// The kernel lists no sockets.
    #[error("the kernel lists no TCP sockets: is its module tcp_diag loaded")]
    Sockets(#[source] io::Error),
    /// The kernel lists no addresses.
    #[error("the kernel lists no addresses")]
    Addresses(#[source] io::Error),
    /// `/proc` cannot be listed.
    #[error("cannot list the processes in /proc: is it mounted")]
    Proc(#[source] io::Error),
}

/// Samples all connected TCP sockets. Also reads the NAPI of those that have received data since
/// `before`.
pub fn sample(before: Option<&SocketSample>) -> Result<SocketSample, SockDiagError> {
    let proc = Path::new("/proc");
    let mut socket = NetlinkSocket::new();
    let mut sample = SocketSample {
        at: since_boot(),
        netns: netns(proc).map_err(SockDiagError::Proc)?,
        sockets: tcp_sockets(&mut socket).map_err(SockDiagError::Sockets)?,
        addresses: addresses(&mut socket).map_err(SockDiagError::Addresses)?,
        ..SocketSample::default()
    };
    let inodes: BTreeSet<u32> =
        sample.sockets.values().map(|socket| socket.inode).filter(|inode| *inode != 0).collect();
    let holders = sock_owners::holders(proc, &inodes).map_err(SockDiagError::Proc)?;
    if let Some(before) = before {
        sample.refused = ask_incoming(&mut sample.sockets, before, &holders).err().map(refusal);
    }
    let tgids: BTreeSet<u32> = holders.values().flat_map(BTreeMap::keys).copied().collect();
    sample.processes =
        tgids.iter().filter_map(|tgid| Some((*tgid, sock_owners::process(proc, *tgid)?))).collect();
    sample.owners =
        holders.into_iter().map(|(inode, fds)| (inode, fds.into_keys().collect())).collect();
    Ok(sample)
}

/// The calling thread's network namespace. Other threads may be in another one.
fn netns(proc: &Path) -> io::Result<u32> {
    let link = std::fs::read_link(proc.join("thread-self/ns/net"))?;
    Ok(link.to_str().and_then(|link| schedstat::link_inode(link, "net")).unwrap_or(0))
}

/// The states in which a socket has data and `struct tcp_info`.
pub(crate) const STATES: [TcpState; 6] = [
    TcpState::Established,
    TcpState::FinWait1,
    TcpState::FinWait2,
    TcpState::CloseWait,
    TcpState::LastAck,
    TcpState::Closing,
];

fn tcp_sockets(netlink: &mut NetlinkSocket) -> io::Result<BTreeMap<u64, TcpSocket>> {
    let mut sockets = BTreeMap::new();
    // INET_DIAG_INFO is attribute 2
    let mut replies = netlink.request(&TcpDump::new(1 << 1, &STATES))?;
    while let Some(reply) = replies.recv() {
        let (message, attributes) = reply?;
        sockets.extend(tcp_socket(&message, &attributes));
    }
    Ok(sockets)
}

/// Returns `None` if there is no `tcp_info`: a FIN_WAIT2 socket that is kept as a time-wait socket.
fn tcp_socket(message: &Msg, attributes: &IterableReplyAttrs<'_>) -> Option<(u64, TcpSocket)> {
    let info = attributes.get_tcp_info().ok()?;
    let id = &message.sockid;
    // states that follow a FIN from the peer
    let fin_received = [TcpState::CloseWait, TcpState::LastAck, TcpState::Closing]
        .iter()
        .any(|state| *state as u8 == message.state);
    let socket = TcpSocket {
        inode: message.inode,
        local: SocketAddr::new(address(message.family, &id.src), id.sport()),
        remote: SocketAddr::new(address(message.family, &id.dst), id.dport()),
        read_bytes: read_bytes(info.bytes_received, message.rqueue, fin_received),
        incoming: None,
    };
    Some((cookie(id.cookie), socket))
}

/// Combines two u32 in the order low, high: `sock_diag_save_cookie`.
pub(crate) fn cookie([a, b, c, d, e, f, g, h]: [u8; 8]) -> u64 {
    let (low, high) = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]));
    u64::from(high) << 32 | u64::from(low)
}

/// A v4 address in the first four bytes, or a v6 address. A v4-mapped address becomes v4.
pub(crate) fn address(family: u8, bytes: &[u8; 16]) -> IpAddr {
    let [a, b, c, d, ..] = *bytes;
    if i32::from(family) == libc::AF_INET {
        Ipv4Addr::new(a, b, c, d).into()
    } else {
        IpAddr::V6(Ipv6Addr::from(*bytes)).to_canonical()
    }
}

/// All addresses of the namespace, by interface index.
pub(crate) fn addresses(netlink: &mut NetlinkSocket) -> io::Result<BTreeMap<u32, Vec<IpAddr>>> {
    let mut addresses: BTreeMap<u32, Vec<IpAddr>> = BTreeMap::new();
    let mut replies =
        netlink.request(&rt_addr::Request::new().op_getaddr_dump(&Ifaddrmsg::new()))?;
    while let Some(reply) = replies.recv() {
        let (header, attributes) = reply?;
        // on a point-to-point link IFA_ADDRESS is the peer's address; v6 has no IFA_LOCAL then
        if let Ok(own) = attributes.get_local().or_else(|_| attributes.get_address()) {
            addresses.entry(header.ifa_index).or_default().push(own);
        }
    }
    Ok(addresses)
}

/// Reads the NAPI of sockets with new data. Returns the last refusal, if the kernel refused for any
/// process.
fn ask_incoming(
    sockets: &mut BTreeMap<u64, TcpSocket>,
    before: &SocketSample,
    holders: &Holders,
) -> Result<(), Errno> {
    let mut result = Ok(());
    let mut processes = BTreeMap::new();
    for (cookie, socket) in sockets {
        let earlier = before.sockets.get(cookie).map_or(0, |socket| socket.read_bytes);
        let holder = holders.get(&socket.inode).and_then(|fds| fds.first_key_value());
        let Some((tgid, fd)) = holder.filter(|_| socket.read_bytes > earlier) else { continue };
        let process = processes.entry(*tgid).or_insert_with(|| pidfd::Process::open(*tgid));
        match process
            .as_ref()
            .map_err(|errno| *errno)
            .and_then(|process| process.incoming(*fd, *cookie))
        {
            Ok(incoming) => socket.incoming = incoming,
            // closed or exited since
            Err(Errno::SRCH | Errno::BADF) => {}
            Err(errno) => result = Err(errno),
        }
    }
    result
}

fn refusal(errno: Errno) -> String {
    match errno {
        Errno::PERM => "EPERM: reading other processes' sockets needs root".to_owned(),
        Errno::NOSYS => "ENOSYS: kernel < 5.6 has no pidfd_getfd".to_owned(),
        errno => format!("{}", io::Error::from(errno)),
    }
}
