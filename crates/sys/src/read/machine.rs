//! Reads what identifies the machine (name, CPUs, kernel, whether it is virtual), and event counts
//! over all its CPUs.

use netsilo_model::cost::calibration::MachineIdentity;
use netsilo_model::parse::stat::{Events, events};
use netsilo_model::parse::{cpuinfo, scalar};

use crate::files::error::ReadError;
use crate::files::root::Root;

/// The properties that identify this machine.
pub fn machine_identity(root: &Root) -> Result<MachineIdentity, ReadError> {
    let text = root.read("/proc/cpuinfo")?;
    let cpus = crate::read::topology::topology(root)?.cpus.len();
    Ok(MachineIdentity {
        hostname: root.parse("/proc/sys/kernel/hostname", scalar::word)?,
        cpu_model: cpuinfo::model(&text),
        cpus,
        kernel: root.parse("/proc/sys/kernel/osrelease", scalar::word)?,
        virtual_machine: virtual_machine(root, Some(&text)),
    })
}

/// Numbers of task switches and of interrupts since boot. Each is 0 if it cannot be read.
pub fn kernel_events(root: &Root) -> Events {
    root.parse("/proc/stat", |text| Ok(events(text))).unwrap_or_default()
}

/// Whether QEMU (TCG) emulates the CPUs, so that measured times mean nothing.
///
/// Recognized by the hypervisor signature (leaf 0x40000000, `target/i386/cpu.c:cpu_x86_cpuid`).
/// Other architectures have no signature.
pub fn is_emulated() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every 64-bit CPU has the instruction; an unknown leaf returns unrelated data.
        #[allow(unsafe_code, unused_unsafe, reason = "safe since Rust 1.94")]
        let leaf = unsafe { std::arch::x86_64::__cpuid(0x4000_0000) };
        [leaf.ebx, leaf.ecx, leaf.edx].map(u32::to_le_bytes).concat() == b"TCGTCGTCGTCG"
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Whether this is a virtual machine: by the CPU flags, else by the firmware's names.
pub(crate) fn virtual_machine(root: &Root, text: Option<&str>) -> Option<bool> {
    let word = |file: &str| root.parse(&format!("/sys/class/dmi/id/{file}"), scalar::word).ok();
    let firmware = || {
        cpuinfo::virtual_by_firmware(
            &word("sys_vendor")?,
            &word("product_name").unwrap_or_default(),
        )
    };
    text.and_then(cpuinfo::virtual_machine).or_else(firmware)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_cpu_with_a_name() {
        assert!(!machine_identity(&Root::live()).unwrap().cpu_model.is_empty());
    }
}
