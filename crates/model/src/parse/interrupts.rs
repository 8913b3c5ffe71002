//! Parses `/proc/interrupts` (`kernel/irq/proc.c:show_interrupts`) as bytes, line by line, because
//! the file has 22.8 MB with 512 CPUs and 4000 IRQs.
//!
//! The header names the CPUs; only online CPUs have a column. The kernel prints each count as a
//! space and ten right-aligned digits. Most counts are zero, so the parser compares that cell as a
//! whole. It also accepts other widths.

use std::collections::{BTreeMap, BTreeSet};

use crate::machine::cpuset::CpuId;
use crate::machine::ids::Irq;
use crate::parse::error::ParseError;
use crate::parse::words::words;

/// The contents of `/proc/interrupts`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interrupts {
    /// The CPUs of the header, in column order.
    pub cpus: Vec<CpuId>,
    /// Device interrupts.
    pub irqs: BTreeMap<Irq, IrqRow>,
    /// Rows of the architecture (`LOC`, `CAL`, `IPI0`). Rows with one total for all CPUs (`ERR`)
    /// are left out. Rows of one label are added up (powerpc prints `LOC` twice).
    pub arch: BTreeMap<String, BTreeMap<CpuId, u64>>,
    /// The text of each of these rows (`Function call interrupts`), of the first of a label.
    pub arch_names: BTreeMap<String, String>,
}

/// One row of a device interrupt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IrqRow {
    /// Number of interrupts by CPU. Zeros are left out.
    pub counts: BTreeMap<CpuId, u64>,
    /// Controller, hardware number and trigger, with single spaces (`PCI-MSIX-0000:00:04.0
    /// 1-edge`).
    pub chip: String,
    /// The action names that drivers registered.
    pub actions: Vec<String>,
}

/// A parser that takes the file line by line.
#[derive(Debug, Default)]
pub struct InterruptsParser<'a> {
    wanted: Option<&'a BTreeSet<Irq>>,
    uncounted: bool,
    line: usize,
    read: Interrupts,
}

/// Parses the whole file.
pub fn interrupts(text: &[u8]) -> Result<Interrupts, ParseError> {
    let mut reader = InterruptsParser::new();
    let mut start = 0;
    for end in memchr::memchr_iter(b'\n', text).chain([text.len()]) {
        reader.line(&text[start..end])?;
        start = end + 1;
    }
    reader.finish()
}

const ZERO_CELL: &[u8] = b"          0";

impl<'a> InterruptsParser<'a> {
    /// Keeps all rows.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps only these interrupts, and the rows of the architecture.
    pub fn only(wanted: &'a BTreeSet<Irq>) -> Self {
        Self { wanted: Some(wanted), ..Self::default() }
    }

    /// Keeps all rows, but without counts, because these are most of the memory on a large machine.
    pub fn uncounted() -> Self {
        Self { uncounted: true, ..Self::default() }
    }

    /// Parses the next line, given without its newline.
    pub fn line(&mut self, line: &[u8]) -> Result<(), ParseError> {
        self.line += 1;
        if self.line == 1 {
            self.read.cpus = header(line)?;
            return Ok(());
        }
        let Some(colon) = line.iter().position(|&b| b == b':') else {
            return Ok(());
        };
        let label = line[..colon].trim_ascii();
        match irq_number(label) {
            Some(irq) if self.wanted.is_none_or(|wanted| wanted.contains(&irq)) => {
                let (counts, end) = self.counts(line, colon + 1)?;
                if counts.cells < self.read.cpus.len() {
                    return Err(self.torn(end, counts.cells));
                }
                let (chip, actions) = description(&String::from_utf8_lossy(&line[end..]));
                let first = chip.split(' ').next().unwrap_or_default();
                if !first.is_empty() && first.bytes().all(|b| b.is_ascii_digit()) {
                    return Err(self.torn(end, counts.cells + 1));
                }
                self.read.irqs.insert(
                    irq,
                    IrqRow { counts: counts.nonzero.into_iter().collect(), chip, actions },
                );
            }
            Some(_) => {}
            None => {
                let (counts, end) = self.counts(line, colon + 1)?;
                if counts.cells == self.read.cpus.len() {
                    let label = String::from_utf8_lossy(label).into_owned();
                    let name = String::from_utf8_lossy(line[end..].trim_ascii()).into_owned();
                    self.read.arch_names.entry(label.clone()).or_insert(name);
                    let row = self.read.arch.entry(label).or_default();
                    for (cpu, count) in counts.nonzero {
                        let sum: &mut u64 = row.entry(cpu).or_default();
                        *sum = sum.saturating_add(count);
                    }
                } else if counts.cells > 1 {
                    return Err(self.torn(end, counts.cells));
                }
            }
        }
        Ok(())
    }

