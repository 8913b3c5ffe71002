//! `/sys/kernel/debug/irq/irqs/<n>` (`kernel/irq/debugfs.c`, `CONFIG_GENERIC_IRQ_DEBUGFS`).

use std::collections::BTreeSet;

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

#[cfg(test)]
mod tests {
    use super::*;

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
