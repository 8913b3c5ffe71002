//! The prediction for one setting.

use serde::{Deserialize, Serialize};

use crate::limit::Limit;

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
    pub limit: Limit,
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
