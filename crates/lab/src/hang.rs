//! Reports where the CPUs are in a guest that does not answer any more.

use anyhow::Result;
use serde_json::json;

use crate::qmp::Qmp;

/// Returns one line per CPU: the address of its instruction, and whether it accepts interrupts.
/// Guests have no address randomization, so `/proc/kallsyms` of another guest has the functions.
pub(crate) fn cpus(qmp: &mut Qmp) -> Result<String> {
    let registers =
        qmp.execute("human-monitor-command", json!({ "command-line": "info registers -a" }))?;
    Ok(describe(registers.as_str().unwrap_or_default()))
}

fn describe(registers: &str) -> String {
    let mut lines = Vec::new();
    let mut cpu = "";
    for line in registers.lines() {
        if let Some(number) = line.strip_prefix("CPU#") {
            cpu = number.trim();
        } else if let Some(address) = value(line, "RIP=") {
            let masked = match value(line, "RFL=").map(|it| u64::from_str_radix(it, 16)) {
                Some(Ok(flags)) if flags & INTERRUPTS_ENABLED == 0 => ", interrupts off",
                _ => "",
            };
            let halted = if value(line, "HLT=") == Some("1") { ", halted" } else { "" };
            lines.push(format!("cpu {cpu}: at {address}{masked}{halted}"));
        }
    }
    lines.join("\n")
}

/// The flag IF of the register RFLAGS.
const INTERRUPTS_ENABLED: u64 = 1 << 9;

fn value<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_whitespace().find_map(|word| word.strip_prefix(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cpu_has_its_address_and_state() {
        let registers = "\nCPU#0\nRAX=0 RBX=1\nRIP=ffffffff81000104 RFL=00000046 [---Z-P-] CPL=0 \
                         II=0 A20=1 SMM=0 HLT=1\n\nCPU#1\nRIP=401000 RFL=00000246 HLT=0\n";
        assert_eq!(
            describe(registers),
            "cpu 0: at ffffffff81000104, interrupts off, halted\ncpu 1: at 401000"
        );
    }
}