    /// Returns the rows. Fails if there was no header.
    pub fn finish(self) -> Result<Interrupts, ParseError> {
        if self.line == 0 {
            return Err(ParseError::new(1, 1, "no header of cpus"));
        }
        Ok(self.read)
    }

    fn torn(&self, at: usize, cells: usize) -> ParseError {
        let cpus = self.read.cpus.len();
        ParseError::new(
            self.line,
            at + 1,
            format!(
                "{cells} counts for {cpus} cpus: a cpu may have gone online or offline during \
                 the read"
            ),
        )
    }

    /// The counts starting at byte `at`, and the byte after the last count.
    fn counts(&self, line: &[u8], mut at: usize) -> Result<(Counts, usize), ParseError> {
        let mut counts = Counts::default();
        for &cpu in &self.read.cpus {
            if line[at..].starts_with(ZERO_CELL)
                && !line.get(at + ZERO_CELL.len()).is_some_and(u8::is_ascii_digit)
            {
                at += ZERO_CELL.len();
                counts.cells += 1;
                continue;
            }
            let start = at + line[at..].iter().take_while(|&&b| b == b' ').count();
            let digits = line[start..].iter().take_while(|b| b.is_ascii_digit()).count();
            let ends = line.get(start + digits).is_none_or(u8::is_ascii_whitespace);
            if digits == 0 || !ends {
                break;
            }
            let mut value = 0u64;
            for &digit in &line[start..start + digits] {
                value = value
                    .checked_mul(10)
                    .and_then(|v| v.checked_add(u64::from(digit - b'0')))
                    .ok_or_else(|| {
                        ParseError::new(self.line, start + 1, "count exceeds 64 bits")
                    })?;
            }
            if value != 0 && !self.uncounted {
                counts.nonzero.push((cpu, value));
            }
            counts.cells += 1;
            at = start + digits;
        }
        Ok((counts, at))
    }
}

#[derive(Default)]
struct Counts {
    cells: usize,
    nonzero: Vec<(CpuId, u64)>,
}

fn header(line: &[u8]) -> Result<Vec<CpuId>, ParseError> {
    let text = String::from_utf8_lossy(line);
    let cpu = |(at, word): (usize, &str)| {
        let number = word.strip_prefix("CPU").and_then(|n| n.parse().ok());
        number
            .map(CpuId)
            .ok_or_else(|| ParseError::new(1, at + 1, format!("expected CPU<n>, found {word:?}")))
    };
    let cpus: Vec<CpuId> = words(&text).map(cpu).collect::<Result<_, _>>()?;
    if cpus.is_empty() {
        return Err(ParseError::new(1, 1, "no header of cpus"));
    }
    Ok(cpus)
}

fn irq_number(label: &[u8]) -> Option<Irq> {
    std::str::from_utf8(label).ok()?.parse().ok().map(Irq)
}

