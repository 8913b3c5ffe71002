//! `/proc/softirqs` (`fs/proc/softirqs.c`): softirqs raised, one column per *possible* CPU.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::machine::counts::Counts;
use crate::machine::cpuset::CpuId;
use crate::parse::error::ParseError;
use crate::parse::words::{decimal, words};

/// Softirqs raised, by CPU and vector name.
pub fn softirqs(text: &str) -> Result<BTreeMap<CpuId, Counts>, ParseError> {
    rows(text, |_| true)
}

/// The network softirqs only: `NET_TX` and `NET_RX`.
pub fn net_softirqs(text: &str) -> Result<BTreeMap<CpuId, Counts>, ParseError> {
    rows(text, |name| name.starts_with("NET_"))
}

fn rows(text: &str, wanted: impl Fn(&str) -> bool) -> Result<BTreeMap<CpuId, Counts>, ParseError> {
    let mut lines = text.lines().zip(1..);
    let cpu = |(at, word): (usize, &str)| {
        let number = word.strip_prefix("CPU").and_then(|n| n.parse().ok());
        number
            .map(CpuId)
            .ok_or_else(|| ParseError::new(1, at + 1, format!("expected CPU<n>, found {word:?}")))
    };
    let cpus: Vec<CpuId> = match lines.next() {
        Some((header, _)) => words(header).map(cpu).collect::<Result<_, _>>()?,
        None => return Err(ParseError::new(1, 1, "no header of cpus")),
    };
    let mut read: Vec<(Arc<str>, Vec<u64>)> = Vec::new();
    for (line, number) in lines {
        let mut words = words(line);
        let Some(name) =
            words.next().and_then(|(_, word)| word.strip_suffix(':')).filter(|name| wanted(name))
        else {
            continue;
        };
        let count = |cpu: &CpuId| {
            let cell = words.next().ok_or_else(|| {
                ParseError::new(
                    number,
                    line.len() + 1,
                    format!("{name} has no count for cpu {cpu} of {}", cpus.len()),
                )
            })?;
            decimal(number, cell)
        };
        read.push((name.into(), cpus.iter().map(count).collect::<Result<_, _>>()?));
    }
    let counts_of_column =
        |at: usize| read.iter().map(|(name, counts)| (Arc::clone(name), counts[at])).collect();
    Ok(cpus.iter().enumerate().map(|(at, cpu)| (*cpu, counts_of_column(at))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_maps_of_each_cpu() {
        let read = softirqs("      CPU0  CPU1\n HI:  1  2\n NET_RX:  30  40\n").unwrap();
        assert_eq!(read[&CpuId(1)].get("NET_RX"), Some(40));
        assert_eq!(read[&CpuId(0)].get("HI"), Some(1));
    }

    #[test]
    fn net_softirqs_are_a_subset_of_all_softirqs() {
        let text = "      CPU0  CPU1\n HI:  1  2\n NET_RX:  30  40\n";
        let net = net_softirqs(text).unwrap();
        assert_eq!(net[&CpuId(1)], [("NET_RX", 40)].into());
        assert_eq!(softirqs(text).unwrap()[&CpuId(1)], [("HI", 2), ("NET_RX", 40)].into());
    }

    #[test]
    fn a_short_row_is_named() {
        let message = softirqs("      CPU0  CPU1\n NET_RX:  30\n").unwrap_err().to_string();
        assert_eq!(message, "line 2 column 13: NET_RX has no count for cpu 1 of 2");
    }
}
