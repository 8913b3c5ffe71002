//! The subject of a counter, a finding or a question: a part of the machine, as a value.
//!
//! Its text (`eth0 rx-3`) is for people, for JSON and for the command line. Code compares values.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::machine::cpuset::CpuId;
use crate::machine::ids::{Irq, NapiId};
use crate::snapshot::host::OwnedKnob;
use crate::snapshot::packet_sockets::{CaptureKind, PacketSocket};
use crate::snapshot::sockets::{Holder, LosingSocket, SocketKind};

/// A part of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(with = "String"))]
pub enum Subject {
    /// The whole machine: `machine`.
    #[default]
    Machine,
    /// A CPU: `cpu3`.
    Cpu(CpuId),
    /// An interrupt: `irq27`.
    Irq(Irq),
    /// A netdev: `eth0`.
    Netdev(String),
    /// Two netdevs or more: `eth0 eth1`.
    Netdevs(Vec<String>),
    /// All of a netdev's receiving or sending: `eth0 rx`.
    Direction(String, Direction),
    /// An rx queue: `eth0 rx-3`.
    Queue(String, u32),
    /// A tx queue: `eth0 tx-3`.
    TxQueue(String, u32),
    /// A NAPI instance whose rx queue is unknown: `eth0 napi 8197`.
    Napi(String, NapiId),
    /// A protocol, or a part of one: `udp`, `ipv4 fragments`.
    Protocol(ProtocolPart),
    /// The sockets of a local port: `udp port 53`.
    Port(SocketKind, u16),
    /// The sockets of a local port that one thread group holds:
    /// `udp port 53 of dnsmasq (pid 812)`.
    Socket(SocketKind, u16, Holder),
    /// The packet sockets of one thread group: `packet sockets of tcpdump (pid 812)`.
    PacketSockets(Holder),
    /// The AF_XDP sockets of one thread group: `AF_XDP sockets of ids (pid 812)`.
    XdpSockets(Holder),
    /// The taps of one thread group: `taps of qemu (pid 812)`.
    Taps(Holder),
    /// An NFQUEUE: `nfqueue 0`.
    NfQueue(u16),
    /// Another network namespace, by its name or inode number: `netns blue`.
    Netns(String),
    /// A part of another network namespace: `udp port 53 in netns blue`.
    InNetns {
        /// Its name.
        netns: String,
        /// The part.
        of: Box<Self>,
    },
    /// Settings of one kind that several programs write: `RPS`.
    Settings(OwnedKnob),
}

impl Subject {
    /// The netdevs that it names.
    pub fn netdevs(&self) -> &[String] {
        match self {
            Self::Netdev(name)
            | Self::Direction(name, _)
            | Self::Queue(name, _)
            | Self::TxQueue(name, _)
            | Self::Napi(name, _) => std::slice::from_ref(name),
            Self::Netdevs(names) => names,
            _ => &[],
        }
    }
}

/// Receiving or sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// Receiving: `rx`.
    Rx,
    /// Sending: `tx`.
    Tx,
}

/// A protocol, or a part of one that has separate counters. Sorted by label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProtocolPart {
    /// Connection tracking.
    Conntrack,
    /// IPsec.
    Ipsec,
    /// IPv4.
    Ipv4,
    /// Reassembly of IPv4 fragments.
    Ipv4Fragments,
    /// Headers of IPv4.
    Ipv4Headers,
    /// Routes of IPv4.
    Ipv4Routes,
    /// IPv6.
    Ipv6,
    /// Reassembly of IPv6 fragments.
    Ipv6Fragments,
    /// Headers of IPv6.
    Ipv6Headers,
    /// Routes of IPv6.
    Ipv6Routes,
    /// The reserve of memory for sockets that free memory.
    MemoryReserve,
    /// The reverse path filter.
    RpFilter,
    /// SCTP.
    Sctp,
    /// TCP.
    Tcp,
    /// The backlog of TCP sockets.
    TcpBacklog,
    /// Checksums of TCP.
    TcpChecksums,
    /// The out-of-order queue of TCP sockets.
    TcpOutOfOrder,
    /// Requests for TCP connections.
    TcpRequests,
    /// UDP over IPv4 (in some counters, UDP over both).
    Udp,
    /// Checksums of UDP.
    UdpChecksums,
    /// The memory limit of all UDP sockets.
    UdpMemory,
    /// UDP over IPv6.
    Udp6,
}

