//! Measures of a live workload, one number each, to compare two settings without a benchmark.

use std::fmt;

use netsilo_model::derive::rates::{CpuRates, Rates, rates};
use netsilo_model::snapshot::attribution::{Attribution, Consumption};
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::snapshot::runqueue::{self, MIN_WAITS};
use serde::{Deserialize, Serialize};

use crate::comparison::{Better, Scale};

/// A measure of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum WorkloadMeasure {
    /// CPU time of the whole machine per megabyte (10^6 bytes) that programs read, in nanoseconds.
    CpuPerMegabyte,
    /// The share of the read bytes whose protocol ran under the same last-level cache as the
    /// reader.
    Locality,
    /// Call-function IPIs per packet that the NICs received.
    IpisPerPacket,
    /// NET_RX softirqs per packet that the NICs received.
    SoftirqsPerPacket,
    /// The 99th percentile of the time from runnable to running, for threads that read sockets, in
    /// nanoseconds.
    RunqueueLatency,
}

/// Why a window gives no number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotMeasured {
    /// Programs read nothing, or no packet arrived.
    #[error("nothing was received")]
    NothingReceived,
    /// Too few waits for a 99th percentile.
    #[error(
        "threads that read sockets waited for a cpu {0} times; \
         a 99th percentile needs {MIN_WAITS}"
    )]
    TooFewWaits(u64),
    /// Not measured, with the reason.
    #[error("not measured: {0}")]
    NotCounted(String),
}

impl WorkloadMeasure {
    /// All measures.
    pub const ALL: [Self; 5] = [
        Self::CpuPerMegabyte,
        Self::Locality,
        Self::IpisPerPacket,
        Self::SoftirqsPerPacket,
        Self::RunqueueLatency,
    ];

    /// Those that count events or CPU time per unit of work. They vary less than rates and times.
    pub const COUNTS: [Self; 3] =
        [Self::CpuPerMegabyte, Self::IpisPerPacket, Self::SoftirqsPerPacket];

    /// The name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CpuPerMegabyte => "cpu-per-megabyte",
            Self::Locality => "locality",
            Self::IpisPerPacket => "ipis-per-packet",
            Self::SoftirqsPerPacket => "softirqs-per-packet",
            Self::RunqueueLatency => "runqueue-latency",
        }
    }

    /// Whether it is a time, in nanoseconds.
    pub fn is_time(self) -> bool {
        matches!(self, Self::CpuPerMegabyte | Self::RunqueueLatency)
    }

    /// Which direction is better.
    pub fn better(self) -> Better {
        if self == Self::Locality { Better::Higher } else { Better::Lower }
    }

    /// How two values are compared: times by their ratio, values that may be 0 by their difference.
    pub fn scale(self) -> Scale {
        if self.is_time() { Scale::Ratio } else { Scale::Difference }
    }

    /// Computes the measure from a window.
    pub fn compute(self, observation: &Observation) -> Result<f64, NotMeasured> {
        self.computed(observation).ok_or_else(|| self.why_not(&observation.attribution))
    }

    fn computed(self, observation: &Observation) -> Option<f64> {
        let rates = rates(&observation.before, &observation.after);
        let value = match self {
            Self::CpuPerMegabyte => {
                cpu_ns_per_s(observation, &rates)? / (bytes_per_s(observation, |_| true) / 1e6)
            }
            Self::Locality => {
                let topology = &observation.after.topology;
                let near = |row: &Consumption| {
                    let from = row.protocol_cpu.or(row.poll_cpu);
                    from.is_some_and(|cpu| {
                        cpu == row.consumer_cpu || topology.llc_of(cpu).contains(row.consumer_cpu)
                    })
                };
                bytes_per_s(observation, near) / bytes_per_s(observation, |_| true)
            }
            Self::IpisPerPacket => {
                sum(&rates, |cpu| cpu.cal_per_s)? / packets_per_s(observation, &rates)
            }
            Self::SoftirqsPerPacket => {
                sum(&rates, |cpu| cpu.net_rx_per_s)? / packets_per_s(observation, &rates)
            }
            Self::RunqueueLatency => observation.attribution.runqueue_latency.as_ref()?.p99_ns()?,
        };
        (value.is_finite() && (value > 0.0 || self.scale() == Scale::Difference)).then_some(value)
    }

    fn why_not(self, attribution: &Attribution) -> NotMeasured {
        if self != Self::RunqueueLatency {
            return NotMeasured::NothingReceived;
        }
        let mut hooks = attribution.hooks.iter().filter(|hook| hook.quantity == runqueue::QUANTITY);
        let refused = hooks.find_map(|hook| {
            Some(format!("{} is unavailable: {}", hook.hook, hook.refused.as_ref()?))
        });
        match (refused, &attribution.runqueue_latency) {
            (Some(why), _) => NotMeasured::NotCounted(why),
            (None, None) => NotMeasured::NotCounted("not requested".into()),
            (None, Some(_)) if attribution.consumption.is_empty() => NotMeasured::NothingReceived,
            (None, Some(latency)) => NotMeasured::TooFewWaits(latency.count()),
        }
    }
}

