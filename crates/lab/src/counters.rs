//! The guest kernel's counters during a load, read independently of netsilo.

use anyhow::{Context, Result};
use netsilo_lab::traffic::RrReport;

/// Counters of the guest at one time.
pub(crate) struct Counters {
    net_rx: Vec<u64>,
    ipis: u64,
}

/// Cost of a load.
#[derive(Clone)]
pub(crate) struct Spent {
    /// NET_RX softirqs by CPU.
    pub(crate) net_rx: Vec<u64>,
    /// Function-call interrupts of all CPUs (`CAL`), including wakeups of other CPUs.
    pub(crate) ipis: u64,
    transactions: u64,
    seconds: f64,
}

impl Counters {
    /// Parses `/proc/softirqs` followed by `/proc/interrupts`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let row = |name: &str| -> Result<Vec<u64>> {
            let line = text.lines().find_map(|line| line.trim_start().strip_prefix(name));
            let cells = line
                .with_context(|| format!("no row {name:?} in the guest's counters"))?
                .split_whitespace();
            Ok(cells.map_while(|cell| cell.parse().ok()).collect())
        };
        Ok(Self { net_rx: row("NET_RX:")?, ipis: row("CAL:")?.iter().sum() })
    }

    /// Returns the difference to earlier counters.
    pub(crate) fn since(&self, before: &Self, report: &RrReport) -> Spent {
        Spent {
            net_rx: self.net_rx.iter().zip(&before.net_rx).map(|(now, then)| now - then).collect(),
            ipis: self.ipis - before.ipis,
            transactions: report.transactions,
            seconds: report.seconds,
        }
    }
}

impl Spent {
    /// Divides a count by the number of transactions.
    pub(crate) fn per_transaction(&self, count: u64) -> f64 {
        count as f64 / self.transactions as f64
    }

    /// Returns the transactions per second that the client counted.
    pub(crate) fn transactions_per_s(&self) -> f64 {
        self.transactions as f64 / self.seconds
    }
}
