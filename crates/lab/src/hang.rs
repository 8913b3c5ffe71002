//! Where the CPUs of a guest are that answers no more.

use std::path::Path;

use anyhow::Result;
use serde_json::json;

use crate::qmp::Qmp;

/// Returns one line per CPU: the function in which it is, and whether it waits for an interrupt.
pub(crate) fn cpus(qmp: &mut Qmp, symbols: &Path) -> Result<String> {
    let registers =
        qmp.execute("human-monitor-command", json!({ "command-line": "info registers -a" }))?;
    let symbols = Symbols::parse(&std::fs::read_to_string(symbols)?);
    Ok(describe(registers.as_str().unwrap_or_default(), &symbols))
}

fn describe(registers: &str, symbols: &Symbols) -> String {
    let mut lines = Vec::new();
    let mut cpu = "";
    for line in registers.lines() {
        if let Some(number) = line.strip_prefix("CPU#") {
            cpu = number.trim();
        } else if let Some(rip) = value(line, "RIP=") {
            let address = u64::from_str_radix(rip, 16).unwrap_or_default();
            let masked = match value(line, "RFL=").map(|it| u64::from_str_radix(it, 16)) {
                Some(Ok(flags)) if flags & INTERRUPTS_ENABLED == 0 => ", interrupts off",
                _ => "",
            };
            let halted = if value(line, "HLT=") == Some("1") { ", halted" } else { "" };
            lines.push(format!("cpu {cpu}: {}{masked}{halted}", symbols.name(address)));
        }
    }
    lines.join("\n")
}

/// The flag IF of the register RFLAGS.
const INTERRUPTS_ENABLED: u64 = 1 << 9;

fn value<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_whitespace().find_map(|word| word.strip_prefix(name))
}

/// A kernel's functions by address (`System.map`).
struct Symbols(Vec<(u64, String)>);

impl Symbols {
    fn parse(text: &str) -> Self {
        let symbol = |line: &str| {
            let mut words = line.split_whitespace();
            let address = u64::from_str_radix(words.next()?, 16).ok()?;
            Some((address, words.nth(1)?.to_owned()))
        };
        let mut symbols: Vec<_> = text.lines().filter_map(symbol).collect();
        symbols.sort();
        Self(symbols)
    }

    fn name(&self, address: u64) -> String {
        match self.0.partition_point(|symbol| symbol.0 <= address).checked_sub(1) {
            // Modules and user space are not in the map.
            Some(at) if at + 1 < self.0.len() => {
                let (start, name) = &self.0[at];
                format!("{name}+{:#x}", address - start)
            }
            _ => format!("{address:#x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cpu_has_its_function_and_state() {
        let map = "ffffffff81000000 T _text\nffffffff81000100 t wait_for\nffffffff81000200 T _end\n";
        let registers = "\nCPU#0\nRAX=0 RBX=1\nRIP=ffffffff81000104 RFL=00000046 [---Z-P-] CPL=0 \
                         II=0 A20=1 SMM=0 HLT=1\n\nCPU#1\nRIP=0000000000401000 RFL=00000246 HLT=0\n";
        assert_eq!(
            describe(registers, &Symbols::parse(map)),
            "cpu 0: wait_for+0x4, interrupts off, halted\ncpu 1: 0x401000"
        );
    }
}
