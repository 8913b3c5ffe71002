//! Decodes kernel notifications from bytes to [`Event`]s: links (rtnetlink), channels and rings
//! (ethtool netlink), CPUs (uevents).

use std::collections::BTreeMap;

use crate::machine::cpuset::CpuId;
use crate::snapshot::event::Event;

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
/// The size of `struct ifinfomsg`.
const IFINFO: usize = 16;
const IFLA_IFNAME: u16 = 3;
const IFF_UP: u32 = 1;
/// The device has a carrier.
const IFF_LOWER_UP: u32 = 1 << 16;

/// The size of `struct genlmsghdr`.
const GENL: usize = 4;
const ETHTOOL_MSG_RINGS_NTF: u8 = 17;
const ETHTOOL_MSG_CHANNELS_NTF: u8 = 19;
/// The value of both `ETHTOOL_A_RINGS_HEADER` and `ETHTOOL_A_CHANNELS_HEADER`.
const HEADER: u16 = 1;
const ETHTOOL_A_HEADER_DEV_NAME: u16 = 2;

/// The last announced state of all netdevs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Links(BTreeMap<u32, Link>);

/// The announced state of a netdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Whether it is up and has a carrier.
    pub up: bool,
}

impl Links {
    /// Starts with the current netdevs by interface index. Notifications are compared with them.
    pub fn new(links: BTreeMap<u32, Link>) -> Self {
        Self(links)
    }

    /// The names of all netdevs.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.values().map(|link| link.name.as_str())
    }

    /// The events of rtnetlink messages of the link group. A message without a relevant change
    /// gives none.
    pub fn events(&mut self, bytes: &[u8]) -> Vec<Event> {
        messages(bytes).flat_map(|(kind, payload)| self.message(kind, payload)).collect()
    }

    fn message(&mut self, kind: u16, payload: &[u8]) -> Vec<Event> {
        let word = |at: usize| {
            payload.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_ne_bytes)
        };
        let (Some(index), Some(flags), Some(attributes)) =
            (word(4), word(8), payload.get(IFINFO..))
        else {
            return Vec::new();
        };
        if kind == RTM_DELLINK {
            // A bridge announces the loss of a port by a DELLINK of its own family. The netdev
            // still exists.
            let whole = payload[0] == 0;
            let gone = if whole { self.0.remove(&index) } else { None };
            return gone.map(|link| Event::NetdevRemoved(link.name)).into_iter().collect();
        }
        let name = attribute(attributes, IFLA_IFNAME).and_then(text);
        let (RTM_NEWLINK, Some(name)) = (kind, name) else { return Vec::new() };
        let up = flags & (IFF_UP | IFF_LOWER_UP) == IFF_UP | IFF_LOWER_UP;
        self.link(index, Link { name, up })
    }

    fn link(&mut self, index: u32, link: Link) -> Vec<Event> {
        let new = link.clone();
        match self.0.insert(index, link) {
            None => vec![Event::NetdevAdded(new.name)],
            Some(old) => {
                let renamed = (old.name != new.name)
                    .then(|| Event::Renamed { from: old.name, to: new.name.clone() });
                let turn = if new.up { Event::LinkUp } else { Event::LinkDown };
                let turned = (old.up != new.up).then(|| turn(new.name));
                renamed.into_iter().chain(turned).collect()
            }
        }
    }
}

/// The events of messages of ethtool's `monitor` group: changes of channels and rings, which reset
/// the driver.
pub fn ethtool(bytes: &[u8]) -> Vec<Event> {
    let reset = |payload: &[u8]| {
        let of_interest =
            matches!(payload.first(), Some(&(ETHTOOL_MSG_RINGS_NTF | ETHTOOL_MSG_CHANNELS_NTF)));
        let header = attribute(payload.get(GENL..).filter(|_| of_interest)?, HEADER)?;
        attribute(header, ETHTOOL_A_HEADER_DEV_NAME).and_then(text).map(Event::Reset)
    };
    messages(bytes).filter_map(|(_, payload)| reset(payload)).collect()
}

/// The event of a uevent. Only for CPUs, because rtnetlink announces netdevs.
pub fn uevent(bytes: &[u8]) -> Option<Event> {
    let text = String::from_utf8_lossy(bytes);
    let value =
        |key: &str| text.split('\0').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
    if value("SUBSYSTEM") != Some("cpu") {
        return None;
    }
    let cpu = CpuId(value("DEVPATH")?.rsplit_once("/cpu")?.1.parse().ok()?);
    match value("ACTION")? {
        "online" => Some(Event::CpuOnline(cpu)),
        "offline" => Some(Event::CpuOffline(cpu)),
        _ => None,
    }
}

/// The netlink messages of one datagram: type and payload. Stops at a truncated message.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
        let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
        let payload = bytes.get(16..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, payload))
    })
}

