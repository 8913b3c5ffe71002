//! Reads the netdevs of this thread's network namespace by rtnetlink (`RTM_GETLINK`), where sysfs
//! shows those of another one.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;

use netlink_bindings::rt_link::{Ifinfomsg, IterableLinkAttrs, Request, RtnlLinkStats64};
use netlink_socket2::NetlinkSocket;
use netsilo_model::snapshot::netdev::Netdev;

use crate::ethtool::get;
use crate::files::root::Root;

/// The netdevs with the statistics that count losses. Of devices, also what ethtool shows.
pub(crate) fn read(root: &Root) -> io::Result<Vec<Netdev>> {
    let mut socket = NetlinkSocket::new();
    let mut replies = socket.request(&Request::new().op_getlink_dump(&Ifinfomsg::new()))?;
    let mut netdevs = Vec::new();
    while let Some(reply) = replies.recv() {
        let (header, attributes) = reply?;
        let Ok(name) = attributes.get_ifname() else { continue };
        let kind = attributes.get_linkinfo().and_then(|info| info.get_kind());
        netdevs.push(Netdev {
            name: text(name),
            ifindex: u32::try_from(header.ifi_index).unwrap_or(0),
            up: header.ifi_flags & libc::IFF_UP as u32 != 0,
            device_path: device_path(root, &attributes),
            driver: kind.ok().map(text),
            statistics: attributes.get_stats64().map(statistics).unwrap_or_default(),
            ..Netdev::default()
        });
    }
    for netdev in netdevs.iter_mut().filter(|netdev| netdev.device_path.is_some()) {
        netdev.ethtool = get::read(&netdev.name).ok();
        let driver = netdev.ethtool.as_ref().and_then(|ethtool| ethtool.driver.value());
        netdev.driver = driver.map(|driver| driver.driver.clone());
    }
    Ok(netdevs)
}

fn text(name: &CStr) -> String {
    name.to_string_lossy().into_owned()
}

/// The device below `/sys`; `None` for a virtual netdev, and before 5.14.
fn device_path(root: &Root, attributes: &IterableLinkAttrs<'_>) -> Option<String> {
    let (bus, name) =
        (attributes.get_parent_dev_bus_name().ok()?, attributes.get_parent_dev_name().ok()?);
    let path = root.resolve(&format!("/sys/bus/{}/devices/{}", text(bus), text(name))).ok()?;
    path.strip_prefix("/sys").map(str::to_owned)
}

fn statistics(of: RtnlLinkStats64) -> BTreeMap<String, u64> {
    let counters = [
        ("rx_crc_errors", of.rx_crc_errors),
        ("rx_dropped", of.rx_dropped),
        ("rx_fifo_errors", of.rx_fifo_errors),
        ("rx_frame_errors", of.rx_frame_errors),
        ("rx_length_errors", of.rx_length_errors),
        ("rx_missed_errors", of.rx_missed_errors),
        ("rx_over_errors", of.rx_over_errors),
        ("tx_dropped", of.tx_dropped),
    ];
    counters.map(|(name, value)| (name.to_owned(), value)).into()
}