impl Direction {
    /// The text in a subject.
    pub fn label(self) -> &'static str {
        match self {
            Self::Rx => "rx",
            Self::Tx => "tx",
        }
    }
}

impl ProtocolPart {
    /// All of them, sorted by label.
    pub const ALL: [Self; 22] = [
        Self::Conntrack,
        Self::Ipsec,
        Self::Ipv4,
        Self::Ipv4Fragments,
        Self::Ipv4Headers,
        Self::Ipv4Routes,
        Self::Ipv6,
        Self::Ipv6Fragments,
        Self::Ipv6Headers,
        Self::Ipv6Routes,
        Self::MemoryReserve,
        Self::RpFilter,
        Self::Sctp,
        Self::Tcp,
        Self::TcpBacklog,
        Self::TcpChecksums,
        Self::TcpOutOfOrder,
        Self::TcpRequests,
        Self::Udp,
        Self::UdpChecksums,
        Self::UdpMemory,
        Self::Udp6,
    ];

    /// The text of the subject.
    pub fn label(self) -> &'static str {
        match self {
            Self::Conntrack => "conntrack",
            Self::Ipsec => "ipsec",
            Self::Ipv4 => "ipv4",
            Self::Ipv4Fragments => "ipv4 fragments",
            Self::Ipv4Headers => "ipv4 headers",
            Self::Ipv4Routes => "ipv4 routes",
            Self::Ipv6 => "ipv6",
            Self::Ipv6Fragments => "ipv6 fragments",
            Self::Ipv6Headers => "ipv6 headers",
            Self::Ipv6Routes => "ipv6 routes",
            Self::MemoryReserve => "memory reserve",
            Self::RpFilter => "rp_filter",
            Self::Sctp => "sctp",
            Self::Tcp => "tcp",
            Self::TcpBacklog => "tcp backlog",
            Self::TcpChecksums => "tcp checksums",
            Self::TcpOutOfOrder => "tcp out of order",
            Self::TcpRequests => "tcp requests",
            Self::Udp => "udp",
            Self::UdpChecksums => "udp checksums",
            Self::UdpMemory => "udp memory",
            Self::Udp6 => "udp6",
        }
    }
}

impl Subject {
    /// The subject without its network namespace.
    pub fn part(&self) -> &Self {
        match self {
            Self::InNetns { of, .. } => of,
            own => own,
        }
    }

    /// Whether it is UDP, a part of UDP, or UDP sockets.
    pub fn is_udp(&self) -> bool {
        match self.part() {
            Self::Protocol(protocol) => matches!(
                protocol,
                ProtocolPart::Udp
                    | ProtocolPart::Udp6
                    | ProtocolPart::UdpChecksums
                    | ProtocolPart::UdpMemory
            ),
            Self::Port(kind, _) | Self::Socket(kind, ..) => *kind == SocketKind::Udp,
            _ => false,
        }
    }

    /// Whether it is TCP, a part of TCP, or TCP sockets.
    pub fn is_tcp(&self) -> bool {
        match self.part() {
            Self::Protocol(protocol) => matches!(
                protocol,
                ProtocolPart::Tcp
                    | ProtocolPart::TcpBacklog
                    | ProtocolPart::TcpChecksums
                    | ProtocolPart::TcpOutOfOrder
                    | ProtocolPart::TcpRequests
            ),
            Self::Port(kind, _) | Self::Socket(kind, ..) => *kind == SocketKind::TcpListen,
            _ => false,
        }
    }
}

impl PacketSocket {
    /// All sockets of this kind that its holder has.
    pub fn subject(&self) -> Subject {
        match self.kind {
            CaptureKind::Recv | CaptureKind::Ring => Subject::PacketSockets(self.holder.clone()),
            CaptureKind::Xdp => Subject::XdpSockets(self.holder.clone()),
        }
    }
}

