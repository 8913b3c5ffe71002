//! `/proc/stat` (`fs/proc/stat.c:show_stat`): one line per online CPU, in USER_HZ ticks.

use std::collections::BTreeMap;

use crate::machine::cpuset::CpuId;
use crate::parse::error::ParseError;
use crate::parse::words::{decimal, words};
use crate::snapshot::host::CpuStat;

/// Times by CPU. Ignores the sum over all CPUs (`cpu `) and all other rows.
pub fn stat(text: &str) -> Result<BTreeMap<CpuId, CpuStat>, ParseError> {
    let mut read = BTreeMap::new();
    for (line, number) in text.lines().zip(1..) {
        let mut words = words(line);
        let Some(cpu) = words.next().and_then(|(_, word)| word.strip_prefix("cpu")?.parse().ok())
        else {
            continue;
        };
        let mut next = |name: &str| match words.next() {
            Some(cell) => decimal(number, cell),
            None => Err(ParseError::new(number, line.len() + 1, format!("no column {name}"))),
        };
        let times = CpuStat {
            user: next("user")?,
            nice: next("nice")?,
            system: next("system")?,
            idle: next("idle")?,
            iowait: next("iowait")?,
            irq: next("irq")?,
            softirq: next("softirq")?,
            steal: next("steal")?,
            guest: next("guest")?,
            guest_nice: next("guest_nice")?,
        };
        read.insert(CpuId(cpu), times);
    }
    if read.is_empty() {
        return Err(ParseError::new(1, 1, "no line \"cpu<n>\""));
    }
    Ok(read)
}

/// Event counts of the whole machine since boot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Events {
    /// `ctxt`: context switches.
    pub context_switches: Option<u64>,
    /// The first number of `intr`: all interrupts, including those of the architecture.
    pub interrupts: Option<u64>,
}

/// The event counts of the whole machine; `None` for a missing row.
pub fn events(text: &str) -> Events {
    let row = |name: &str| {
        let mut rows = text.lines().map(str::split_ascii_whitespace);
        rows.find_map(|mut words| words.next().filter(|word| *word == name).and(words.next()))?
            .parse()
            .ok()
    };
    Events { context_switches: row("ctxt"), interrupts: row("intr") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_totals_are_read_from_their_rows() {
        let read = events("cpu0 1 2\nintr 500 1 2 3\nctxt 77\n");
        assert_eq!(read, Events { context_switches: Some(77), interrupts: Some(500) });
        assert_eq!(events("ctxt x\n"), Events::default());
    }

    #[test]
    fn the_total_is_not_a_cpu() {
        let read =
            stat("cpu  9 9 9 9 9 9 9 9 9 9\ncpu3 1 2 3 4 5 6 7 8 9 10 11\nintr 5 0 0\n").unwrap();
        assert_eq!(read.len(), 1);
        assert_eq!(
            (read[&CpuId(3)].user, read[&CpuId(3)].softirq, read[&CpuId(3)].guest_nice),
            (1, 7, 10)
        );
    }

    #[test]
    fn a_missing_column_is_named() {
        assert_eq!(
            stat("cpu0 1 2 3\n").unwrap_err().to_string(),
            "line 1 column 11: no column idle"
        );
        assert_eq!(
            stat("intr 5\n").unwrap_err().to_string(),
            "line 1 column 1: no line \"cpu<n>\""
        );
    }
}
