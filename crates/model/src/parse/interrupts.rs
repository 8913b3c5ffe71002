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
    /// are left out.
    pub arch: BTreeMap<String, BTreeMap<CpuId, u64>>,
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
                if chip.bytes().next().is_some_and(|b| b.is_ascii_digit())
                    && chip.bytes().all(|b| b.is_ascii_digit())
                {
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
                    let name = String::from_utf8_lossy(label).into_owned();
                    self.read.arch.insert(name, counts.nonzero.into_iter().collect());
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
/// x86), `-` and the name of the flow handler (glued to the number on x86), two spaces, actions. A
/// controller name may contain single spaces.
fn description(text: &str) -> (String, Vec<String>) {
    let mut chip: Vec<&str> = Vec::new();
    let mut end = 0;
    for (at, word) in words(text) {
        let gap = at - end;
        let belongs = match chip.len() {
            0 => true,
            _ if word.starts_with(|c: char| c.is_ascii_digit()) => {
                !chip.last().is_some_and(|w| is_hwirq(w))
            }
            _ if word.starts_with('-') => true,
            _ if word == "Level" || word == "Edge" => chip.last().is_some_and(|w| is_hwirq(w)),
            _ => gap == 1 && !chip.iter().skip(1).any(|w| is_hwirq(w) || w.starts_with('-')),
        };
        if !belongs {
            let actions = text[at..]
                .split(',')
                .map(|name| name.trim().to_owned())
                .filter(|name| !name.is_empty());
            return (chip.join(" "), actions.collect());
        }
        chip.push(word);
        end = at + word.len();
    }
    (chip.join(" "), Vec::new())
}

/// Whether a word is a hardware number, alone (`27`) or with the flow handler's name (`1-edge`).
fn is_hwirq(word: &str) -> bool {
    let number = word.split_once('-').map_or(word, |(number, _)| number);
    !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
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
        }
    }
}