impl LosingSocket {
    /// Protocol and port. Several sockets may share a port (`SO_REUSEPORT`).
    pub fn port_subject(&self) -> Subject {
        Subject::Port(self.kind, self.port)
    }

    /// [`Self::port_subject`] with the holder, if it is known.
    pub fn subject(&self) -> Subject {
        match &self.holder {
            Some(holder) => Subject::Socket(self.kind, self.port, holder.clone()),
            None => self.port_subject(),
        }
    }
}

fn settings(knob: OwnedKnob) -> &'static str {
    match knob {
        OwnedKnob::IrqAffinity => "affinity of interrupts",
        OwnedKnob::Rps => "RPS",
        OwnedKnob::Xps => "XPS",
        OwnedKnob::LaterDevices => "later devices",
        OwnedKnob::Sysctls => "sysctls",
    }
}

fn transport(kind: SocketKind) -> &'static str {
    match kind {
        SocketKind::Udp => "udp",
        SocketKind::TcpListen => "tcp",
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine => f.write_str("machine"),
            Self::Cpu(cpu) => write!(f, "cpu{cpu}"),
            Self::Irq(irq) => write!(f, "irq{irq}"),
            Self::Netdev(netdev) => f.write_str(netdev),
            Self::Netdevs(netdevs) => f.write_str(&netdevs.join(" ")),
            Self::Direction(netdev, direction) => write!(f, "{netdev} {}", direction.label()),
            Self::Queue(netdev, queue) => write!(f, "{netdev} rx-{queue}"),
            Self::TxQueue(netdev, queue) => write!(f, "{netdev} tx-{queue}"),
            Self::Napi(netdev, napi) => write!(f, "{netdev} napi {napi}"),
            Self::Protocol(protocol) => f.write_str(protocol.label()),
            Self::Port(kind, port) => write!(f, "{} port {port}", transport(*kind)),
            Self::Socket(kind, port, Holder { tgid, comm }) => {
                write!(f, "{} port {port} of {comm} (pid {tgid})", transport(*kind))
            }
            Self::PacketSockets(Holder { tgid, comm }) => {
                write!(f, "{PACKET_SOCKETS_OF}{comm} (pid {tgid})")
            }
            Self::XdpSockets(Holder { tgid, comm }) => {
                write!(f, "{XDP_SOCKETS_OF}{comm} (pid {tgid})")
            }
            Self::Taps(Holder { tgid, comm }) => write!(f, "{TAPS_OF}{comm} (pid {tgid})"),
            Self::NfQueue(number) => write!(f, "nfqueue {number}"),
            Self::Netns(name) => write!(f, "{NETNS}{name}"),
            Self::InNetns { netns, of } => write!(f, "{of}{IN_NETNS}{netns}"),
            Self::Settings(knob) => f.write_str(settings(*knob)),
        }
    }
}

/// The text is no subject.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected cpu3, irq27, eth0 or eth0/rx-3, found {0:?}")]
pub struct UnknownSubject(String);

/// Parses the printed text and what people type: `3` and `cpu 3` for `cpu3`, `eth0/rx-3`.
///
/// If the name of a netdev is also the text of another subject (`cpu3`), it is read as that
/// subject.
impl FromStr for Subject {
    type Err = UnknownSubject;

    fn from_str(text: &str) -> Result<Self, UnknownSubject> {
        in_netns(text)
            .or_else(|| named(text))
            .or_else(|| numbered(text))
            .or_else(|| sockets(text))
            .or_else(|| part_of_netdev(text))
            .ok_or_else(|| UnknownSubject(text.to_owned()))
    }
}

