//! The guest kernel's counters during a load, read independently of netsilo.

use anyhow::{Context, Result};
use netsilo_lab::Lab;

/// Counters of the guest at one time, summed over all CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counters {
    /// NET_RX softirqs.
    pub(crate) net_rx: u64,
    /// Function-call interrupts (`CAL`), including wakeups of CPUs with another last-level cache.
    pub(crate) calls: u64,
    /// Rescheduling interrupts (`RES`): wakeups of CPUs with the same last-level cache.
    pub(crate) reschedules: u64,
    /// Context switches.
    pub(crate) switches: u64,
}

impl Counters {
    /// Reads them.
    pub(crate) fn read(lab: &Lab) -> Result<Self> {
        Self::parse(&lab.sh("cat /proc/softirqs /proc/interrupts /proc/stat")?)
    }

    /// Parses `/proc/softirqs`, `/proc/interrupts` and `/proc/stat`, in this order.
    fn parse(text: &str) -> Result<Self> {
        let row = |name: &str| -> Result<u64> {
            let line = text.lines().find_map(|line| line.trim_start().strip_prefix(name));
            let cells = line
                .with_context(|| format!("no row {name:?} in the guest's counters"))?
                .split_whitespace();
            Ok(cells.map_while(|cell| cell.parse::<u64>().ok()).sum())
        };
        Ok(Self {
            net_rx: row("NET_RX:")?,
            calls: row("CAL:")?,
            reschedules: row("RES:")?,
            switches: row("ctxt ")?,
        })
    }

    /// Returns the difference to earlier counters.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            net_rx: self.net_rx - before.net_rx,
            calls: self.calls - before.calls,
            reschedules: self.reschedules - before.reschedules,
            switches: self.switches - before.switches,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_summed_over_the_cpus() {
        let softirqs = "  CPU0 CPU1\n NET_RX: 3 4\n";
        let interrupts = "  CPU0 CPU1\n 24: 9 9 PCI-MSI\nRES: 1 2 Rescheduling interrupts\n\
                          CAL: 10 20 Function call interrupts\n";
        let text = format!("{softirqs}{interrupts}intr 5 6\nctxt 77\n");
        let counters = Counters::parse(&text).unwrap();
        assert_eq!(counters, Counters { net_rx: 7, calls: 30, reschedules: 3, switches: 77 });
        let none = Counters { net_rx: 0, calls: 0, reschedules: 0, switches: 0 };
        assert_eq!(counters.since(&counters), none);
    }
}
