//! `/sys/kernel/irq/<n>/per_cpu_count` (`kernel/irq/irqdesc.c:per_cpu_count_show`): counts of one interrupt.

use std::collections::BTreeMap;

use super::ParseError;
use crate::cpuset::{CpuId, CpuSet};

/// Interrupts taken, by CPU; zeros are left out. The file has one number per *possible* CPU.
pub fn per_cpu_count(text: &str, possible: &CpuSet) -> Result<BTreeMap<CpuId, u64>, ParseError> {
    let text = text.trim_end();
    let mut counts = BTreeMap::new();
    let mut cells = text.split(',');
    let mut at = 0;
    for cpu in possible.iter() {
        let cell = cells.next().ok_or_else(|| {
            ParseError::new(1, text.len() + 1, format!("no count for cpu {cpu} of {} possible ones", possible.len()))
        })?;
        let count = super::decimal(1, (at, cell))?;
        if count != 0 {
            counts.insert(cpu, count);
        }
        at += cell.len() + 1;
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_the_possible_cpus() {
        let possible = CpuSet::parse_list("0,2-3").unwrap();
        let counts = per_cpu_count("4,0,9\n", &possible).unwrap();
        assert_eq!(counts, BTreeMap::from([(CpuId(0), 4), (CpuId(3), 9)]));
        let message = per_cpu_count("4,0\n", &possible).unwrap_err().to_string();
        assert_eq!(message, "line 1 column 4: no count for cpu 3 of 3 possible ones");
    }
}
