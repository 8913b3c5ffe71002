//! `/proc/cpuinfo`: the CPU's model, and whether a hypervisor stands before it. Its lines differ by
//! architecture.

/// The value of a field of the first CPU that has it.
fn field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    let fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    fields.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim()).next()
}

/// x86 and most others name the model; arm64 gives numbers.
pub fn model(cpuinfo: &str) -> String {
    let named = ["model name", "cpu model", "cpu", "machine"]
        .into_iter()
        .find_map(|name| field(cpuinfo, name));
    let numbered = || {
        let part = field(cpuinfo, "CPU part")?;
        Some(format!("implementer {} part {part}", field(cpuinfo, "CPU implementer")?))
    };
    named.map(str::to_owned).or_else(numbered).unwrap_or_else(|| "unknown".into())
}

/// x86 shows `hypervisor` among the flags of a guest's CPU (CPUID 1, ECX bit 31); elsewhere nothing
/// tells for sure.
pub fn virtual_machine(cpuinfo: &str) -> Option<bool> {
    Some(field(cpuinfo, "flags")?.split_whitespace().any(|flag| flag == "hypervisor"))
}

/// What firmware says (`/sys/class/dmi/id/sys_vendor`, `product_name`), for CPUs that do not;
/// `None` where it names no hypervisor that is known: that proves nothing.
pub fn virtual_by_firmware(vendor: &str, product: &str) -> Option<bool> {
    let is_guest = match vendor {
        "QEMU" | "VMware, Inc." | "Xen" | "innotek GmbH" | "Google" => true,
        "Microsoft Corporation" => product == "Virtual Machine",
        "Amazon EC2" => !product.contains("metal"),
        _ => false,
    };
    (is_guest || vendor == "Amazon EC2").then_some(is_guest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_named_by_its_cpu_and_told_from_a_virtual_one() {
        let x86 = "processor\t: 0\nmodel name\t: Some CPU @ 2GHz\nflags\t\t: fpu vme hypervisor lahf_lm\n";
        assert_eq!((model(x86).as_str(), virtual_machine(x86)), ("Some CPU @ 2GHz", Some(true)));
        assert_eq!(virtual_machine("flags : fpu vme\n"), Some(false));
        let arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n";
        assert_eq!(
            (model(arm).as_str(), virtual_machine(arm)),
            ("implementer 0x41 part 0xd0c", None)
        );
    }

    #[test]
    fn firmware_names_a_hypervisor_or_proves_nothing() {
        assert_eq!(virtual_by_firmware("QEMU", "KVM Virtual Machine"), Some(true));
        assert_eq!(virtual_by_firmware("Amazon EC2", "m7g.metal"), Some(false));
        assert_eq!(virtual_by_firmware("Amazon EC2", "m7g.large"), Some(true));
        assert_eq!(virtual_by_firmware("Microsoft Corporation", "Surface Pro X"), None);
        assert_eq!(virtual_by_firmware("Ampere", "Altra"), None);
    }
}
