//! What a load got: the counts of both ends, response times, and what each machine did.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::time::Duration;

use netsilo_model::derive::rates::Rates;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::snapshot::attribution::CpuTime;
use serde::{Deserialize, Serialize};

use crate::traffic::spec::{InstancesAs, Spec, Test};

/// The counts of one end. The client sends requests and receives responses; the server does the
/// reverse.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Totals {
    /// Requests. The client counts each once, however often it sent the request.
    pub requests: u64,
    /// Responses to requests.
    pub responses: u64,
    /// Requests given up without a response in time.
    pub lost: u64,
    /// Requests sent again.
    pub resent: u64,
    /// Responses that arrived after the request counted as lost, or that belong to no known
    /// request.
    pub late: u64,
    /// Bytes passed to the kernel.
    pub sent_bytes: u64,
    /// Bytes taken from the kernel.
    pub received_bytes: u64,
    /// Datagrams passed to the kernel.
    pub datagrams_sent: u64,
    /// Datagrams taken from the kernel.
    pub datagrams_received: u64,
    /// Send calls with `MSG_ZEROCOPY`.
    #[serde(skip_serializing_if = "is_zero")]
    pub zerocopy_sends: u64,
    /// Of these, sends whose completion the kernel has reported.
    #[serde(skip_serializing_if = "is_zero")]
    pub zerocopy_completed: u64,
    /// Of these, sends that the kernel copied nevertheless.
    #[serde(skip_serializing_if = "is_zero")]
    pub zerocopy_copied: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.responses += other.responses;
        self.lost += other.lost;
        self.resent += other.resent;
        self.late += other.late;
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
        self.datagrams_sent += other.datagrams_sent;
        self.datagrams_received += other.datagrams_received;
        self.zerocopy_sends += other.zerocopy_sends;
        self.zerocopy_completed += other.zerocopy_completed;
        self.zerocopy_copied += other.zerocopy_copied;
    }
}

impl Totals {
    /// The increase since earlier totals.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(earlier.requests),
            responses: self.responses.saturating_sub(earlier.responses),
            lost: self.lost.saturating_sub(earlier.lost),
            resent: self.resent.saturating_sub(earlier.resent),
            late: self.late.saturating_sub(earlier.late),
            sent_bytes: self.sent_bytes.saturating_sub(earlier.sent_bytes),
            received_bytes: self.received_bytes.saturating_sub(earlier.received_bytes),
            datagrams_sent: self.datagrams_sent.saturating_sub(earlier.datagrams_sent),
            datagrams_received: self.datagrams_received.saturating_sub(earlier.datagrams_received),
            zerocopy_sends: self.zerocopy_sends.saturating_sub(earlier.zerocopy_sends),
            zerocopy_completed: self.zerocopy_completed.saturating_sub(earlier.zerocopy_completed),
            zerocopy_copied: self.zerocopy_copied.saturating_sub(earlier.zerocopy_copied),
        }
    }
}

/// Response times in nanoseconds, from before the request was sent until the response was read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Latency {
    /// Number of responses.
    pub count: u64,
    /// Mean.
    pub mean_ns: f64,
    /// Maximum.
    pub max_ns: u64,
    /// Percentiles by percent (`50`, `99.9`), to three digits.
    pub percentiles_ns: BTreeMap<String, u64>,
    /// The histogram in HdrHistogram's interchange format (V2, deflated, base64).
    pub histogram: String,
}

/// The state of one end's machine while counting.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct EndMachine {
    /// Host name.
    pub hostname: String,
    /// Kernel release.
    pub kernel: String,
    /// Boot id. If two ends have the same one, they share their CPUs.
    pub boot_id: String,
    /// Kernel counters as rates: CPU times, softirqs, IPIs, softnet, interrupts, netdevs.
    pub rates: Rates,
    /// Measured interrupt times and counts, if eBPF was allowed.
    pub true_times: BTreeMap<CpuId, CpuTime>,
    /// Length of that measurement.
    pub true_elapsed: Duration,
    /// Context switches of the machine per second.
    pub context_switches_per_s: Option<f64>,
    /// All interrupts of the machine per second, including inter-processor ones and timers.
    pub interrupts_per_s: Option<f64>,
    /// CPU time of this end's netsilo and its processes, in CPUs.
    #[serde(rename = "netsilo_cpus")]
    pub netsilo_cpus: f64,
    /// Peak memory of this end's netsilo process since its start, in bytes (VmHWM), without its
    /// child processes.
    pub peak_bytes: Option<u64>,
}

impl EndMachine {
    /// Number of busy CPUs, counting all work of the machine; `None` without ticks.
    pub fn busy_cpus(&self) -> Option<f64> {
        let shares: Vec<f64> =
            self.rates.cpus.values().filter_map(|cpu| Some(cpu.shares?.busy())).collect();
        (!shares.is_empty()).then(|| shares.iter().sum())
    }
}

/// The server's part of one run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ServerResult {
    /// How its workers run: as requested, if the server supports that.
    pub instances_as: Option<InstancesAs>,
    /// Number of threads.
    pub workers: usize,
    /// CPU time spent per request, in microseconds.
    pub work_usecs: u64,
    /// Totals of the whole run, including warm-up.
    pub totals: Totals,
    /// Totals while counting.
    pub counted: Totals,
    /// The server's machine.
    pub side: EndMachine,
}

