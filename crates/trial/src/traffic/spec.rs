//! What a load is: the specification that both ends agree on.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Maximum number of instances. Each is a socket, and a client has about 28000 ports.
pub const MAX_INSTANCES: usize = 20_000;

/// Maximum size of a request, response or send call, in bytes.
const MAX_BYTES: usize = 16 << 20;

/// Bytes per call that a TCP stream sends, as in iperf3, and that its reader takes.
const DEFAULT_PIECE: usize = 128 << 10;

/// Maximum payload of a UDP datagram over IPv4, in bytes.
const MAX_DATAGRAM: usize = 65_507;

/// The traffic pattern, with netperf's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Test {
    /// A request and its response, repeated, on one connection per instance.
    #[serde(rename = "TCP_RR")]
    TcpRr,
    /// The same with datagrams.
    #[serde(rename = "UDP_RR")]
    UdpRr,
    /// One connection per request.
    #[serde(rename = "TCP_CRR")]
    TcpCrr,
    /// As many bytes as possible, one way.
    #[serde(rename = "TCP_STREAM")]
    TcpStream,
    /// The same from a file in memory, by `sendfile`: the sender copies nothing.
    #[serde(rename = "TCP_SENDFILE")]
    TcpSendfile,
    /// Datagrams, as many as possible or at a given rate. Lost datagrams stay lost.
    #[serde(rename = "UDP_STREAM")]
    UdpStream,
    /// `UDP_STREAM` with the smallest frames on many flows, to load a machine that forwards.
    #[serde(rename = "FORWARD")]
    Forward,
}

impl Test {
    /// All tests.
    pub const ALL: [Self; 7] = [
        Self::TcpRr,
        Self::UdpRr,
        Self::TcpCrr,
        Self::TcpStream,
        Self::TcpSendfile,
        Self::UdpStream,
        Self::Forward,
    ];

    /// netperf's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TcpRr => "TCP_RR",
            Self::UdpRr => "UDP_RR",
            Self::TcpCrr => "TCP_CRR",
            Self::TcpStream => "TCP_STREAM",
            Self::TcpSendfile => "TCP_SENDFILE",
            Self::UdpStream => "UDP_STREAM",
            Self::Forward => "FORWARD",
        }
    }

    /// Whether requests get responses.
    pub fn has_responses(self) -> bool {
        matches!(self, Self::TcpRr | Self::UdpRr | Self::TcpCrr)
    }

    /// Whether it sends datagrams.
    pub fn is_udp(self) -> bool {
        matches!(self, Self::UdpRr | Self::UdpStream | Self::Forward)
    }

    /// Whether it sends bytes over TCP, one way.
    fn is_tcp_stream(self) -> bool {
        matches!(self, Self::TcpStream | Self::TcpSendfile)
    }

    /// Whether `MSG_ZEROCOPY` applies. It does for streams from a buffer; `sendfile` copies nothing
    /// anyway.
    pub fn may_zero_copy(self) -> bool {
        matches!(self, Self::TcpStream | Self::UdpStream)
    }

    /// Default number of bytes per send call: iperf3's size, a full Ethernet frame, or the minimum.
    pub fn default_send_bytes(self) -> usize {
        match self {
            Self::UdpStream => 1472,
            Self::Forward => 18,
            _ => DEFAULT_PIECE,
        }
    }

    /// Default number of instances.
    pub fn default_instances(self) -> usize {
        if self == Self::Forward { 64 } else { 1 }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// How an instance runs.
///
/// The choice changes the result: a thread with one connection sleeps and is woken for each
/// response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum InstancesAs {
    /// One process each, as in netperf; threads at the server.
    Processes,
    /// One thread each, blocked in its socket.
    Threads,
    /// A few threads with many connections each, waiting in epoll.
    Multiplexed,
}

impl InstancesAs {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Threads, Self::Processes, Self::Multiplexed];

    /// The name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Processes => "processes",
            Self::Threads => "threads",
            Self::Multiplexed => "multiplexed",
        }
    }
}

impl fmt::Display for InstancesAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The specification of a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The traffic pattern.
    pub test: Test,
    /// Number of instances. Each has one outstanding request.
    pub instances: usize,
    /// How instances run.
    pub instances_as: InstancesAs,
    /// Number of client threads if instances are multiplexed.
    pub workers: usize,
    /// Length of a request, in bytes.
    pub request_bytes: usize,
    /// Length of a response, in bytes.
    pub response_bytes: usize,
    /// Bytes per send call of a stream.
    pub send_bytes: usize,
    /// Maximum bytes per read call of a TCP stream's reader.
    #[serde(default = "default_piece", skip_serializing_if = "is_default_piece")]
    pub recv_bytes: usize,
    /// Whether a stream sends with `MSG_ZEROCOPY`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub zero_copy: bool,
    /// Datagrams per second, all instances together; `None` for as many as possible.
    pub rate_per_s: Option<f64>,
    /// Time after which a UDP request counts as lost.
    pub lost_after: Duration,
    /// Whether a lost UDP request is sent again. Otherwise the next request follows.
    pub resend: bool,
    /// Run time before counting starts.
    pub warm_up: Duration,
    /// Run time while counting.
    pub duration: Duration,
}

