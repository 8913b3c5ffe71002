//! The measures of a trial: one number each.

use std::fmt;

use netsilo_model::derive::rates::{CpuRates, SoftnetRates};
use netsilo_model::snapshot::attribution::CpuTime;
use serde::{Deserialize, Serialize};

use crate::comparison::Better;
use crate::experiment::plan::Load;
use crate::experiment::records::Trial;
use crate::traffic::{EndMachine, Figures, Test};

/// The unit of work under a load. Counts and CPU time are reported per unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WorkUnit {
    /// A request and its response.
    Transaction,
    /// A datagram that arrived at the receiver.
    Packet,
    /// A packet that a forwarding machine received and dropped early.
    Dropped,
    /// 10^6 bytes that arrived at the receiver.
    Megabyte,
}

impl WorkUnit {
    /// The unit of work of a load.
    pub fn for_load(load: &Load) -> Self {
        match load.spec.test {
            Test::TcpRr | Test::UdpRr | Test::TcpCrr => Self::Transaction,
            Test::Forward if load.early_drop => Self::Dropped,
            Test::UdpStream | Test::Forward => Self::Packet,
            Test::TcpStream | Test::TcpSendfile => Self::Megabyte,
        }
    }

    /// Units of work per second, all senders together.
    fn per_s(self, trial: &Trial, counted: &[String]) -> Option<f64> {
        if self == Self::Dropped {
            return received(trial, counted);
        }
        let one = |figures: Figures| match self {
            Self::Transaction => figures.transactions_per_s,
            Self::Packet | Self::Dropped => figures.datagrams_per_s,
            Self::Megabyte => Some(figures.bytes_per_s / 1e6),
        };
        let all: f64 = trial.runs.iter().map(|run| one(run.figures())).sum::<Option<f64>>()?;
        (!trial.runs.is_empty() && all.is_finite()).then_some(all)
    }
}

impl fmt::Display for WorkUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Transaction => "transaction",
            Self::Packet => "packet",
            Self::Dropped => "dropped packet",
            Self::Megabyte => "megabyte",
        })
    }
}

/// A measure of a trial. All except the first four are of the machine under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TrialMeasure {
    /// Units of work per second. For megabytes, bytes per second.
    Rate,
    /// Share of datagrams or UDP requests that were lost. For several senders, their mean.
    Lost,
    /// Median latency in nanoseconds. For several senders, their mean.
    MedianLatency,
    /// 99th percentile of the latency in nanoseconds. For several senders, their mean.
    P99Latency,
    /// CPU time that was not idle: nanoseconds per transaction or packet, seconds per gigabyte
    /// (milliseconds per megabyte).
    CpuTime,
    /// Packets that a forwarding machine received per second, from the counters of the netdevs
    /// under test.
    Received,
    /// CPU time that was not idle, in nanoseconds per packet received.
    CpuReceived,
    /// Softirq time measured by eBPF, in nanoseconds per packet received.
    SoftirqReceived,
    /// NET_RX softirqs raised, per unit of work.
    NetRx,
    /// Function-call IPIs (`CAL`, including scheduler wakeups), per unit of work.
    Ipis,
    /// Interrupts of the machine, per unit of work.
    Interrupts,
    /// Context switches of the machine, per unit of work.
    ContextSwitches,
    /// Wakeups of another CPU by RPS (`received_rps`), per unit of work.
    #[serde(rename = "handed_over")]
    RpsWakeups,
    /// The largest share of all NET_RX softirqs on a single CPU.
    BusiestCpu,
}

impl TrialMeasure {
    /// All measures.
    pub const ALL: [Self; 14] = [
        Self::Rate,
        Self::Lost,
        Self::MedianLatency,
        Self::P99Latency,
        Self::CpuTime,
        Self::Received,
        Self::CpuReceived,
        Self::SoftirqReceived,
        Self::NetRx,
        Self::Ipis,
        Self::Interrupts,
        Self::ContextSwitches,
        Self::RpsWakeups,
        Self::BusiestCpu,
    ];

    /// Whether it is a time or depends on one, so that it is meaningless on emulated CPUs.
    pub fn is_time(self) -> bool {
        self <= Self::SoftirqReceived
    }

    /// Which direction is better; `None` for counts, because neither direction is better.
    pub fn better(self) -> Option<Better> {
        match self {
            Self::Rate => Some(Better::Higher),
            Self::Lost | Self::MedianLatency | Self::P99Latency | Self::CpuTime => {
                Some(Better::Lower)
            }
            Self::CpuReceived | Self::SoftirqReceived => Some(Better::Lower),
            _ => None,
        }
    }

    /// Display name.
    pub fn name(self, work: WorkUnit) -> String {
        match self {
            Self::Rate if work == WorkUnit::Megabyte => "bytes per second".into(),
            Self::Rate => format!("{work}s per second"),
            Self::Lost => "share lost".into(),
            Self::MedianLatency => "median latency".into(),
            Self::P99Latency => "latency, 99th percentile".into(),
            Self::CpuTime if work == WorkUnit::Megabyte => "CPU time per gigabyte".into(),
            Self::CpuTime => format!("CPU time per {work}"),
            Self::Received => "packets received per second".into(),
            Self::CpuReceived => "CPU time per packet received".into(),
            Self::SoftirqReceived => "softirq time per packet received".into(),
            Self::NetRx => format!("NET_RX softirqs per {work}"),
            Self::Ipis => format!("function-call IPIs per {work}"),
            Self::Interrupts => format!("interrupts per {work}"),
            Self::ContextSwitches => format!("context switches per {work}"),
            Self::RpsWakeups => format!("RPS wakeups per {work}"),
            Self::BusiestCpu => "busiest CPU's share of NET_RX".into(),
        }
    }

