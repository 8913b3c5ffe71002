//! Listens for kernel announcements: changes of netdevs, channels, rings and CPUs, and the end of a
//! suspend.
//!
//! Nothing is polled.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use netlink_bindings::nlctrl;
use netlink_socket2::NetlinkSocket;
use netsilo_model::parse::announced::{Link, Links, ethtool, uevent};
use netsilo_model::snapshot::event::Event;
use rustix::io::Errno;
use rustix::net::netlink::{GENERIC, KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with,
};
use rustix::time::{ClockId, clock_gettime};

use crate::clock::since_boot;
use crate::files::root::Root;

/// `RTMGRP_LINK`.
const LINK_GROUP: u32 = 1;
/// The kernel's own uevents. Those that udev has processed use another group.
const KERNEL_GROUP: u32 = 1;
/// Shorter differences are ignored, because the two clocks are not read at the same moment.
const SUSPENDED: Duration = Duration::from_secs(1);
/// Buffer size in bytes. By default an rtnetlink datagram is at most a page or 8 KiB
/// (`NLMSG_GOODSIZE`), and a uevent 2 KiB.
const DATAGRAM: usize = 32 * 1024;

/// The open sockets.
#[derive(Debug)]
pub struct Events {
    root: Root,
    route: OwnedFd,
    uevents: OwnedFd,
    ethtool: Option<OwnedFd>,
    links: Links,
    asleep: Duration,
}

impl Events {
    /// Starts listening; reads the current netdevs from `root`.
    pub fn listen(root: &Root) -> io::Result<Self> {
        Ok(Self {
            root: root.clone(),
            route: socket(None, LINK_GROUP)?,
            uevents: socket(Some(KOBJECT_UEVENT), KERNEL_GROUP)?,
            ethtool: monitor().ok(),
            // Read after the sockets are open, so that no change is missed in between.
            links: links(root),
            asleep: asleep(),
        })
    }

    /// The descriptors that become readable when the kernel has announced something.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [&self.route, &self.uevents].into_iter().chain(&self.ethtool).map(AsFd::as_fd)
    }

    /// Whether changes of channels and rings are announced (ethtool netlink, since 5.7).
    pub fn announces_ethtool(&self) -> bool {
        self.ethtool.is_some()
    }

    /// All announcements since the last call. Does not wait.
    pub fn take(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let mut lost = false;
        let mut buffer = vec![0; DATAGRAM];
        lost |= drain(&self.route, &mut buffer, |bytes| events.extend(self.links.events(bytes)));
        lost |= drain(&self.uevents, &mut buffer, |bytes| events.extend(uevent(bytes)));
        if let Some(socket) = &self.ethtool {
            lost |= drain(socket, &mut buffer, |bytes| events.extend(ethtool(bytes)));
        }
        if lost {
            // Announcements were lost, so any netdev may have changed.
            self.links = links(&self.root);
            events.extend(self.links.names().map(|name| Event::Reset(name.to_owned())));
        }
        let asleep = asleep();
        if asleep > self.asleep + SUSPENDED {
            events.push(Event::Resumed);
        }
        self.asleep = asleep;
        events
    }
}

/// Reads everything that is queued; returns whether messages were lost.
fn drain(socket: &OwnedFd, buffer: &mut [u8], mut take: impl FnMut(&[u8])) -> bool {
    let mut lost = false;
    loop {
        match recv(socket, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((length, _)) => take(&buffer[..length]),
            Err(Errno::NOBUFS) => lost = true,
            Err(Errno::INTR) => {}
            Err(_) => return lost,
        }
    }
}

/// Opens a netlink socket. Without a protocol it is an rtnetlink socket.
fn socket(protocol: Option<Protocol>, groups: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// Joins the group `monitor` of ethtool netlink.
fn monitor() -> io::Result<OwnedFd> {
    let mut request = nlctrl::Request::new().op_getfamily_do();
    request.encode().push_family_name_bytes(b"ethtool");
    let mut asked = NetlinkSocket::new();
    let mut reply = asked.request(&request)?;
    let family = reply.recv_one()?;
    let groups = family.get_mcast_groups().map_err(io::Error::other)?;
    let monitor = groups
        .into_iter()
        .find(|group| group.get_name().is_ok_and(|name| name.to_bytes() == b"monitor"));
    let id = monitor.and_then(|group| group.get_id().ok()).ok_or(io::ErrorKind::NotFound)?;
    let socket = socket(Some(GENERIC), 0)?;
    join(&socket, id)?;
    Ok(socket)
}

/// Joins a multicast group, even one whose number does not fit into the address mask.
fn join(socket: &OwnedFd, group: u32) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let (level, name) = (libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP);
    // SAFETY: the kernel reads the four bytes of `group` and keeps no reference to them.
    #[allow(unsafe_code)]
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const group).cast(), 4) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The current netdevs.
fn links(root: &Root) -> Links {
    let read = |name: &str, file: &str| root.read(&format!("/sys/class/net/{name}/{file}")).ok();
    let link = |name: String| {
        let index = read(&name, "ifindex")?.trim().parse().ok()?;
        let up = read(&name, "carrier").is_some_and(|carrier| carrier.trim() == "1");
        Some((index, Link { name, up }))
    };
    let names = root.list("/sys/class/net").unwrap_or_default();
    Links::new(names.into_iter().filter_map(link).collect())
}

/// Total suspend time of this machine since boot.
fn asleep() -> Duration {
    let awake = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
    since_boot().saturating_sub(awake)
}
