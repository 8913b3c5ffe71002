//! Flows: packets that a NIC's hash cannot distinguish, and the rx queue that received them.

use core::net::{IpAddr, SocketAddr};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::machine::as_text::as_text;
use crate::snapshot::ethtool::FlowType;

/// Packets with the same outer headers on one rx queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Flow {
    /// The NIC's name; empty if it was not polled during the observation.
    pub netdev: String,
    /// Its interface index.
    pub ifindex: u32,
    /// Inode number of its network namespace.
    pub netns: u32,
    /// The rx queue, as the driver recorded it.
    pub queue: Option<u32>,
    /// The NIC's hash; `None` if the NIC gave none, as for packets that it cannot hash.
    pub hash: Option<u32>,
    /// The protocol after the outermost network header.
    pub outer: Outer,
    /// Whether the outermost network header is IPv6.
    pub v6: bool,
    /// IP fragments. Only the first has ports, so none are hashed by ports.
    pub fragments: bool,
    /// Number of the peer's address, unique within the observation. 0 without an address.
    pub peer: u32,
    /// Number of the connection, the same for both directions. 0 without addresses.
    pub connection: u32,
    /// Source and destination. A bundle contains them only with `capture --with-addresses`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<Ends>,
    /// Packets as on the wire: packets merged by GRO count one by one.
    pub packets: u64,
    /// Bytes from the outermost network header on, after GRO.
    pub bytes: u64,
}

/// The protocol after the outermost network header of a packet. A NIC can use nothing else.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Outer {
    Tcp,
    Udp,
    Sctp,
    /// In UDP, whose source port is derived from the inner flow.
    Vxlan,
    /// In UDP, whose source port is derived from the inner flow.
    Geneve,
    /// In UDP, between two fixed ports.
    GtpU,
    /// In UDP between two fixed ports: ESP through NAT.
    EspInUdp,
    Gre,
    /// IPv4 in IP.
    IpIp,
    /// IPv6 in IP.
    SixInIp,
    Esp,
    Ah,
    /// PPPoE sessions. The NIC finds no IP header at the expected place.
    Pppoe,
    /// A switch tag (DSA) before the packet.
    Dsa,
    Mpls,
    /// Another protocol over IP, by its number.
    Ip(u8),
    /// Another protocol over Ethernet (ARP, LLDP), by its EtherType.
    Ethernet(u16),
    /// Not recorded.
    #[default]
    Unknown,
}

/// Source and destination of a flow. Ports are 0 if it has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Ends {
    /// The sender.
    pub source: SocketAddr,
    /// The receiver.
    pub target: SocketAddr,
}

impl Ends {
    /// The other direction.
    pub fn reversed(self) -> Self {
        Self { source: self.target, target: self.source }
    }
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end =
            |end: SocketAddr| if end.port() == 0 { end.ip().to_string() } else { end.to_string() };
        write!(f, "{}-{}", end(self.source), end(self.target))
    }
}

/// A flow given by the user: `10.0.0.1:40000-10.0.0.2:443/tcp`,
/// `[2001:db8::1]:53-[2001:db8::2]:53/udp`, `10.0.0.1-10.0.0.2/gre`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(into = "String", try_from = "String")]
pub struct FlowSpec {
    /// The protocol.
    pub outer: Outer,
    /// Sender and receiver.
    pub ends: Ends,
}

/// A text that does not parse as a flow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a flow: {why}; write it like 10.0.0.1:40000-10.0.0.2:443/tcp")]
pub struct FlowSpecError {
    text: String,
    why: &'static str,
}

/// Protocols that a user can give, by name and number.
const PROTOCOLS: [(&str, u8); 9] = [
    ("tcp", 6),
    ("udp", 17),
    ("sctp", 132),
    ("gre", 47),
    ("ipip", 4),
    ("sit", 41),
    ("esp", 50),
    ("ah", 51),
    ("icmp", 1),
];

impl FromStr for FlowSpec {
    type Err = FlowSpecError;

