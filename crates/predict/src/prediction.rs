//! What a model says of one setting.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What would happen under a setting.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// Transactions, packets or bits per second, by the kind of load.
    pub rate: f64,
    /// Mean time from request to answer (us), for requests and responses.
    pub latency_us: Option<f64>,
    /// How each CPU spends its time.
    pub cpus: Vec<CpuTime>,
    /// Inter-processor interrupts per second, wakeups' included; `None` where they are not
    /// modelled.
    pub ipis: Option<f64>,
    /// Interrupts of the NIC per second; `None` where they are not modelled.
    pub interrupts: Option<f64>,
    /// What limits the rate.
    pub bottleneck: Bottleneck,
}

/// How a CPU spends its time (shares of 1).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CpuTime {
    /// In user mode.
    pub usr: f64,
    /// In system calls.
    pub sys: f64,
    /// In interrupts and softirqs.
    pub softirq: f64,
    /// Share of the time that the kernel books as softirq. Without `IRQ_TIME_ACCOUNTING` it samples
    /// at ticks, and a CPU that a packet finds idle has no tick: `tick_nohz_idle_enter`.
    pub booked_softirq: f64,
}

impl CpuTime {
    /// Time without work.
    pub fn idle(&self) -> f64 {
        (1.0 - self.usr - self.sys - self.softirq).max(0.0)
    }
}

/// What limits a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Bottleneck {
    /// The softirq work of one CPU.
    Softirq(usize),
    /// All CPUs that the servers may use.
    Cpus,
    /// The link, towards the machine or away from it.
    Link,
    /// The bus of the NIC.
    Bus,
    /// The other machine's CPUs.
    Client,
    /// Nothing here: the load asks no more.
    Load,
}

/// What is used less than this limits nothing.
const ROOM: f64 = 0.8;

impl Bottleneck {
    /// What is used most: the softirqs of one CPU, the link, all CPUs, the client.
    pub(crate) fn fullest(
        softirqs: impl Iterator<Item = f64>,
        link: f64,
        cpus: f64,
        client: f64,
    ) -> Self {
        let others =
            [(link, Self::Link), (cpus, Self::Cpus), (client, Self::Client), (ROOM, Self::Load)];
        let softirqs = softirqs.enumerate().map(|(cpu, busy)| (busy, Self::Softirq(cpu)));
        softirqs
            .chain(others)
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map_or(Self::Load, |(_, which)| which)
    }
}

impl fmt::Display for Bottleneck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Softirq(cpu) => write!(f, "softirq of cpu {cpu}"),
            Self::Cpus => f.write_str("the CPUs"),
            Self::Link => f.write_str("the link"),
            Self::Bus => f.write_str("the bus"),
            Self::Client => f.write_str("the client"),
            Self::Load => f.write_str("the load"),
        }
    }
}
