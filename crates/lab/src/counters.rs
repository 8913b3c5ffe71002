//! What the guest's kernel counted while transactions went by, read apart from netsilo.

use anyhow::{Context, Result};
use netsilo_lab::traffic::RrReport;

/// Counters of the guest at one moment.
pub(crate) struct Counters {
    net_rx: Vec<u64>,
    ipis: u64,
}

/// What a load has cost.
#[derive(Clone)]
pub(crate) struct Spent {
    /// NET_RX softirqs by CPU.
    pub(crate) net_rx: Vec<u64>,
    /// Function-call interrupts of all CPUs (`CAL`), wakeups of other CPUs among them.
    pub(crate) ipis: u64,
    transactions: u64,
    seconds: f64,
}

impl Counters {
    /// Reads `/proc/softirqs` and `/proc/interrupts`, one after the other.
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

    /// What has been counted since an earlier moment.
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
    /// A count shared out over the transactions.
    pub(crate) fn per_transaction(&self, count: u64) -> f64 {
        count as f64 / self.transactions as f64
    }

    /// Transactions per second, as the client saw them.
    pub(crate) fn transactions_per_s(&self) -> f64 {
        self.transactions as f64 / self.seconds
    }
}
