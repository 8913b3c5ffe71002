//! `/sys/kernel/debug/irq/irqs/<n>` (`kernel/irq/debugfs.c`, `CONFIG_GENERIC_IRQ_DEBUGFS`).

use std::collections::BTreeSet;

use crate::parse::ParseError;
use crate::snapshot::host::Writable;

/// Whether the affinity can be written, by the flags that the kernel prints.
///
/// `irq_can_set_affinity_usr` wants none of `IRQD_PER_CPU`, `IRQD_NO_BALANCING` and
/// `IRQD_AFFINITY_MANAGED`, and a controller with `irq_set_affinity`; the last is not in this file.
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
    fn the_flags_decide() {
        let of = |flag: &str| {
            writable(&format!(
                "handler:  handle_edge_irq\nstatus:   0x00000000\ndstate:   0x2140a200\n            IRQD_ACTIVATED\n            {flag}\nnode:     0\n"
            ))
        };
        assert_eq!(of("IRQD_AFFINITY_MANAGED"), Ok(Writable::Managed));
        assert_eq!(of("IRQD_NO_BALANCING"), Ok(Writable::Unsupported));
        assert_eq!(of("IRQD_SINGLE_TARGET"), Ok(Writable::Yes));
        assert!(writable("").is_err());
    }
}
