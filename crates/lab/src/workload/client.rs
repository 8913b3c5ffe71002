//! The commands of the clients at the guest's peer.

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use netsilo_lab::{Lab, dnsperf, exact, iperf3, redis, wrk};

use crate::built;
use crate::workload::kind::Kind;
use crate::workload::reports::{self, ClientReport};

/// Number of requests to all redis servers together in each second of a measurement.
/// redis-benchmark takes a number of requests, not seconds.
const REDIS_REQUESTS: u32 = 3000;

/// Maximum time of a light load.
const LIGHT_SECONDS: u32 = 600;

/// The value in memcached.
const VALUE: &str = "0123456789abcdef0123456789abcdef";

/// How much a client does. Each kind has its own measure.
struct Load {
    connections: usize,
    /// Maximum number of unanswered requests at a time. Only dnsperf has this limit.
    outstanding: usize,
    seconds: u32,
    /// To each redis server.
    requests: u32,
}

/// The client for servers of one kind on these CPUs.
pub(crate) struct Client {
    kind: Kind,
    /// The shell command of its program.
    program: String,
    cpus: Vec<u32>,
}

impl Client {
    /// Prepares what the client needs at the peer and in the servers.
    pub(crate) fn new(kind: Kind, lab: &Lab, cpus: &[u32]) -> Result<Self> {
        let env = |command: String| format!("env {command}");
        let program = match kind {
            Kind::Redis => env(redis()?.1.command()),
            Kind::Nginx => env(wrk()?.command()),
            Kind::Dns => env(dnsperf()?.command()),
            Kind::Stream => env(iperf3()?.command()),
            Kind::TcpRr | Kind::UdpRr | Kind::Forward => {
                format!("'{}' run", built::netsilo_bench()?.display())
            }
            Kind::Memcached | Kind::Pipeline => {
                format!("'{}' exact ask", exact::program()?.display())
            }
        };
        let client = Self { kind, program, cpus: cpus.to_vec() };
        let peer = lab.peer(0)?;
        if kind == Kind::Memcached {
            let set = format!("set key 0 0 {}\r\n{VALUE}", VALUE.len());
            let output = peer.sh(&client.memcached(&set, "STORED\r\n".len(), cpus.len(), 0))?;
            let stored = reports::ask(&output).map(|report| report.transactions as usize);
            ensure!(stored == Some(cpus.len()), "memcached stored nothing: {output}");
        }
        if kind == Kind::Dns {
            // This folder belongs to the peers.
            peer.sh("echo 'www.example.org A' >/run/queries")?;
        }
        Ok(client)
    }

    /// The command for a measurement of about this many seconds.
    pub(crate) fn full(&self, seconds: u32) -> String {
        let connections = self.kind.connections(self.cpus.len());
        self.command(&Load {
            connections,
            outstanding: connections,
            seconds,
            requests: self.redis_requests(seconds),
        })
    }

    /// The command for a light load that lasts until it is stopped.
    pub(crate) fn light(&self) -> String {
        self.command(&Load {
            connections: self.kind.light_connections(),
            outstanding: self.cpus.len(),
            seconds: LIGHT_SECONDS,
            requests: 100_000_000,
        })
    }

    /// What the clients report after a measurement; `None` if their output is incomplete.
    pub(crate) fn report(&self, output: &str, seconds: u32) -> Option<ClientReport> {
        match self.kind {
            Kind::TcpRr | Kind::UdpRr | Kind::Forward => reports::bench(output),
            Kind::Memcached | Kind::Pipeline => reports::ask(output),
            Kind::Redis => reports::redis(output, self.cpus.len(), self.redis_requests(seconds)),
            Kind::Nginx => reports::wrk(output),
            Kind::Dns => reports::dnsperf(output),
            Kind::Stream => reports::iperf3(output, self.cpus.len()),
        }
    }

    /// Requests to each redis server.
    fn redis_requests(&self, seconds: u32) -> u32 {
        REDIS_REQUESTS * seconds / self.cpus.len() as u32
    }

    fn command(&self, load: &Load) -> String {
        let Self { kind, program, cpus } = self;
        let Load { connections, outstanding, seconds, requests } = load;
        let (address, port, servers) = (Lab::guest_address(0), kind.port(), cpus.len());
        let run = |test: &str, address: Ipv4Addr| {
            format!(
                "{program} {address}:{port} -t {test} -n {connections} --instances-as multiplexed \
                 --workers 1 --lost-after 400ms --resend --warm-up 200ms --duration {seconds}s \
                 --json"
            )
        };
        match kind {
            Kind::TcpRr => run("TCP_RR", address),
            Kind::UdpRr => run("UDP_RR", address),
            Kind::Forward => run("TCP_RR", Lab::peer_address(1)),
            Kind::Pipeline => format!(
                "{program} --udp --dest {address} --port {port} --ports {servers} \
                 --connections {connections} --duration {seconds}"
            ),
            Kind::Memcached => {
                let head = format!("VALUE key 0 {}\r\n", VALUE.len());
                let response = head.len() + VALUE.len() + "\r\nEND\r\n".len();
                self.memcached("get key", response, *connections, *seconds)
            }
            Kind::Redis => {
                let each = connections / servers;
                let one = |port| {
                    format!("{program} -h {address} -p {port} -t get -n {requests} -c {each} --csv")
                };
                let all = (port..).take(servers).map(|port| format!("{} & ", one(port)));
                all.chain(["wait".to_owned()]).collect()
            }
            Kind::Stream => {
                // The folder belongs to the peers; each client writes a separate file.
                let one = |port| {
                    format!(
                        "{program} --client {address} --port {port} --time {seconds} --json \
                         >/run/stream-{port}"
                    )
                };
                let all = (port..).take(servers).map(|port| format!("{} & ", one(port)));
                all.chain(["wait; cat /run/stream-*".to_owned()]).collect()
            }
            Kind::Nginx => format!(
                "{program} --threads 1 --connections {connections} --duration {seconds}s \
                 --latency http://{address}/"
            ),
            Kind::Dns => format!(
                "{program} -s {address} -d /run/queries -c {connections} -q {outstanding} \
                 -l {seconds} -t 1"
            ),
        }
    }

    /// Sends a command of memcached's text protocol to all servers. Each response has `response`
    /// bytes.
    fn memcached(&self, text: &str, response: usize, connections: usize, seconds: u32) -> String {
        let Self { kind, program, cpus } = self;
        format!(
            "{program} --dest {} --port {} --ports {} \
             --connections {connections} --duration {seconds} --request-line '{text}' \
             --response-bytes {response}",
            Lab::guest_address(0),
            kind.port(),
            cpus.len()
        )
    }
}