    fn from_str(text: &str) -> Result<Self, FlowSpecError> {
        let refuse = |why| FlowSpecError { text: text.to_owned(), why };
        let (ends, protocol) =
            text.rsplit_once('/').ok_or_else(|| refuse("no protocol after a `/`"))?;
        let (source, target) =
            ends.split_once('-').ok_or_else(|| refuse("no `-` between sender and receiver"))?;
        let by_name =
            PROTOCOLS.iter().find(|(name, _)| *name == protocol).map(|(_, number)| *number);
        let number = by_name
            .or_else(|| protocol.parse().ok())
            .ok_or_else(|| refuse("an unknown protocol"))?;
        let end = |end: &str| {
            let bare = end.trim_start_matches('[').trim_end_matches(']');
            let bare = || Some(SocketAddr::new(bare.parse().ok()?, 0));
            end.parse().ok().or_else(bare).ok_or_else(|| refuse("an end that is not an address"))
        };
        let ends = Ends { source: end(source)?, target: end(target)? };
        if ends.source.is_ipv4() != ends.target.is_ipv4() {
            return Err(refuse("addresses of different families"));
        }
        let outer = Outer::of_ip(number, ends.target.port());
        let ported = matches!(outer, Outer::Tcp | Outer::Sctp) || outer.is_udp();
        match (ends.source.port(), ends.target.port()) {
            (0, _) | (_, 0) if ported => Err(refuse("a port is missing")),
            (0, 0) => Ok(Self { outer, ends }),
            _ if ported => Ok(Self { outer, ends }),
            _ => Err(refuse("this protocol has no ports")),
        }
    }
}

impl fmt::Display for FlowSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = match self.outer {
            Outer::Tcp => 6,
            Outer::Sctp => 132,
            Outer::Gre => 47,
            Outer::IpIp => 4,
            Outer::SixInIp => 41,
            Outer::Esp => 50,
            Outer::Ah => 51,
            Outer::Mpls => 137,
            Outer::Ip(number) => number,
            _ => 17,
        };
        match PROTOCOLS.iter().find(|(_, known)| *known == number) {
            Some((name, _)) => write!(f, "{}/{name}", self.ends),
            None => write!(f, "{}/{number}", self.ends),
        }
    }
}

as_text!(FlowSpec);

/// UDP ports of known encapsulations (IANA, and Linux's own default for VXLAN).
const UDP_PORTS: [(u16, Outer); 5] = [
    (4789, Outer::Vxlan),
    (8472, Outer::Vxlan),
    (6081, Outer::Geneve),
    (2152, Outer::GtpU),
    (4500, Outer::EspInUdp),
];

impl Outer {
    /// Classifies by the protocol number of an IP header and, for UDP, by the destination port.
    pub fn of_ip(protocol: u8, target_port: u16) -> Self {
        let by_port = || {
            UDP_PORTS
                .iter()
                .find(|(port, _)| *port == target_port)
                .map_or(Self::Udp, |(_, outer)| *outer)
        };
        match protocol {
            4 => Self::IpIp,
            6 => Self::Tcp,
            17 => by_port(),
            41 => Self::SixInIp,
            47 => Self::Gre,
            50 => Self::Esp,
            51 => Self::Ah,
            132 => Self::Sctp,
            137 => Self::Mpls,
            other => Self::Ip(other),
        }
    }

    /// Classifies by an EtherType other than IP.
    pub fn of_ethernet(ethertype: u16) -> Self {
        match ethertype {
            0x8864 => Self::Pppoe,
            // eth_type_trans() returns this for every packet on a switch's conduit.
            0x00f8 => Self::Dsa,
            0x8847 | 0x8848 => Self::Mpls,
            other => Self::Ethernet(other),
        }
    }

    /// Whether it encapsulates other flows.
    pub fn is_tunnel(self) -> bool {
        !matches!(
            self,
            Self::Tcp | Self::Udp | Self::Sctp | Self::Ip(_) | Self::Ethernet(_) | Self::Unknown
        )
    }

    /// Whether a NIC sees the flow as UDP.
    pub fn is_udp(self) -> bool {
        matches!(self, Self::Udp | Self::Vxlan | Self::Geneve | Self::GtpU | Self::EspInUdp)
    }

    /// ethtool's flow type whose hash fields apply; `None` means that at most the addresses are
    /// hashed.
    pub fn flow_type(self, v6: bool) -> Option<FlowType> {
        let (four, six) = match self {
            Self::Tcp => (FlowType::Tcp4, FlowType::Tcp6),
            Self::Sctp => (FlowType::Sctp4, FlowType::Sctp6),
            Self::Esp | Self::Ah => (FlowType::AhEsp4, FlowType::AhEsp6),
            outer if outer.is_udp() => (FlowType::Udp4, FlowType::Udp6),
            _ => return None,
        };
        Some(if v6 { six } else { four })
    }
}

impl fmt::Display for Outer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
            Self::Vxlan => "VXLAN",
            Self::Geneve => "Geneve",
            Self::GtpU => "GTP-U",
            Self::EspInUdp => "ESP in UDP",
            Self::Gre => "GRE",
            Self::IpIp => "IPIP",
            Self::SixInIp => "IPv6 in IP",
            Self::Esp => "ESP",
            Self::Ah => "AH",
            Self::Pppoe => "PPPoE",
            Self::Dsa => "DSA",
            Self::Mpls => "MPLS",
            Self::Ip(protocol) => return write!(f, "IP protocol {protocol}"),
            Self::Ethernet(ethertype) => return write!(f, "EtherType {ethertype:#06x}"),
            Self::Unknown => "unknown",
        })
    }
}

