//! The guest kernel's counters during a load, read independently of netsilo.

use anyhow::{Context, Result};

/// Counters of the guest at one time, over all CPUs.
pub(crate) struct Counters {
    /// NET_RX softirqs.
    pub(crate) net_rx: u64,
    /// Function-call interrupts (`CAL`), including wakeups of other CPUs.
    pub(crate) ipis: u64,
}

impl Counters {
    /// Parses `/proc/softirqs` followed by `/proc/interrupts`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let row = |name: &str| -> Result<u64> {
            let line = text.lines().find_map(|line| line.trim_start().strip_prefix(name));
            let cells = line
                .with_context(|| format!("no row {name:?} in the guest's counters"))?
                .split_whitespace();
            Ok(cells.map_while(|cell| cell.parse::<u64>().ok()).sum())
        };
        Ok(Self { net_rx: row("NET_RX:")?, ipis: row("CAL:")? })
    }

    /// Returns the difference to earlier counters.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self { net_rx: self.net_rx - before.net_rx, ipis: self.ipis - before.ipis }
    }
}
