//! Notifications of the kernel: rtnetlink links, ethtool's monitor group, uevents.

use std::collections::BTreeSet;

use netsilo_model::parse::announced::{Links, ethtool, uevent};

use crate::target::FuzzTarget;

pub(crate) const TARGET: FuzzTarget = FuzzTarget { seeds, ..FuzzTarget::bytes(holds) };

fn holds(bytes: &[u8]) {
    let mut links = Links::default();
    let first = links.events(bytes);
    let names: BTreeSet<&str> = links.names().collect();
    assert!(first.len() >= names.len(), "each netdev that is there was announced");
    // A message takes 16 bytes; at most two events come from one.
    assert!(first.len() <= bytes.len() / 8 + 2);
    let _ = (ethtool(bytes), uevent(bytes));
}

fn seeds() -> Vec<Vec<u8>> {
    let attribute = |kind: u16, payload: &[u8]| {
        let mut bytes = ((payload.len() + 4) as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    };
    let message = |kind: u16, payload: &[u8]| {
        let mut bytes = (payload.len() as u32 + 16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(16, 0);
        bytes.extend(payload);
        bytes
    };
    // `struct ifinfomsg`, then IFLA_IFNAME (3).
    let link = |kind: u16, index: u32, flags: u32, name: &str| {
        let mut payload = vec![0; 4];
        payload.extend(index.to_ne_bytes().into_iter().chain(flags.to_ne_bytes()).chain([0; 4]));
        payload.extend(attribute(3, format!("{name}\0").as_bytes()));
        message(kind, &payload)
    };
    // ETHTOOL_MSG_CHANNELS_NTF (19) with its nested header (1) and the device's name (2).
    let header = attribute(0x8001, &attribute(2, b"eth0\0"));
    let channels = message(21, &[vec![19, 1, 0, 0], header].concat());
    let uevent = "online@/devices/system/cpu/cpu3\0ACTION=online\0\
                  DEVPATH=/devices/system/cpu/cpu3\0SUBSYSTEM=cpu\0";
    let (up, down) = (link(16, 2, 0x1_0001, "eth0"), link(16, 2, 1, "eth0"));
    vec![
        [up.clone(), down, link(16, 2, 1, "lan"), link(17, 2, 0, "lan")].concat(),
        up,
        channels,
        uevent.as_bytes().to_vec(),
    ]
}