impl fmt::Display for WorkloadMeasure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

fn sum(rates: &Rates, of: impl Fn(&CpuRates) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = rates.cpus.values().filter_map(of).collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

/// CPU time that was not idle, in ns per second. Interrupt time is the measured one, if it was
/// measured.
fn cpu_ns_per_s(observation: &Observation, rates: &Rates) -> Option<f64> {
    let seconds = observation.attribution.elapsed.as_secs_f64();
    let cpus = rates.cpus.iter().filter_map(|(cpu, rates)| {
        let shares = rates.shares?;
        let measured = observation.attribution.cpu_time.get(cpu).filter(|_| seconds > 0.0);
        let interrupted = measured.map_or((shares.irq + shares.softirq) * 1e9, |time| {
            time.interrupted_ns() as f64 / seconds
        });
        Some((shares.usr + shares.nice + shares.sys) * 1e9 + interrupted)
    });
    let cpus: Vec<f64> = cpus.collect();
    (!cpus.is_empty()).then(|| cpus.iter().sum())
}

/// Bytes read per second from matching consumptions.
fn bytes_per_s(observation: &Observation, which: impl Fn(&Consumption) -> bool) -> f64 {
    let rows = observation.attribution.consumption.iter().filter(|row| which(row));
    rows.map(|row| row.bytes as f64).sum::<f64>() / observation.attribution.elapsed.as_secs_f64()
}

/// Packets per second that the NICs received. Without NICs, all devices except loopback.
pub(crate) fn packets_per_s(observation: &Observation, rates: &Rates) -> f64 {
    let received = |which: &dyn Fn(&Netdev) -> bool| -> f64 {
        let netdevs = observation.after.netdevs.iter().filter(|netdev| which(netdev));
        netdevs.filter_map(|netdev| rates.netdevs.get(&netdev.name)?.get("rx_packets")).sum()
    };
    let nics = received(&|netdev| netdev.device_path.is_some());
    if nics > 0.0 { nics } else { received(&|netdev| netdev.name != "lo") }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use netsilo_model::machine::cpuset::CpuId;
    use netsilo_model::snapshot::attribution::{
        Consumer, CpuTime, Hook, Protocol, QueueResolution,
    };
    use netsilo_model::snapshot::host::{CpuCounters, CpuStat};
    use netsilo_model::snapshot::runqueue::RunqueueLatency;
    use netsilo_model::synthetic::grid::Grid;

    /// One second in which two CPUs (of two caches) were each busy for half of their ticks and
    /// spent 0.1 s in softirqs.
    fn observation() -> Observation {
        let mut observation = Observation::default();
        for (snapshot, at, ticks, count) in
            [(&mut observation.before, 10, 0, 0), (&mut observation.after, 11, 50, 300)]
        {
            snapshot.at = Duration::from_secs(at);
            snapshot.topology = Grid { llcs: 2, ..Grid::default() }.topology().into();
            let stat = CpuStat { user: ticks, idle: ticks, ..CpuStat::default() };
            let counters =
                CpuCounters { stat, softirqs: [("NET_RX", count)].into(), softnet: None };
            snapshot.cpus = [(CpuId(0), counters.clone()), (CpuId(1), counters)].into();
            snapshot.arch_interrupts = [("CAL".into(), [(CpuId(0), count)].into())].into();
            let nic = |name: &str, path: Option<&str>| Netdev {
                name: name.into(),
                device_path: path.map(Into::into),
                statistics: BTreeMap::from([("rx_packets".into(), 2 * count)]),
                ..Netdev::default()
            };
            snapshot.netdevs =
                vec![nic("eth0", Some("/devices/pci")), nic("br0", None), nic("lo", None)].into();
        }
        let row = |consumer_cpu: u32, bytes| Consumption {
            napi: None,
            rx_queue: None,
            resolved: QueueResolution::Unresolved,
            poll_cpu: Some(CpuId(0)),
            protocol_cpu: None,
            consumer_cpu: CpuId(consumer_cpu),
            consumer: Consumer { tgid: 1, comm: "web".into(), work: false, cgroup: None, netns: 0 },
            protocol: Protocol::Tcp,
            bytes,
            events: 1,
            first_reads: 0,
            approximate: false,
            connected: None,
        };
        let attribution = &mut observation.attribution;
        attribution.elapsed = Duration::from_secs(1);
        attribution.consumption = vec![row(0, 3_000_000), row(1, 1_000_000)];
        let time = CpuTime { net_rx_ns: 100_000_000, ..CpuTime::default() };
        attribution.cpu_time = [(CpuId(0), time), (CpuId(1), time)].into();
        attribution.runqueue_latency =
            Some(RunqueueLatency { waits: [(32, 990), (64_000, 10)].into() });
        observation
    }

    #[test]
    fn each_measure_uses_the_same_window() {
        let observation = observation();
        let all = WorkloadMeasure::ALL.map(|measure| measure.compute(&observation).unwrap());
        assert_eq!(all, [2.0 * 0.6e9 / 4.0, 0.75, 0.5, 1.0, 32.0 + 989.5 / 990.0]);
    }

    #[test]
    fn a_percentile_without_enough_waits_is_an_error() {
        let mut observation = observation();
        let latency = |observation: &Observation| {
            WorkloadMeasure::RunqueueLatency.compute(observation).unwrap_err()
        };
        observation.attribution.runqueue_latency =
            Some(RunqueueLatency { waits: [(4096, 999)].into() });
        assert_eq!(latency(&observation), NotMeasured::TooFewWaits(999));
        let hook = |refused: Option<&str>| Hook {
            quantity: runqueue::QUANTITY.into(),
            hook: "tp_btf/sched_switch".into(),
            refused: refused.map(Into::into),
        };
        observation.attribution.hooks = vec![hook(None), hook(Some("no such hook"))];
        let refused =
            NotMeasured::NotCounted("tp_btf/sched_switch is unavailable: no such hook".into());
        assert_eq!(latency(&observation), refused);
        observation.attribution.hooks.pop();
        observation.attribution.consumption.clear();
        assert_eq!(latency(&observation), NotMeasured::NothingReceived);
        observation.attribution.runqueue_latency = None;
        assert!(matches!(latency(&observation), NotMeasured::NotCounted(_)));
    }

    #[test]
    fn nothing_received_gives_no_number() {
        let mut idle = observation();
        idle.attribution.consumption.clear();
        idle.after.netdevs.clear();
        idle.attribution.runqueue_latency = Some(RunqueueLatency::default());
        assert!(
            WorkloadMeasure::ALL
                .iter()
                .all(|measure| measure.compute(&idle) == Err(NotMeasured::NothingReceived))
        );
        assert!(
            WorkloadMeasure::ALL
                .iter()
                .all(|measure| measure.compute(&Observation::default()).is_err())
        );
    }
}