fn named(text: &str) -> Option<Subject> {
    const SETTINGS: [OwnedKnob; 5] = [
        OwnedKnob::IrqAffinity,
        OwnedKnob::Rps,
        OwnedKnob::Xps,
        OwnedKnob::LaterDevices,
        OwnedKnob::Sysctls,
    ];
    let machine = (text == "machine").then_some(Subject::Machine);
    let protocol = || ProtocolPart::ALL.into_iter().find(|it| it.label() == text);
    let knob = || SETTINGS.into_iter().find(|it| settings(*it) == text);
    machine.or_else(|| protocol().map(Subject::Protocol)).or_else(|| knob().map(Subject::Settings))
}

fn numbered(text: &str) -> Option<Subject> {
    let number = |prefix: &str| text.strip_prefix(prefix)?.trim().parse().ok();
    if let Some(name) = text.strip_prefix(NETNS).filter(|name| !name.is_empty()) {
        return Some(Subject::Netns(name.to_owned()));
    }
    if let Some(queue) = text.strip_prefix("nfqueue ").and_then(|it| it.parse().ok()) {
        return Some(Subject::NfQueue(queue));
    }
    let cpu = number("cpu").or_else(|| number("")).map(|cpu| Subject::Cpu(CpuId(cpu)));
    cpu.or_else(|| number("irq").map(|irq| Subject::Irq(Irq(irq))))
}

const NETNS: &str = "netns ";
const IN_NETNS: &str = " in netns ";

/// `udp port 53 in netns blue`.
fn in_netns(text: &str) -> Option<Subject> {
    let (of, netns) = text.rsplit_once(IN_NETNS)?;
    let of: Subject = of.parse().ok()?;
    // the name of a process may contain these words
    let is_part = !matches!(of, Subject::Netdevs(_) | Subject::Netns(_));
    is_part.then(|| Subject::InNetns { netns: netns.to_owned(), of: Box::new(of) })
}

const PACKET_SOCKETS_OF: &str = "packet sockets of ";
const XDP_SOCKETS_OF: &str = "AF_XDP sockets of ";
const TAPS_OF: &str = "taps of ";

/// `dnsmasq (pid 812)`.
fn holder(text: &str) -> Option<Holder> {
    let (comm, pid) = text.strip_suffix(')')?.rsplit_once(" (pid ")?;
    Some(Holder { tgid: pid.parse().ok()?, comm: comm.to_owned() })
}

fn sockets(text: &str) -> Option<Subject> {
    if let Some(of) = text.strip_prefix(PACKET_SOCKETS_OF) {
        return holder(of).map(Subject::PacketSockets);
    }
    if let Some(of) = text.strip_prefix(XDP_SOCKETS_OF) {
        return holder(of).map(Subject::XdpSockets);
    }
    if let Some(of) = text.strip_prefix(TAPS_OF) {
        return holder(of).map(Subject::Taps);
    }
    let (kind, rest) = [SocketKind::Udp, SocketKind::TcpListen].into_iter().find_map(|kind| {
        Some((kind, text.strip_prefix(transport(kind))?.strip_prefix(" port ")?))
    })?;
    let Some((port, of)) = rest.split_once(" of ") else {
        return Some(Subject::Port(kind, rest.parse().ok()?));
    };
    Some(Subject::Socket(kind, port.parse().ok()?, holder(of)?))
}

/// A netdev's name has no space and no slash (`dev_valid_name`).
fn part_of_netdev(text: &str) -> Option<Subject> {
    let Some((netdev, part)) = text.split_once(['/', ' ']) else {
        return (!text.is_empty()).then(|| Subject::Netdev(text.to_owned()));
    };
    let owned = || netdev.to_owned();
    let queue = |prefix: &str| {
        let number = part.trim().strip_prefix(prefix)?;
        number.strip_prefix('-').unwrap_or(number).parse().ok()
    };
    let napi = || part.strip_prefix("napi ")?.parse().ok();
    let direction = [Direction::Rx, Direction::Tx].into_iter().find(|it| it.label() == part);
    let several = || {
        let names: Vec<String> = text.split(' ').map(str::to_owned).collect();
        let valid = |name: &String| !name.is_empty() && !name.contains('/');
        names.iter().all(valid).then_some(Subject::Netdevs(names))
    };
    direction
        .map(|direction| Subject::Direction(owned(), direction))
        .or_else(|| queue("rx").map(|queue| Subject::Queue(owned(), queue)))
        .or_else(|| queue("tx").map(|queue| Subject::TxQueue(owned(), queue)))
        .or_else(|| napi().map(|napi| Subject::Napi(owned(), NapiId(napi))))
        .or_else(several)
}