/// The payload of the first attribute of type `wanted`.
fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let half = |at: usize| {
            bytes.get(at..at + 2).and_then(|half| half.try_into().ok()).map(u16::from_ne_bytes)
        };
        let (length, kind) = (half(0)? as usize, half(2)? & 0x3fff);
        let payload = bytes.get(4..length)?;
        if kind == wanted {
            return Some(payload);
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
    }
}

fn text(bytes: &[u8]) -> Option<String> {
    Some(std::str::from_utf8(bytes).ok()?.trim_end_matches('\0').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = ((payload.len() + 4) as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u32 + 16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(16, 0);
        bytes.extend(payload);
        bytes
    }

    fn link(kind: u16, family: u8, index: u32, flags: u32, name: &str) -> Vec<u8> {
        let mut payload = vec![family, 0, 0, 0];
        payload.extend(index.to_ne_bytes());
        payload.extend(flags.to_ne_bytes());
        payload.extend([0; 4]);
        payload.extend(attr(13, &1000u32.to_ne_bytes()));
        payload.extend(attr(IFLA_IFNAME, format!("{name}\0").as_bytes()));
        message(kind, &payload)
    }

    const UP: u32 = IFF_UP | IFF_LOWER_UP;

    #[test]
    fn only_a_change_is_an_event() {
        let mut links = Links::default();
        assert_eq!(
            links.events(&link(RTM_NEWLINK, 0, 2, UP, "eth0")),
            [Event::NetdevAdded("eth0".into())]
        );
        assert_eq!(links.events(&link(RTM_NEWLINK, 0, 2, UP, "eth0")), []);
        assert_eq!(
            links.events(&link(RTM_NEWLINK, 0, 2, IFF_UP, "eth0")),
            [Event::LinkDown("eth0".into())]
        );
        assert_eq!(links.events(&link(RTM_NEWLINK, 0, 2, 0, "eth0")), []);
        let renamed = Event::Renamed { from: "eth0".into(), to: "lan".into() };
        assert_eq!(
            links.events(&link(RTM_NEWLINK, 0, 2, UP, "lan")),
            [renamed, Event::LinkUp("lan".into())]
        );
        assert_eq!(links.events(&link(RTM_DELLINK, 7, 2, UP, "lan")), [], "a bridge lost a port");
        assert_eq!(
            links.events(&link(RTM_DELLINK, 0, 2, 0, "lan")),
            [Event::NetdevRemoved("lan".into())]
        );
        assert_eq!(links, Links::default());
    }

    #[test]
    fn several_messages_in_one_datagram_are_several_events() {
        let both =
            [link(RTM_NEWLINK, 0, 2, UP, "eth0"), link(RTM_NEWLINK, 0, 3, 0, "eth1")].concat();
        assert_eq!(Links::default().events(&both).len(), 2);
    }

    #[test]
    fn channels_and_rings_reset_the_driver_and_other_messages_do_not() {
        let header =
            [attr(1, &2u32.to_ne_bytes()), attr(ETHTOOL_A_HEADER_DEV_NAME, b"eth0\0")].concat();
        let note =
            |cmd: u8| message(21, &[vec![cmd, 1, 0, 0], attr(HEADER | 0x8000, &header)].concat());
        assert_eq!(ethtool(&note(ETHTOOL_MSG_CHANNELS_NTF)), [Event::Reset("eth0".into())]);
        assert_eq!(ethtool(&note(ETHTOOL_MSG_RINGS_NTF)), [Event::Reset("eth0".into())]);
        assert_eq!(ethtool(&note(21)), []);
    }

    #[test]
    fn cpus_come_and_go_by_uevent() {
        let event = |action: &str, subsystem: &str, path: &str| {
            uevent(
                format!(
                    "{action}@{path}\0ACTION={action}\0DEVPATH={path}\0\
                     SUBSYSTEM={subsystem}\0SEQNUM=9\0"
                )
                .as_bytes(),
            )
        };
        assert_eq!(
            event("offline", "cpu", "/devices/system/cpu/cpu13"),
            Some(Event::CpuOffline(CpuId(13)))
        );
        assert_eq!(
            event("online", "cpu", "/devices/system/cpu/cpu0"),
            Some(Event::CpuOnline(CpuId(0)))
        );
        assert_eq!(event("add", "cpu", "/devices/system/cpu/cpu0"), None);
        assert_eq!(event("online", "memory", "/devices/system/memory/memory3"), None);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, cut in 0..80usize, at in 0..80usize, byte: u8) {
            let _ = (Links::default().events(&bytes), ethtool(&bytes), uevent(&bytes));
            let mut real = link(RTM_NEWLINK, 0, 2, UP, "eth0");
            if let Some(place) = real.get_mut(at) {
                *place = byte;
            }
            real.truncate(cut);
            let _ = (Links::default().events(&real), ethtool(&real));
        }
    }
}
