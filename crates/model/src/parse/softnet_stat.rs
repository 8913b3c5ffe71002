//! `/proc/net/softnet_stat` (`net/core/net-procfs.c:softnet_seq_show`): hexadecimal, one line per
//! *online* CPU.

use std::collections::BTreeMap;

use crate::machine::cpuset::{CpuId, CpuSet};
use crate::parse::error::ParseError;
use crate::parse::words::words;
use crate::snapshot::host::Softnet;

/// Counters by CPU.
///
/// Column 13 (since 5.10) is the CPU; the line number is not. Older kernels print 9 to 11 columns
/// without a CPU. Then the n-th line is the n-th online CPU, and it is an error if the number of
/// lines differs from the number of online CPUs.
pub fn softnet_stat(text: &str, online: &CpuSet) -> Result<BTreeMap<CpuId, Softnet>, ParseError> {
    let mut read = BTreeMap::new();
    let mut unnamed = online.iter();
    let mut last = 0;
    for (line, number) in text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty()) {
        let columns = columns(line, number)?;
        let column = |n: usize| columns.get(n - 1).copied();
        let wanted = |n: usize, name: &str| {
            column(n).ok_or_else(|| {
                ParseError::new(number, line.len() + 1, format!("no column {n} ({name})"))
            })
        };
        let cpu = match column(13) {
            Some(cpu) => CpuId(cpu),
            None => unnamed.next().ok_or_else(|| {
                let what = format!(
                    "no column 13 (cpu), and more lines than the {} online cpus",
                    online.len()
                );
                ParseError::new(number, line.len() + 1, what)
            })?,
        };
        let softnet = Softnet {
            processed: Some(wanted(1, "processed")?),
            dropped: wanted(2, "dropped")?,
            time_squeeze: wanted(3, "time_squeeze")?,
            received_rps: column(10).unwrap_or(0),
            flow_limit_count: column(11).unwrap_or(0),
            backlog_len: column(13).and(column(12)),
            input_qlen: column(14),
            process_qlen: column(15),
        };
        read.insert(cpu, softnet);
        last = number;
    }
    if let Some(cpu) =
        unnamed.next().filter(|_| read.len() < online.len() && lacks_cpu_column(text))
    {
        return Err(ParseError::new(last + 1, 1, format!("no line for online cpu {cpu}")));
    }
    Ok(read)
}

fn lacks_cpu_column(text: &str) -> bool {
    text.lines().next().is_none_or(|line| line.split_ascii_whitespace().count() < 13)
}

fn columns(line: &str, number: usize) -> Result<Vec<u32>, ParseError> {
    let value = |(at, word): (usize, &str)| {
        u32::from_str_radix(word, 16).map_err(|_| {
            ParseError::new(
                number,
                at + 1,
                format!("expected a 32-bit hexadecimal number, found {word:?}"),
            )
        })
    };
    words(line).map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(columns: &[u32]) -> String {
        columns.iter().map(|c| format!("{c:08x}")).collect::<Vec<_>>().join(" ") + "\n"
    }

    #[test]
    fn cpu_comes_from_the_column_not_from_the_line() {
        let text = line(&[9, 0, 1, 0, 0, 0, 0, 0, 0, 5, 0, 2, 0])
            + &line(&[7, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3]);
        let read = softnet_stat(&text, &CpuSet::parse_list("0,3").unwrap()).unwrap();
        assert_eq!(read.keys().map(|c| c.0).collect::<Vec<_>>(), [0, 3]);
        assert_eq!((read[&CpuId(0)].received_rps, read[&CpuId(0)].backlog_len), (5, Some(2)));
        assert_eq!((read[&CpuId(3)].dropped, read[&CpuId(3)].input_qlen), (3, None));
    }

    #[test]
    fn fifteen_columns_give_both_queue_lengths() {
        let text = line(&[9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 1, 2]);
        let read = softnet_stat(&text, &CpuSet::parse_list("0").unwrap()).unwrap();
        assert_eq!((read[&CpuId(0)].input_qlen, read[&CpuId(0)].process_qlen), (Some(1), Some(2)));
    }

    #[test]
    fn without_column_13_lines_are_the_online_cpus_in_order() {
        let text =
            line(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0]) + &line(&[2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let read = softnet_stat(&text, &CpuSet::parse_list("0,2").unwrap()).unwrap();
        assert_eq!((read[&CpuId(0)].received_rps, read[&CpuId(2)].processed), (4, Some(2)));
        assert_eq!(read[&CpuId(0)].backlog_len, None);
        let few = softnet_stat(&text, &CpuSet::parse_list("0-2").unwrap()).unwrap_err().to_string();
        assert_eq!(few, "line 3 column 1: no line for online cpu 2");
        let many = softnet_stat(&text, &CpuSet::parse_list("0").unwrap()).unwrap_err().to_string();
        assert_eq!(
            many,
            "line 2 column 99: no column 13 (cpu), and more lines than the 1 online cpus"
        );
    }

    #[test]
    fn a_missing_column_is_named() {
        let message = softnet_stat("00000001 zz\n", &CpuSet::parse_list("0").unwrap())
            .unwrap_err()
            .to_string();
        assert_eq!(message, "line 1 column 10: expected a 32-bit hexadecimal number, found \"zz\"");
        let message = softnet_stat("00000001 00000002\n", &CpuSet::parse_list("0").unwrap())
            .unwrap_err()
            .to_string();
        assert_eq!(message, "line 1 column 18: no column 3 (time_squeeze)");
    }
}
