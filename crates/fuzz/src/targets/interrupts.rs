//! `/proc/interrupts`: values printed in the kernel's format parse to the same values; rows are
//! independent of each other.

use std::collections::BTreeSet;
use std::fmt::Write;

use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::ids::Irq;
use netsilo_model::parse::interrupts::{Interrupts, InterruptsParser, interrupts, msi_vector};

use crate::target::{FuzzTarget, fixtures};

pub(crate) const TARGET: FuzzTarget = FuzzTarget { seeds, ..FuzzTarget::bytes(holds) };

fn holds(text: &[u8]) {
    let read = interrupts(text);
    if let Ok(ascii) = std::str::from_utf8(text)
        && ascii.is_ascii()
    {
        // the kernel ends lines with a newline only: a carriage return belongs to the line
        crate::properties::points_into(&ascii.replace('\r', " "), &read);
    }
    let Ok(read) = read else { return };
    for row in read.irqs.values() {
        assert!(msi_vector(&row.chip).is_none_or(|vector| vector.bus.contains(':')));
        assert!(row.counts.iter().all(|(cpu, count)| read.cpus.contains(cpu) && *count > 0));
        assert!(
            !row.chip.contains("  ")
                && row.actions.iter().all(|name| !name.contains(',') && !name.trim().is_empty())
        );
    }
    only_wanted(text, &read);
    counts_come_back(&read);
}

fn seeds() -> Vec<Vec<u8>> {
    fixtures(|path| path.ends_with("/proc/interrupts"))
}

/// A reader of every second interrupt gives the same rows.
fn only_wanted(text: &[u8], all: &Interrupts) {
    let wanted: BTreeSet<Irq> = all.irqs.keys().copied().step_by(2).collect();
    let mut reader = InterruptsParser::only(&wanted);
    for line in text.split(|&b| b == b'\n') {
        reader.line(line).expect("all rows were read before");
    }
    let some = reader.finish().expect("there was a header");
    assert_eq!((&some.cpus, &some.arch), (&all.cpus, &all.arch));
    assert!(
        some.irqs.keys().eq(&wanted) && some.irqs.iter().all(|(irq, row)| all.irqs[irq] == *row)
    );
}

/// Prints in the format of `kernel/irq/proc.c:show_interrupts`, with another controller and other
/// names.
fn counts_come_back(read: &Interrupts) {
    let distinct: BTreeSet<CpuId> = read.cpus.iter().copied().collect();
    if distinct.len() != read.cpus.len() {
        return;
    }
    let mut text = String::from("    ");
    for cpu in &read.cpus {
        let _ = write!(text, "       CPU{cpu:<4}");
    }
    for (irq, row) in &read.irqs {
        let _ = write!(text, "\n{irq:>4}:");
        for cpu in &read.cpus {
            let _ = write!(text, " {:>10}", row.counts.get(cpu).copied().unwrap_or(0));
        }
        text.push_str("  IR-PCI-MSI 524288-edge      eth0-TxRx-0");
    }
    text.push('\n');
    let again = interrupts(text.as_bytes()).expect("the kernel's own format");
    assert_eq!(again.cpus, read.cpus);
    assert!(again.irqs.keys().eq(read.irqs.keys()));
    for (irq, row) in again.irqs {
        assert_eq!(row.counts, read.irqs[&irq].counts);
        assert_eq!(
            (row.chip.as_str(), row.actions.as_slice()),
            ("IR-PCI-MSI 524288-edge", &["eth0-TxRx-0".to_owned()][..])
        );
    }
}