/// Splits the text after the counts into controller and actions.
///
/// Format: `%8s` controller, hardware number (absent without irq domain), `Level` or `Edge` (not on
/// x86), `-` and the name of the flow handler (glued to the number on x86), two spaces, actions.
/// The kernel always prints two spaces before the actions, so they follow the last gap of that
/// width, unless number or trigger follow it. A controller or an action may contain single spaces.
fn description(text: &str) -> (String, Vec<String>) {
    let text = text.trim();
    let (chip, actions) = match text.rmatch_indices("  ").next() {
        Some((at, gap)) if !is_trigger(&text[at + gap.len()..]) => text.split_at(at + gap.len()),
        _ => (text, ""),
    };
    let actions = actions.split(',').map(|name| name.trim().to_owned());
    let chip: Vec<&str> = words(chip).map(|(_, word)| word).collect();
    (chip.join(" "), actions.filter(|name| !name.is_empty()).collect())
}

/// Whether the text is hardware number, trigger and flow handler, as far as they are printed:
/// `27 Level`, `1-edge`, `Level -fasteoi`, `-event`.
fn is_trigger(text: &str) -> bool {
    let is_part = |word: &str| matches!(word, "Level" | "Edge") || word.starts_with('-');
    let mut words = words(text).map(|(_, word)| word).peekable();
    words.next_if(|word| is_hwirq(word));
    words.all(is_part)
}

/// Whether a word is a hardware number, alone (`27`) or with the flow handler's name (`1-edge`).
fn is_hwirq(word: &str) -> bool {
    let number = word.split_once('-').map_or(word, |(number, _)| number);
    !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
}

/// A vector of a PCI device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MsiVector {
    /// The device's address.
    pub bus: String,
    /// The vector's index in its device.
    pub index: u32,
}

