//! `/sys/kernel/irq/<n>/per_cpu_count` (`kernel/irq/irqdesc.c:per_cpu_count_show`): the counts of
//! one interrupt.

use std::collections::BTreeMap;

use crate::machine::cpuset::{CpuId, CpuSet};
use crate::parse::error::ParseError;
use crate::parse::words::decimal;

/// Number of interrupts by CPU. Zeros are left out. The file has one number per *possible* CPU.
pub fn per_cpu_count(text: &str, possible: &CpuSet) -> Result<BTreeMap<CpuId, u64>, ParseError> {
    let text = text.trim_end();
    if let Some(counts) = counts_in_one_pass(text, possible) {
        return Ok(counts.into_iter().collect());
    }
    let mut counts = BTreeMap::new();
    let mut cells = text.split(',');
    let mut at = 0;
    for cpu in possible.iter() {
        let cell = cells.next().ok_or_else(|| {
            ParseError::new(
                1,
                text.len() + 1,
                format!("no count for cpu {cpu} (of {} possible cpus)", possible.len()),
            )
        })?;
        let count = decimal(1, (at, cell))?;
        if count != 0 {
            counts.insert(cpu, count);
        }
        at += cell.len() + 1;
    }
    Ok(counts)
}

/// Fast path with the same result: one pass over the bytes, because nearly all counts are 0.
///
/// Returns `None` if the format differs in any way. The slow path then finds the position of the
/// error.
fn counts_in_one_pass(text: &str, possible: &CpuSet) -> Option<Vec<(CpuId, u64)>> {
    let mut counts = Vec::new();
    let mut bytes = text.bytes();
    for cpu in possible.iter() {
        let (mut count, mut digits) = (0u64, 0);
        loop {
            match bytes.next() {
                Some(digit @ b'0'..=b'9') if digits < 19 => {
                    count = count * 10 + u64::from(digit - b'0');
                    digits += 1;
                }
                Some(b',') | None if digits > 0 => break,
                _ => return None,
            }
        }
        if count > 0 {
            counts.push((cpu, count));
        }
    }
    Some(counts)
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
        assert_eq!(message, "line 1 column 4: no count for cpu 3 (of 3 possible cpus)");
        for bad in ["4,,9", "4,0,x", "4,0,-9", "", ",,", "4 ,0,9", "4,0,99999999999999999999"] {
            assert!(per_cpu_count(bad, &possible).is_err(), "{bad:?}");
        }
        let most = per_cpu_count(&format!("0,0,{}", u64::MAX), &possible).unwrap();
        assert_eq!(most, BTreeMap::from([(CpuId(3), u64::MAX)]));
    }
}
