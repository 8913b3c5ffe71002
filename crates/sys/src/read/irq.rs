//! Reads interrupts from `/proc/interrupts`, `/proc/irq/<n>` and, if only a few are wanted,
//! `/sys/kernel/irq/<n>`.

use std::collections::{BTreeMap, BTreeSet};

use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::machine::topology::NodeId;
use netsilo_model::parse::interrupts::{Interrupts, InterruptsParser, IrqRow};
use netsilo_model::parse::per_cpu_count::per_cpu_count;
use netsilo_model::parse::{cpu_lists, irq_debugfs, scalar};
use netsilo_model::snapshot::host::{IrqState, Writable};

use crate::files::error::ReadError;
use crate::files::root::Root;
use crate::read::gaps::Notes;

const DEBUGFS: &str = "/sys/kernel/debug/irq/irqs";
const VECTORS: &str = "/sys/kernel/debug/irq/domains/VECTOR";

/// Reads `/proc/interrupts`: all rows, or the wanted rows and those of the architecture.
///
/// If a CPU goes on- or offline during the read, the table is inconsistent. Then it is read once
/// more.
pub fn interrupts(root: &Root, wanted: Option<&BTreeSet<Irq>>) -> Result<Interrupts, ReadError> {
    untorn(root, || wanted.map_or_else(InterruptsParser::new, InterruptsParser::only))
}

/// Reads all rows of `/proc/interrupts` without their counts.
pub(crate) fn uncounted(root: &Root) -> Result<Interrupts, ReadError> {
    untorn(root, InterruptsParser::uncounted)
}

fn untorn<'a>(
    root: &Root,
    reader: impl Fn() -> InterruptsParser<'a>,
) -> Result<Interrupts, ReadError> {
    match interrupts_once(root, reader()) {
        Err(ReadError::Parse { .. }) if root.is_live() => interrupts_once(root, reader()),
        read => read,
    }
}

fn interrupts_once(root: &Root, mut reader: InterruptsParser<'_>) -> Result<Interrupts, ReadError> {
    let path = "/proc/interrupts";
    root.lines(path, |line| reader.line(line))?;
    reader.finish().map_err(|source| ReadError::Parse { path: path.to_owned(), source })
}

/// The rows of a few interrupts, from `/sys/kernel/irq/<n>`. Missing interrupts are skipped.
///
/// On machines with many interrupts this is cheaper than `/proc/interrupts`, because the kernel
/// formats only these rows.
pub fn rows(
    root: &Root,
    irqs: &BTreeSet<Irq>,
    possible: &CpuSet,
) -> Result<BTreeMap<Irq, IrqRow>, ReadError> {
    let mut rows = BTreeMap::new();
    for &irq in irqs {
        let dir = format!("/sys/kernel/irq/{irq}");
        let word = |name: &str| {
            Ok(root.optional(&format!("{dir}/{name}"), scalar::word)?.unwrap_or_default())
        };
        if let Some(counts) =
            root.optional(&format!("{dir}/per_cpu_count"), |text| per_cpu_count(text, possible))?
        {
            let (chip, hwirq, name, actions) =
                (word("chip_name")?, word("hwirq")?, word("name")?, word("actions")?);
            let flow = if name.is_empty() { String::new() } else { format!("-{name}") };
            let actions =
                actions.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
            rows.insert(irq, IrqRow { counts, chip: format!("{chip} {hwirq}{flow}"), actions });
        }
    }
    Ok(rows)
}

/// The state of each interrupt that has a row. If an interrupt is in `known`, its hint and node are
/// taken from there.
pub(crate) fn irqs(
    notes: &Notes<'_>,
    rows: BTreeMap<Irq, IrqRow>,
    known: &BTreeMap<Irq, IrqState>,
) -> BTreeMap<Irq, IrqState> {
    let debugfs = has_debugfs(notes);
    let of = |(irq, row): (Irq, IrqRow)| {
        (irq, settings(notes, irq, arriving(notes, irq, row), debugfs, known.get(&irq)))
    };
    rows.into_iter().map(of).collect()
}

/// Whether debugfs shows interrupts (`CONFIG_GENERIC_IRQ_DEBUGFS`).
pub(crate) fn has_debugfs(notes: &Notes<'_>) -> bool {
    notes.root.unrecorded().list(DEBUGFS).is_ok()
}

/// Where an interrupt arrives. Of its settings, only the effective affinity is read: maybe empty,
/// as [`settings`] takes it.
pub(crate) fn arriving(notes: &Notes<'_>, irq: Irq, row: IrqRow) -> IrqState {
    // EINVAL without CONFIG_GENERIC_IRQ_EFFECTIVE_AFF_MASK
    let effective = notes.get(&file(irq, "effective_affinity_list"), cpu_lists::list);
    let IrqRow { actions, chip, counts } = row;
    IrqState { actions, chip, counts, effective, ..IrqState::default() }
}