    /// The unit of its values.
    pub fn unit(self, work: WorkUnit) -> &'static str {
        match (self, work) {
            (Self::Rate, WorkUnit::Transaction) => "transactions/s",
            (Self::Rate, WorkUnit::Packet | WorkUnit::Dropped) | (Self::Received, _) => "packets/s",
            (Self::Rate, WorkUnit::Megabyte) => "B/s",
            (Self::Lost | Self::BusiestCpu, _) => "share",
            (Self::MedianLatency | Self::P99Latency, _) => "ns",
            (Self::CpuTime, WorkUnit::Transaction) => "ns/transaction",
            (Self::CpuTime, WorkUnit::Packet | WorkUnit::Dropped) => "ns/packet",
            (Self::CpuReceived | Self::SoftirqReceived, _) => "ns/packet",
            (Self::CpuTime, WorkUnit::Megabyte) => "s/GB",
            (_, WorkUnit::Transaction) => "1/transaction",
            (_, WorkUnit::Packet | WorkUnit::Dropped) => "1/packet",
            (_, WorkUnit::Megabyte) => "1/megabyte",
        }
    }

    /// Computes the measure of a trial; `None` if it was not measured, or if there was no work to
    /// divide by.
    ///
    /// `counted` names the netdevs whose packets count as received by a forwarding machine.
    pub fn compute(self, trial: &Trial, work: WorkUnit, counted: &[String]) -> Option<f64> {
        let done = work.per_s(trial, counted)?;
        let of =
            |per_s: Option<f64>, done: f64| Some(per_s? / done).filter(|each| each.is_finite());
        let each = |per_s: Option<f64>| of(per_s, done);
        let received = || received(trial, counted);
        let side = || trial.under_test();
        match self {
            // every packet is lost, and CpuReceived has the same time per packet received
            Self::Lost | Self::CpuTime if work == WorkUnit::Dropped => None,
            Self::Rate => Some(if work == WorkUnit::Megabyte { done * 1e6 } else { done }),
            Self::Lost => crate::stats::mean(
                &trial.runs.iter().filter_map(|run| run.figures().lost).collect::<Vec<_>>(),
            ),
            Self::MedianLatency => latency(trial, "50"),
            Self::P99Latency => latency(trial, "99"),
            Self::CpuTime => {
                let unit = if work == WorkUnit::Megabyte { 1e3 } else { 1e9 };
                each(side()?.busy_cpus()).map(|seconds| seconds * unit)
            }
            Self::Received => received(),
            Self::CpuReceived => of(side()?.busy_cpus(), received()?).map(|seconds| seconds * 1e9),
            Self::SoftirqReceived => {
                of(measured_softirq(side()?), received()?).map(|seconds| seconds * 1e9)
            }
            Self::NetRx => each(sum(side()?, |cpu| cpu.net_rx_per_s)),
            Self::Ipis => each(sum(side()?, |cpu| cpu.cal_per_s)),
            Self::Interrupts => each(side()?.interrupts_per_s),
            Self::ContextSwitches => each(side()?.context_switches_per_s),
            Self::RpsWakeups => each(sum(side()?, |cpu| softnet(cpu).received_rps_per_s)),
            Self::BusiestCpu => {
                let most = side()?
                    .rates
                    .cpus
                    .values()
                    .filter_map(|cpu| cpu.net_rx_per_s)
                    .reduce(f64::max)?;
                Some(most / sum(side()?, |cpu| cpu.net_rx_per_s)?).filter(|share| share.is_finite())
            }
        }
    }
}

/// Packets per second that these netdevs of a forwarding machine received; `None` if one of them
/// was not counted.
fn received(trial: &Trial, counted: &[String]) -> Option<f64> {
    let netdevs = &trial.between.as_ref()?.rates.netdevs;
    let one = |name: &String| netdevs.get(name)?.get("rx_packets").copied();
    counted.iter().map(one).sum::<Option<f64>>().filter(|_| !counted.is_empty())
}

/// Softirq time measured by eBPF, in CPUs; `None` if eBPF did not measure it.
fn measured_softirq(side: &EndMachine) -> Option<f64> {
    let all: u64 = side.true_times.values().map(CpuTime::softirq_ns).sum();
    (all > 0 && !side.true_elapsed.is_zero())
        .then(|| all as f64 / 1e9 / side.true_elapsed.as_secs_f64())
}

/// The softnet_stat rates of a CPU; zeros if they were not read.
pub(super) fn softnet(cpu: &CpuRates) -> SoftnetRates {
    cpu.softnet.unwrap_or_default()
}

/// The sum over all CPUs that have the value.
fn sum(side: &EndMachine, of: impl Fn(&CpuRates) -> Option<f64>) -> Option<f64> {
    side.rates.cpus.values().filter_map(of).reduce(|sum, more| sum + more)
}

fn latency(trial: &Trial, percent: &str) -> Option<f64> {
    let latencies =
        trial.runs.iter().filter_map(|run| run.latency.as_ref()?.percentiles_ns.get(percent));
    crate::stats::mean(&latencies.map(|ns| *ns as f64).collect::<Vec<_>>())
}