/// The result of a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LoadResult {
    /// Schema of this document: 1.
    pub schema: u32,
    /// The requested load.
    pub spec: Spec,
    /// The server's address.
    pub address: String,
    /// Counting time, in seconds.
    pub seconds: f64,
    /// The client's totals of the whole run. Each request was answered or lost.
    pub totals: Totals,
    /// The client's totals while counting.
    pub counted: Totals,
    /// Transactions in each second; for streams, bytes sent.
    pub per_second: Vec<u64>,
    /// Response times.
    pub latency: Option<Latency>,
    /// The client's machine.
    pub client: EndMachine,
    /// The server.
    pub server: ServerResult,
}

/// Key figures of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Requests answered per second.
    pub transactions_per_s: Option<f64>,
    /// Bytes that arrived at the server, per second.
    pub bytes_per_s: f64,
    /// Datagrams that arrived at the server, per second.
    pub datagrams_per_s: Option<f64>,
    /// Share of datagrams or requests that were lost.
    pub lost: Option<f64>,
    /// CPU time per transaction on the client's and the server's machine, in nanoseconds. Counts
    /// all work on them.
    pub cpu_ns_per_transaction: Option<(f64, f64)>,
    /// CPU seconds per gigabyte (10^9 bytes) that arrived, on the client's and the server's
    /// machine.
    pub cpu_s_per_gigabyte: Option<(f64, f64)>,
}

impl LoadResult {
    /// Computes the key figures.
    pub fn figures(&self) -> Figures {
        let per_s = |count: u64| count as f64 / self.seconds;
        let test = self.spec.test;
        let streams_udp = test.is_udp() && !test.has_responses();
        let share = |lost: u64, of: u64| (of > 0).then(|| lost as f64 / of as f64);
        let lost = if streams_udp {
            let arrived = self.server.totals.datagrams_received;
            share(self.totals.datagrams_sent.saturating_sub(arrived), self.totals.datagrams_sent)
        } else {
            share(self.totals.lost, self.totals.requests).filter(|_| test == Test::UdpRr)
        };
        let busy = self.client.busy_cpus().zip(self.server.side.busy_cpus());
        let each = |per_s: f64, unit: f64| {
            busy.filter(|_| per_s > 0.0)
                .map(|(client, server)| (client / per_s * unit, server / per_s * unit))
        };
        let bytes_per_s = per_s(self.server.counted.received_bytes);
        let transactions_per_s = test.has_responses().then(|| per_s(self.counted.responses));
        Figures {
            transactions_per_s,
            bytes_per_s,
            datagrams_per_s: streams_udp.then(|| per_s(self.server.counted.datagrams_received)),
            lost,
            cpu_ns_per_transaction: transactions_per_s.and_then(|rate| each(rate, 1e9)),
            cpu_s_per_gigabyte: if test.has_responses() { None } else { each(bytes_per_s, 1e9) },
        }
    }

    /// Whether both ends ran on one machine, so that they share their CPU times.
    pub fn is_on_one_machine(&self) -> bool {
        self.client.boot_id == self.server.side.boot_id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsilo_model::derive::rates::{CpuRates, Shares};

    fn side(usr: f64) -> EndMachine {
        let shares = Some(Shares { usr, idle: 1.0 - usr, ..Shares::default() });
        let cpus =
            (0..2).map(|cpu| (CpuId(cpu), CpuRates { shares, ..CpuRates::default() })).collect();
        EndMachine { rates: Rates { cpus, ..Rates::default() }, ..EndMachine::default() }
    }

    fn run(test: Test) -> LoadResult {
        LoadResult {
            schema: 1,
            spec: Spec::default_for(test, Duration::from_secs(2)),
            address: "192.0.2.1:12870".into(),
            seconds: 2.0,
            totals: Totals {
                requests: 1010,
                responses: 1000,
                lost: 10,
                datagrams_sent: 800,
                ..Totals::default()
            },
            counted: Totals { responses: 500, ..Totals::default() },
            per_second: vec![250, 250],
            latency: None,
            client: side(0.5),
            server: ServerResult {
                totals: Totals { datagrams_received: 600, ..Totals::default() },
                counted: Totals {
                    received_bytes: 4_000_000_000,
                    datagrams_received: 500,
                    ..Totals::default()
                },
                side: side(0.25),
                ..ServerResult::default()
            },
        }
    }

    #[test]
    fn each_test_has_its_own_figures() {
        let request = run(Test::UdpRr).figures();
        assert_eq!((request.transactions_per_s, request.lost), (Some(250.0), Some(10.0 / 1010.0)));
        assert_eq!(
            (request.cpu_ns_per_transaction, request.cpu_s_per_gigabyte),
            (Some((4e6, 2e6)), None)
        );
        let stream = run(Test::UdpStream).figures();
        assert_eq!((stream.datagrams_per_s, stream.lost), (Some(250.0), Some(0.25)));
        assert_eq!(
            (stream.transactions_per_s, stream.cpu_s_per_gigabyte),
            (None, Some((0.5, 0.25)))
        );
        assert_eq!(
            (run(Test::TcpRr).figures().lost, run(Test::TcpStream).figures().lost),
            (None, None)
        );
    }

    #[test]
    fn a_run_round_trips_through_json() {
        let run = run(Test::TcpCrr);
        let text = serde_json::to_string(&run).unwrap();
        assert_eq!(serde_json::from_str::<LoadResult>(&text).unwrap(), run);
        assert!(
            text.contains("\"TCP_CRR\"") && !text.contains("zero"),
            "fields that were not requested are left out: {text}"
        );
    }
}