impl Serialize for Subject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Subject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_subject_has_a_text_of_its_own_and_is_read_back_from_it() {
        let eth0 = || "eth0".to_owned();
        let holder = |comm: &str| Holder { tgid: 812, comm: comm.to_owned() };
        let within = |of| Subject::InNetns { netns: "blue (shop/web-1)".into(), of: Box::new(of) };
        let mut all = vec![
            (Subject::Machine, "machine"),
            (Subject::Cpu(CpuId(3)), "cpu3"),
            (Subject::Irq(Irq(27)), "irq27"),
            (Subject::Netdev(eth0()), "eth0"),
            (Subject::Netdevs(vec![eth0(), "eth1".into()]), "eth0 eth1"),
            (Subject::Direction(eth0(), Direction::Tx), "eth0 tx"),
            (Subject::Queue(eth0(), 3), "eth0 rx-3"),
            (Subject::TxQueue(eth0(), 3), "eth0 tx-3"),
            (Subject::Napi(eth0(), NapiId(8197)), "eth0 napi 8197"),
            (Subject::Port(SocketKind::Udp, 53), "udp port 53"),
            (
                Subject::Socket(SocketKind::TcpListen, 80, holder("a of (b)/0")),
                "tcp port 80 of a of (b)/0 (pid 812)",
            ),
            (
                Subject::PacketSockets(holder("a of (b)/0")),
                "packet sockets of a of (b)/0 (pid 812)",
            ),
            (Subject::XdpSockets(holder("ids")), "AF_XDP sockets of ids (pid 812)"),
            (Subject::NfQueue(3), "nfqueue 3"),
            (Subject::Netns("4026532301".into()), "netns 4026532301"),
            (Subject::Netns("web (shop/web-1)".into()), "netns web (shop/web-1)"),
            (within(Subject::Netdev(eth0())), "eth0 in netns blue (shop/web-1)"),
            (
                within(Subject::Socket(SocketKind::Udp, 53, holder("dns"))),
                "udp port 53 of dns (pid 812) in netns blue (shop/web-1)",
            ),
            (
                Subject::Socket(SocketKind::Udp, 53, holder("a in netns b")),
                "udp port 53 of a in netns b (pid 812)",
            ),
            (Subject::Settings(OwnedKnob::Rps), "RPS"),
            (Subject::Settings(OwnedKnob::IrqAffinity), "affinity of interrupts"),
        ];
        all.extend(ProtocolPart::ALL.map(|it| (Subject::Protocol(it), it.label())));
        for (subject, text) in all {
            assert_eq!(subject.to_string(), text);
            assert_eq!(text.parse(), Ok(subject.clone()));
            let json = serde_json::to_string(&subject).unwrap();
            assert_eq!(json, format!("{text:?}"));
            assert_eq!(serde_json::from_str::<Subject>(&json).unwrap(), subject);
        }
    }

    #[test]
    fn protocols_are_sorted_by_label() {
        assert!(ProtocolPart::ALL.is_sorted());
        assert!(ProtocolPart::ALL.is_sorted_by_key(|it| it.label()));
    }

    #[test]
    fn what_people_type_is_read_too() {
        let cpu = Ok(Subject::Cpu(CpuId(3)));
        assert_eq!(["3", "cpu 3"].map(str::parse), [cpu.clone(), cpu]);
        assert_eq!("eth0/rx-3".parse(), Ok(Subject::Queue("eth0".into(), 3)));
        assert_eq!("cpu-bond".parse(), Ok(Subject::Netdev("cpu-bond".into())));
        for unknown in ["", "eth0/tx-x", " ", "eth0  eth1"] {
            assert_eq!(unknown.parse::<Subject>(), Err(UnknownSubject(unknown.into())));
        }
    }
}