impl Spec {
    /// The default specification of a test, for this duration.
    pub fn default_for(test: Test, duration: Duration) -> Self {
        Self {
            test,
            instances: test.default_instances(),
            instances_as: InstancesAs::Threads,
            workers: 1,
            request_bytes: 1,
            response_bytes: 1,
            send_bytes: test.default_send_bytes(),
            recv_bytes: DEFAULT_PIECE,
            zero_copy: false,
            rate_per_s: None,
            lost_after: Duration::from_millis(200),
            resend: false,
            warm_up: Duration::from_millis(200),
            duration,
        }
    }

    /// Checks a specification, which may come from an untrusted peer.
    ///
    /// Errors are messages for the user.
    pub fn check(&self) -> Result<(), String> {
        let most = if self.test.is_udp() { MAX_DATAGRAM } else { MAX_BYTES };
        let within = |what: &str, value: usize, most: usize| {
            if (1..=most).contains(&value) {
                Ok(())
            } else {
                Err(format!("{what} must be 1 to {most}, not {value}"))
            }
        };
        within("instances", self.instances, MAX_INSTANCES)?;
        within("workers", self.workers, 1024)?;
        if self.test.has_responses() {
            within("request bytes", self.request_bytes, most)?;
            within("response bytes", self.response_bytes, most)?;
        } else {
            within("send bytes", self.send_bytes, most)?;
            within("recv bytes", self.recv_bytes, DEFAULT_PIECE)?;
        }
        if self.recv_bytes != DEFAULT_PIECE && !self.test.is_tcp_stream() {
            return Err(format!(
                "recv bytes are for TCP_STREAM and TCP_SENDFILE, not for {}",
                self.test
            ));
        }
        if self.zero_copy && !self.test.may_zero_copy() {
            return Err(format!(
                "zero copy is for TCP_STREAM and UDP_STREAM, not for {}",
                self.test
            ));
        }
        let day = Duration::from_secs(24 * 60 * 60);
        if self.duration.is_zero() || self.duration > day || self.warm_up > day {
            return Err("a run must last at most one day".into());
        }
        if !(Duration::from_millis(1)..=Duration::from_secs(60)).contains(&self.lost_after) {
            return Err("the loss timeout must be 1ms to 60s".into());
        }
        if self.rate_per_s.is_some_and(|rate| !(rate.is_finite() && rate > 0.0)) {
            return Err("the rate must be more than 0 datagrams per second".into());
        }
        Ok(())
    }
}

fn default_piece() -> usize {
    DEFAULT_PIECE
}

fn is_default_piece(bytes: &usize) -> bool {
    *bytes == DEFAULT_PIECE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_from_a_peer_is_checked() {
        let usual = Spec::default_for(Test::UdpRr, Duration::from_secs(1));
        assert_eq!(usual.check(), Ok(()));
        let wrong = |change: fn(&mut Spec)| {
            let mut spec = usual.clone();
            change(&mut spec);
            spec.check().unwrap_err()
        };
        assert_eq!(wrong(|it| it.instances = 0), "instances must be 1 to 20000, not 0");
        assert_eq!(
            wrong(|it| it.request_bytes = 65_508),
            "request bytes must be 1 to 65507, not 65508"
        );
        assert_eq!(wrong(|it| it.duration = Duration::MAX), "a run must last at most one day");
        assert_eq!(
            wrong(|it| it.lost_after = Duration::ZERO),
            "the loss timeout must be 1ms to 60s"
        );
        assert_eq!(
            wrong(|it| it.rate_per_s = Some(f64::NAN)),
            "the rate must be more than 0 datagrams per second"
        );
        assert_eq!(wrong(|it| it.response_bytes = 0), "response bytes must be 1 to 65507, not 0");
        let of_streams = "recv bytes are for TCP_STREAM and TCP_SENDFILE, not for UDP_RR";
        assert_eq!(wrong(|it| it.recv_bytes = 1024), of_streams);
        assert_eq!(
            wrong(|it| it.zero_copy = true),
            "zero copy is for TCP_STREAM and UDP_STREAM, not for UDP_RR"
        );
    }
}
