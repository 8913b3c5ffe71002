//! Reads which netdevs have an XDP program, by rtnetlink (`RTM_GETLINK`, `IFLA_XDP`).
//!
//! Covers this thread's network namespace.

use std::collections::BTreeMap;
use std::io;

use netlink_bindings::rt_link::{Ifinfomsg, Request};
use netlink_socket2::NetlinkSocket;
use netsilo_model::snapshot::netdev::Xdp;

/// `RTEXT_FILTER_SKIP_STATS` of `include/uapi/linux/rtnetlink.h`: allows the kernel to leave out
/// statistics.
const SKIP_STATS: u32 = 1 << 3;

/// The XDP mode by interface index; devices without a program are missing.
pub(crate) fn read() -> io::Result<BTreeMap<u32, Xdp>> {
    let mut dump = Request::new().op_getlink_dump(&Ifinfomsg::new());
    dump.encode().push_ext_mask(SKIP_STATS);
    let mut socket = NetlinkSocket::new();
    let mut replies = socket.request(&dump)?;
    let mut attached = BTreeMap::new();
    while let Some(reply) = replies.recv() {
        let (header, attributes) = reply?;
        let mode = attributes.get_xdp().and_then(|xdp| xdp.get_attached()).unwrap_or(0);
        if let (Some(xdp), Ok(ifindex)) = (of_mode(mode), u32::try_from(header.ifi_index)) {
            attached.insert(ifindex, xdp);
        }
    }
    Ok(attached)
}

/// `XDP_ATTACHED_*` of `include/uapi/linux/if_link.h`.
fn of_mode(mode: u8) -> Option<Xdp> {
    match mode {
        1 => Some(Xdp::Driver),
        2 => Some(Xdp::Generic),
        3 => Some(Xdp::Hardware),
        4 => Some(Xdp::Several),
        _ => None,
    }
}
