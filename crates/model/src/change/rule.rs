//! A flow steering rule in the words of `ethtool -N`: which flows, and the queue to which they go.

use core::net::IpAddr;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::change::value::ValueError;
use crate::machine::as_text::as_text;
use crate::machine::cpuset::CpuSet;
use crate::snapshot::ethtool::FlowType;

/// Flows of one protocol, selected by exact addresses and ports, and where the device steers them.
///
/// All fields together identify it: two equal rules are the same rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(into = "String", try_from = "String")]
pub struct FlowRule {
    /// The protocol: TCP, UDP or SCTP over IPv4 or IPv6.
    pub flow: FlowType,
    /// Source address; `None` is any.
    pub src_ip: Option<IpAddr>,
    /// Destination address; `None` is any.
    pub dst_ip: Option<IpAddr>,
    /// Source port; `None` is any.
    pub src_port: Option<u16>,
    /// Destination port; `None` is any.
    pub dst_port: Option<u16>,
    /// Where the device steers these flows.
    pub to: Steer,
}

/// Where a rule steers flows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Steer {
    /// To this rx queue (`action 3`).
    Queue(u32),
    /// To these rx queues, by the RSS context that spreads over exactly these (`queues 2-3`).
    Queues(CpuSet),
}

const WANTED: &str = "a rule like `tcp4 dst-port 443 action 3`, or `... queues 2-3`";

impl FlowRule {
    /// All flows of a protocol to a port of this host.
    pub fn to_port(flow: FlowType, port: u16, to: Steer) -> Self {
        Self { flow, src_ip: None, dst_ip: None, src_port: None, dst_port: Some(port), to }
    }

    /// Whether a driver could accept it: the protocol has ports, the addresses are of its family,
    /// and there is at least one address or port.
    pub fn is_sound(&self) -> bool {
        let v4 = match self.flow {
            FlowType::Tcp4 | FlowType::Udp4 | FlowType::Sctp4 => true,
            FlowType::Tcp6 | FlowType::Udp6 | FlowType::Sctp6 => false,
            FlowType::AhEsp4 | FlowType::AhEsp6 => return false,
        };
        let fits = |ip: &Option<IpAddr>| ip.is_none_or(|ip| ip.is_ipv4() == v4);
        let some = self.src_ip.is_some()
            || self.dst_ip.is_some()
            || self.src_port.is_some()
            || self.dst_port.is_some();
        let somewhere = !matches!(&self.to, Steer::Queues(queues) if queues.is_empty());
        some && somewhere && fits(&self.src_ip) && fits(&self.dst_ip)
    }
}

impl fmt::Display for FlowRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.flow)?;
        self.src_ip.iter().try_for_each(|ip| write!(f, " src-ip {ip}"))?;
        self.dst_ip.iter().try_for_each(|ip| write!(f, " dst-ip {ip}"))?;
        self.src_port.iter().try_for_each(|port| write!(f, " src-port {port}"))?;
        self.dst_port.iter().try_for_each(|port| write!(f, " dst-port {port}"))?;
        match &self.to {
            Steer::Queue(queue) => write!(f, " action {queue}"),
            Steer::Queues(queues) => write!(f, " queues {queues}"),
        }
    }
}

impl FromStr for FlowRule {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let refuse = || ValueError::new(text, WANTED);
        let mut words = text.split_whitespace();
        let flow = words
            .next()
            .and_then(|word| FlowType::ALL.into_iter().find(|flow| flow.as_str() == word));
        let mut rule = Self {
            flow: flow.ok_or_else(refuse)?,
            src_ip: None,
            dst_ip: None,
            src_port: None,
            dst_port: None,
            to: Steer::Queue(0),
        };
        let mut steered = false;
        while let (Some(name), Some(value)) = (words.next(), words.next()) {
            let ip = || value.parse().map_err(|_| refuse());
            let port = || value.parse().map_err(|_| refuse());
            match name {
                "src-ip" => rule.src_ip = Some(ip()?),
                "dst-ip" => rule.dst_ip = Some(ip()?),
                "src-port" => rule.src_port = Some(port()?),
                "dst-port" => rule.dst_port = Some(port()?),
                "action" => rule.to = Steer::Queue(value.parse().map_err(|_| refuse())?),
                "queues" => {
                    rule.to = Steer::Queues(CpuSet::parse_list(value).map_err(|_| refuse())?)
                }
                _ => return Err(refuse()),
            }
            steered |= matches!(name, "action" | "queues");
        }
        // A missing or surplus word would be lost without notice, so refuse it.
        let whole = rule.to_string().split_whitespace().count() == text.split_whitespace().count();
        if steered && whole && rule.is_sound() { Ok(rule) } else { Err(refuse()) }
    }
}

as_text!(FlowRule);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_read_as_it_is_written() {
        for text in [
            "tcp4 dst-port 443 action 3",
            "udp6 src-ip 2001:db8::1 dst-ip 2001:db8::2 src-port 53 dst-port 4000 action 0",
            "tcp4 dst-ip 10.0.0.1 dst-port 443 queues 2-3",
        ] {
            assert_eq!(text.parse::<FlowRule>().unwrap().to_string(), text);
        }
        for bad in [
            "",
            "tcp4",
            "tcp4 action 3",
            "tcp4 dst-port 443",
            "tcp4 dst-port 70000 action 3",
            "tcp4 dst-ip ::1 action 3",
            "ah4 dst-ip 10.0.0.1 action 3",
            "tcp4 dst-port 443 action 3 loc",
            "tcp4 dst-port 1 dst-port 443 action 3",
            "tcp4 dst-port 443 m 0xff action 3",
            "tcp4 dst-port 443 action -1",
        ] {
            assert!(bad.parse::<FlowRule>().is_err(), "{bad}");
        }
    }
}