/// The device and the index that the controller of a message-signalled interrupt tells.
///
/// Newer kernels print the address, and the number is the index. In older ones the number is
/// `segment << 27 | bus << 19 | devfn << 11 | index`
/// (`drivers/pci/msi/irqdomain.c:pci_msi_domain_calc_hwirq`).
pub fn msi_vector(chip: &str) -> Option<MsiVector> {
    let (name, number) = chip.trim_end_matches(" Edge").rsplit_once(' ')?;
    let number: u64 = number.split('-').next()?.parse().ok()?;
    if let Some((_, bus)) = name.split_once("PCI-MSIX-").or(name.split_once("PCI-MSI-")) {
        let bus = Some(bus).filter(|bus| bus.contains(':'))?;
        return Some(MsiVector { bus: bus.to_owned(), index: number.try_into().ok()? });
    }
    let is_pci = name.ends_with("PCI-MSI") || matches!(name, "ITS-MSI" | "Hyper-V PCIe MSI");
    let part = |shift: u32, bits: u32| (number >> shift) & ((1 << bits) - 1);
    let (segment, bus, device, function) = (part(27, 32), part(19, 8), part(14, 5), part(11, 3));
    is_pci.then(|| MsiVector {
        bus: format!("{segment:04x}:{bus:02x}:{device:02x}.{function}"),
        index: part(0, 11) as u32,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const X86: &str = "            CPU0       CPU2       
   0:          7          0   IO-APIC   2-edge      timer
  16:          0          0   IO-APIC  16-fasteoi   ehci_hcd:usb1, i801_smbus
  29:          0 4294967295 PCI-MSIX-0000:00:04.0   1-edge      virtio0-input.0
  30:          3          0 IR-PCI-MSI 524288-edge      eth0-TxRx-0
  31:          0          0 PCI-MSIX-0000:00:04.0   2-edge
 LOC:      39588      43077   Local timer interrupts
 ERR:          0
";

    #[test]
    fn columns_are_the_cpus_of_the_header() {
        let read = interrupts(X86.as_bytes()).unwrap();
        assert_eq!(read.cpus, [CpuId(0), CpuId(2)]);
        assert_eq!(read.irqs[&Irq(29)].counts, BTreeMap::from([(CpuId(2), 4294967295)]));
        assert_eq!(read.irqs[&Irq(30)].counts, BTreeMap::from([(CpuId(0), 3)]));
        assert_eq!(read.arch["LOC"][&CpuId(2)], 43077);
        assert!(!read.arch.contains_key("ERR"));
    }

    #[test]
    fn chip_and_actions_are_separated() {
        let read = interrupts(X86.as_bytes()).unwrap();
        let row =
            |irq| (read.irqs[&Irq(irq)].chip.as_str(), read.irqs[&Irq(irq)].actions.join("|"));
        assert_eq!(row(0), ("IO-APIC 2-edge", "timer".into()));
        assert_eq!(row(16), ("IO-APIC 16-fasteoi", "ehci_hcd:usb1|i801_smbus".into()));
        assert_eq!(row(29), ("PCI-MSIX-0000:00:04.0 1-edge", "virtio0-input.0".into()));
        assert_eq!(row(31), ("PCI-MSIX-0000:00:04.0 2-edge", "".into()));
    }

    #[test]
    fn other_architectures_print_the_level_or_no_number() {
        let split = |text: &str| {
            let (chip, actions) = description(text);
            (chip, actions.join("|"))
        };
        assert_eq!(
            split("     GICv3  27 Level     arch_timer"),
            ("GICv3 27 Level".into(), "arch_timer".into())
        );
        assert_eq!(
            split(" ITS-MSI 524289 Edge      nvme0q1"),
            ("ITS-MSI 524289 Edge".into(), "nvme0q1".into())
        );
        assert_eq!(
            split("   xen-dyn    -event     eth0-q0-tx"),
            ("xen-dyn -event".into(), "eth0-q0-tx".into())
        );
        assert_eq!(
            split("  XICS  17 Level     eth2-TxRx 3"),
            ("XICS 17 Level".into(), "eth2-TxRx 3".into())
        );
        assert_eq!(
            split(" Freescale MSI  12 Edge      eth0"),
            ("Freescale MSI 12 Edge".into(), "eth0".into())
        );
        assert_eq!(
            split("   IO-APIC   9-fasteoi   acpi"),
            ("IO-APIC 9-fasteoi".into(), "acpi".into())
        );
        assert_eq!(split("    XT-PIC      timer"), ("XT-PIC".into(), "timer".into()));
        assert_eq!(
            split("     GICv3 152 Level     30be0000.ethernet"),
            ("GICv3 152 Level".into(), "30be0000.ethernet".into())
        );
        assert_eq!(
            split("  GICv3 58 Level     1004b800.serial:rx err, b"),
            ("GICv3 58 Level".into(), "1004b800.serial:rx err|b".into())
        );
        assert_eq!(split("   PCI-MSI  0000:00:00.0"), ("PCI-MSI".into(), "0000:00:00.0".into()));
        assert_eq!(
            split("   OpenPIC   Level     serial"),
            ("OpenPIC Level".into(), "serial".into())
        );
        assert_eq!(split("   OpenPIC   Level"), ("OpenPIC Level".into(), "".into()));
        assert_eq!(
            split("   GICv2  10 Edge -fasteoi  a"),
            ("GICv2 10 Edge -fasteoi".into(), "a".into())
        );
        assert_eq!(
            split("  1e000600.gpio  18  reset"),
            ("1e000600.gpio 18".into(), "reset".into())
        );
        assert_eq!(split("  MIPS GIC  10"), ("MIPS GIC 10".into(), "".into()));
    }

    #[test]
    fn rows_of_one_label_are_added_up() {
        let text = "  CPU0\n LOC: 25755 Local timer interrupts for timer event device\n \
                    LOC: 4 Local timer interrupts for others\nIPI1: 7 Function call interrupts\n";
        let read = interrupts(text.as_bytes()).unwrap();
        assert_eq!(read.arch["LOC"][&CpuId(0)], 25759);
        assert_eq!(read.arch_names["IPI1"], "Function call interrupts");
    }

    #[test]
    fn a_message_signalled_interrupt_tells_the_address_of_its_device() {
        let vector = |chip| msi_vector(chip).map(|vector| (vector.bus, vector.index));
        assert_eq!(vector("IR-PCI-MSI 102238208-edge"), Some(("0000:c3:00.1".into(), 0)));
        assert_eq!(vector("PCI-MSI 65540-edge"), Some(("0000:00:04.0".into(), 4)));
        assert_eq!(vector("ITS-MSI 524289 Edge"), Some(("0000:01:00.0".into(), 1)));
        assert_eq!(vector("Hyper-V PCIe MSI 4294967297-edge"), Some(("0020:00:00.0".into(), 1)));
        assert_eq!(vector("PCI-MSIX-0000:01:00.0 3-edge"), Some(("0000:01:00.0".into(), 3)));
        assert_eq!(vector("IR-PCI-MSIX-10000:e1:00.0 0-edge"), Some(("10000:e1:00.0".into(), 0)));
        for chip in ["PCI-MSI-edge", "IO-APIC 2-edge", "DMAR-MSI 1-edge", "MIPS GIC 10", ""] {
            assert_eq!(vector(chip), None, "{chip}");
        }
    }

    #[test]
    fn only_requested_rows_are_kept() {
        let wanted = BTreeSet::from([Irq(30)]);
        let mut reader = InterruptsParser::only(&wanted);
        for line in X86.lines() {
            reader.line(line.as_bytes()).unwrap();
        }
        let read = reader.finish().unwrap();
        assert_eq!(read.irqs.keys().copied().collect::<Vec<_>>(), [Irq(30)]);
        assert!(read.arch.contains_key("LOC"));
    }

    #[test]
    fn a_row_with_more_or_fewer_counts_than_the_header_is_an_error_with_its_position() {
        let message = |text: &str| interrupts(text.as_bytes()).unwrap_err().to_string();
        let short = message("  CPU0 CPU1\n 5:   1   chip 2-edge  x\n");
        assert_eq!(
            short,
            "line 2 column 8: 1 counts for 2 cpus: a cpu may have gone online or offline during \
             the read"
        );
        let long = message("  CPU0\n 5:   1   7  chip 2-edge  x\n");
        assert!(long.starts_with("line 2 column 8: 2 counts for 1 cpus"), "{long}");
        assert_eq!(message(""), "line 1 column 1: no header of cpus");
        assert_eq!(message("CPU0 core1\n"), "line 1 column 6: expected CPU<n>, found \"core1\"");
    }

    #[test]
    fn uncounted_drops_only_the_counts() {
        let mut reader = InterruptsParser::uncounted();
        X86.lines().for_each(|line| reader.line(line.as_bytes()).unwrap());
        let mut all = interrupts(X86.as_bytes()).unwrap();
        all.irqs.values_mut().for_each(|row| row.counts.clear());
        all.arch.values_mut().for_each(BTreeMap::clear);
        assert_eq!(reader.finish().unwrap(), all);
    }

    #[test]
    fn every_width_of_a_cell_gives_the_same_counts() {
        for count in [0, 9, 10, 4294967295u64, 99999999999] {
            for pad in 0..14 {
                let text = format!("  CPU0 CPU1\n 5: {count:>pad$} {count:>pad$} chip 1-edge  x\n");
                let read = interrupts(text.as_bytes()).unwrap();
                let sum: u64 = read.irqs[&Irq(5)].counts.values().sum();
                assert_eq!(sum, 2 * count, "{text}");
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(rows in proptest::collection::vec("[ 0-9:A-Z,\\-]{0,40}", 0..8)) {
            let _ = interrupts(format!("  CPU0 CPU7\n{}", rows.join("\n")).as_bytes());
            rows.iter().for_each(|row| drop(msi_vector(row)));
        }
    }
}
