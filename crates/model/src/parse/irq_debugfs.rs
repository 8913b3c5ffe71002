//! `/sys/kernel/debug/irq/irqs/<n>` and `/sys/kernel/debug/irq/domains/VECTOR`
//! (`kernel/irq/debugfs.c`, `CONFIG_GENERIC_IRQ_DEBUGFS`).

use std::collections::{BTreeMap, BTreeSet};

use crate::machine::cpuset::{CpuId, MAX_CPUS};
use crate::parse::error::ParseError;
use crate::snapshot::host::Writable;

/// Whether user space can write the affinity, from the flags that the kernel prints.
///
/// `irq_can_set_affinity_usr` requires that `IRQD_PER_CPU`, `IRQD_NO_BALANCING` and
/// `IRQD_AFFINITY_MANAGED` are clear and that the controller has `irq_set_affinity`. The file does
/// not show the last condition.
pub fn writable(text: &str) -> Result<Writable, ParseError> {
    let flags: BTreeSet<&str> =
        text.lines().map(str::trim).filter(|line| line.starts_with("IRQD_")).collect();
    if !text.lines().any(|line| line.starts_with("dstate:")) {
        return Err(ParseError::new(1, 1, "no line \"dstate:\""));
    }
    Ok(if flags.contains("IRQD_AFFINITY_MANAGED") {
        Writable::Managed
    } else if flags.contains("IRQD_NO_BALANCING") || flags.contains("IRQD_PER_CPU") {
        Writable::Unsupported
    } else {
        Writable::Yes
    })
}

/// Free interrupt vectors of each online CPU: the column `avl` (`kernel/irq/matrix.c`), of x86.
pub fn free_vectors(text: &str) -> Result<BTreeMap<CpuId, usize>, ParseError> {
    let mut lines = text.lines().enumerate();
    let is_header = |line: &str| line.trim_start().starts_with("| CPU | avl |");
    if !lines.any(|(_, line)| is_header(line)) {
        return Err(ParseError::new(1, 1, "no row \"| CPU | avl | ...\""));
    }
    let row = |(at, line): (usize, &str)| {
        let mut words = line.split_whitespace();
        let mut number = || words.next()?.parse::<u32>().ok();
        let row = number().filter(|cpu| *cpu < MAX_CPUS).zip(number());
        let row = row.map(|(cpu, left)| (CpuId(cpu), left as usize));
        row.ok_or_else(|| ParseError::new(at + 1, 1, "no CPU and number of free vectors"))
    };
    lines.filter(|(_, line)| !line.trim().is_empty()).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cpu_has_a_row_with_its_free_vectors() {
        let text = "name:   VECTOR\n size:   0\nOnline bitmaps:        2\n\
                    | CPU | avl | man | mac | act | vectors\n\
                    \u{20}    0   170     0     0   33  32-48,50\n\
                    \u{20}    1     0     1     1   201  32-48\n";
        let free = free_vectors(text).unwrap();
        assert_eq!(free, [(CpuId(0), 170), (CpuId(1), 0)].into());
        assert_eq!(free_vectors("name:   VECTOR\n").unwrap_err().line, 1);
        assert_eq!(free_vectors("| CPU | avl |\n0 x\n").unwrap_err().line, 2);
        assert_eq!(free_vectors("| CPU | avl |\n8192 1\n").unwrap_err().line, 2);
    }

    #[test]
    fn the_flags_decide_whether_the_affinity_is_writable() {
        let of = |flag: &str| {
            writable(&format!(
                "handler:  handle_edge_irq\nstatus:   0x00000000\n\
                 dstate:   0x2140a200\n            IRQD_ACTIVATED\n            {flag}\n\
                 node:     0\n"
            ))
        };
        assert_eq!(of("IRQD_AFFINITY_MANAGED"), Ok(Writable::Managed));
        assert_eq!(of("IRQD_NO_BALANCING"), Ok(Writable::Unsupported));
        assert_eq!(of("IRQD_SINGLE_TARGET"), Ok(Writable::Yes));
        assert!(writable("").is_err());
    }
}