/// Adds the settings of an interrupt to what [`arriving`] read. Its hint and node are those of
/// `known`, if that is the same interrupt.
pub(crate) fn settings(
    notes: &Notes<'_>,
    irq: Irq,
    arriving: IrqState,
    debugfs: bool,
    known: Option<&IrqState>,
) -> IrqState {
    let file = |name: &str| file(irq, name);
    let requested = notes.get(&file("smp_affinity_list"), cpu_lists::list);
    let (hint, node) = match known {
        Some(known) if known.actions == arriving.actions => (known.hint.clone(), known.node),
        _ => {
            let hint = notes.get(&file("affinity_hint"), cpu_lists::mask);
            let node = notes.get(&file("node"), scalar::number_or_none).flatten();
            (hint.filter(|cpus| !cpus.is_empty()), node.map(NodeId))
        }
    };
    let mode = notes.note(notes.root.mode(&file("smp_affinity_list")));
    let flags = || notes.get(&format!("{DEBUGFS}/{irq}"), irq_debugfs::writable);
    let flags = debugfs.then(flags).flatten();
    // the effective affinity is empty until the interrupt's first start
    let has_come = arriving.counts.values().any(|count| *count > 0);
    let is_undirected = has_come && arriving.effective.as_ref().is_some_and(CpuSet::is_empty);
    let writable = writable(mode, flags, &arriving.chip, is_undirected);
    let effective = arriving.effective.filter(|cpus| !cpus.is_empty());
    IrqState { requested, effective, hint, node, writable, ..arriving }
}

fn file(irq: Irq, name: &str) -> String {
    format!("/proc/irq/{irq}/{name}")
}

/// The free interrupt vectors of each CPU; none where debugfs does not show them.
pub(crate) fn free_vectors(notes: &Notes<'_>) -> BTreeMap<CpuId, usize> {
    has_debugfs(notes)
        .then(|| notes.get(VECTORS, irq_debugfs::free_vectors))
        .flatten()
        .unwrap_or_default()
}

/// Whether the affinity can be written.
///
/// This is determined by the mode of `smp_affinity_list` and, where debugfs is mounted, by the
/// flags there. Since 6.11 `register_irq_proc` makes the file read-only unless
/// `irq_can_set_affinity_usr`. That is false for a managed interrupt, and for one whose controller
/// cannot direct it. Controllers can direct message-signalled interrupts, so for those read-only
/// means managed. Before 6.11 the mode carries no information. Without SMP there is no file.
///
/// An interrupt that has come and whose effective affinity is still empty `is_undirected`: its
/// controller never took one (`irq_do_set_affinity`). Interrupts behind a GPIO and the MSIs of
/// DesignWare's PCIe refuse writes, others accept and ignore them.
fn writable(
    mode: Option<u32>,
    flags: Option<Writable>,
    chip: &str,
    is_undirected: bool,
) -> Writable {
    match (mode, flags) {
        (None, _) => Writable::Unsupported,
        (_, Some(known @ (Writable::Managed | Writable::Unsupported))) => known,
        _ if is_undirected => Writable::Unsupported,
        (Some(mode), _) if mode & 0o200 != 0 => Writable::Yes,
        _ if chip.contains("MSI") => Writable::Managed,
        _ => Writable::Unsupported,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_only_file_means_managed_if_the_controller_can_direct_the_interrupt() {
        assert_eq!(
            writable(Some(0o644), None, "PCI-MSIX-0000:00:04.0 1-edge", false),
            Writable::Yes
        );
        assert_eq!(
            writable(Some(0o444), None, "PCI-MSIX-0000:00:04.0 1-edge", false),
            Writable::Managed
        );
        assert_eq!(writable(Some(0o444), None, "IO-APIC 2-edge", false), Writable::Unsupported);
        assert_eq!(
            writable(Some(0o644), Some(Writable::Managed), "PCI-MSI 1-edge", false),
            Writable::Managed
        );
        assert_eq!(writable(None, None, "PCI-MSI 1-edge", false), Writable::Unsupported);
    }

    #[test]
    fn a_controller_that_never_took_an_affinity_cannot_direct_the_interrupt() {
        let gpio = |is_undirected| writable(Some(0o644), None, "gpio 12 Level", is_undirected);
        assert_eq!([false, true].map(gpio), [Writable::Yes, Writable::Unsupported]);
    }
}
