//! [`PortSteering`]: a port whose flows go to chosen rx queues, as `--steer` and goals write it.

use std::fmt;
use std::str::FromStr;

use netsilo_model::machine::as_text::as_text;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::snapshot::attribution::Protocol;
use netsilo_model::snapshot::ethtool::FlowType;
use serde::{Deserialize, Serialize};

/// A port, and the rx queues for its flows (`443/tcp=2-3`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct PortSteering {
    /// The port of this host.
    pub port: u16,
    /// Its protocol: TCP or UDP.
    pub protocol: Protocol,
    /// The rx queues, as a set of numbers; not empty.
    pub queues: CpuSet,
}

/// A text that does not parse as a [`PortSteering`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}`: write a port, its protocol and rx queues, like 443/tcp=2-3")]
pub struct PortSteeringError(String);

as_text!(PortSteering);

impl PortSteering {
    fn word(&self) -> &'static str {
        match self.protocol {
            Protocol::Tcp => "tcp",
            _ => "udp",
        }
    }

    /// The flow types of its protocol.
    pub(super) fn flows(&self) -> [FlowType; 2] {
        match self.protocol {
            Protocol::Tcp => [FlowType::Tcp4, FlowType::Tcp6],
            _ => [FlowType::Udp4, FlowType::Udp6],
        }
    }
}

impl FromStr for PortSteering {
    type Err = PortSteeringError;

    fn from_str(text: &str) -> Result<Self, PortSteeringError> {
        let parsed = || {
            let (flows, queues) = text.split_once('=')?;
            let (port, protocol) = flows.split_once('/')?;
            let protocol = match protocol {
                "tcp" => Protocol::Tcp,
                "udp" => Protocol::Udp,
                _ => return None,
            };
            let port = port.parse().ok().filter(|port| *port != 0)?;
            let queues = CpuSet::parse_list(queues).ok().filter(|queues| !queues.is_empty())?;
            Some(Self { port, protocol, queues })
        };
        parsed().ok_or_else(|| PortSteeringError(text.to_owned()))
    }
}

impl fmt::Display for PortSteering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}={}", self.port, self.word(), self.queues)
    }
}