impl Flow {
    /// Returns the flow without addresses, as in a bundle.
    pub fn without_addresses(&self) -> Self {
        Self { ends: None, ..self.clone() }
    }
}

/// Assigns `peer` and `connection` numbers by address: 1, 2, ... in sorted order of the addresses.
pub fn assign_numbers(flows: &mut [Flow]) {
    let mut peers: Vec<IpAddr> =
        flows.iter().filter_map(|flow| Some(flow.ends?.source.ip())).collect();
    let both = |ends: Ends| ends.min(ends.reversed());
    let mut connections: Vec<(Outer, Ends)> =
        flows.iter().filter_map(|flow| Some((flow.outer, both(flow.ends?)))).collect();
    peers.sort_unstable();
    peers.dedup();
    connections.sort_unstable();
    connections.dedup();
    for flow in flows {
        let Some(ends) = flow.ends else { continue };
        flow.peer = peers.binary_search(&ends.source.ip()).map_or(0, |at| at as u32 + 1);
        flow.connection =
            connections.binary_search(&(flow.outer, both(ends))).map_or(0, |at| at as u32 + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(source: &str, target: &str) -> Flow {
        let ends = Ends { source: source.parse().unwrap(), target: target.parse().unwrap() };
        Flow { outer: Outer::Tcp, ends: Some(ends), ..Flow::default() }
    }

    #[test]
    fn a_connection_has_one_number_in_both_directions() {
        let mut flows = [
            flow("10.0.0.1:40000", "10.0.0.2:443"),
            flow("10.0.0.2:443", "10.0.0.1:40000"),
            flow("10.0.0.1:40001", "10.0.0.2:443"),
            Flow { outer: Outer::Ethernet(0x0806), ..Flow::default() },
        ];
        assign_numbers(&mut flows);
        assert_eq!(flows.each_ref().map(|flow| flow.peer), [1, 2, 1, 0]);
        assert_eq!(flows.each_ref().map(|flow| flow.connection), [1, 1, 2, 0]);
    }

    #[test]
    fn outer_headers_classify_a_packet() {
        assert_eq!(Outer::of_ip(17, 4789), Outer::Vxlan);
        assert_eq!(Outer::of_ip(17, 53), Outer::Udp);
        assert_eq!(Outer::of_ip(6, 4789), Outer::Tcp);
        assert_eq!(Outer::of_ethernet(0x8864), Outer::Pppoe);
        assert!(Outer::of_ip(47, 0).is_tunnel() && !Outer::of_ip(1, 0).is_tunnel());
        assert_eq!(Outer::Vxlan.flow_type(true), Some(FlowType::Udp6));
        assert_eq!(Outer::Gre.flow_type(false), None);
    }

    #[test]
    fn a_flow_parses_what_it_prints_and_invalid_text_is_refused() {
        let texts = [
            "10.0.0.1:40000-10.0.0.2:443/tcp",
            "[2001:db8::1]:53-[2001:db8::2]:53/udp",
            "10.0.0.1-10.0.0.2/gre",
        ];
        for text in texts.into_iter().chain(["2001:db8::1-2001:db8::2/esp", "10.0.0.1-10.0.0.2/89"])
        {
            assert_eq!(text.parse::<FlowSpec>().unwrap().to_string(), text);
        }
        let vxlan: FlowSpec = "10.0.0.1:40000-10.0.0.2:4789/udp".parse().unwrap();
        assert_eq!(
            (vxlan.outer, vxlan.to_string().as_str()),
            (Outer::Vxlan, "10.0.0.1:40000-10.0.0.2:4789/udp")
        );
        for nonsense in [
            "",
            "a-b/tcp",
            "10.0.0.1-10.0.0.2/tcp",
            "10.0.0.1:1-[::1]:1/udp",
            "10.0.0.1:1-10.0.0.2:2/gre",
            "1/2",
        ] {
            assert!(nonsense.parse::<FlowSpec>().is_err(), "{nonsense}");
        }
    }

    #[test]
    fn a_bundle_contains_flows_without_addresses() {
        let mut flows = [flow("10.0.0.1:40000", "10.0.0.2:443")];
        assign_numbers(&mut flows);
        let json = serde_json::to_string(&flows[0].without_addresses()).unwrap();
        assert!(!json.contains("10.0.0") && json.contains(r#""peer":1"#), "{json}");
        assert_eq!(serde_json::from_str::<Flow>(&json).unwrap(), flows[0].without_addresses());
    }
}
