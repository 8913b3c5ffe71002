//! `/proc/cpuinfo`: the CPU model and whether the machine is a guest. Its lines differ by
//! architecture.

/// The value of a field, from the first CPU that has the field.
fn field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    let fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    fields.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim()).next()
}

/// The CPU model: a name on x86 and most architectures, implementer and part numbers on arm64.
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

/// Whether the CPU flags contain `hypervisor` (x86, CPUID 1, ECX bit 31); `None` without flags.
pub fn virtual_machine(cpuinfo: &str) -> Option<bool> {
    Some(field(cpuinfo, "flags")?.split_whitespace().any(|flag| flag == "hypervisor"))
}

/// Whether the firmware strings `/sys/class/dmi/id/sys_vendor` and `product_name` name a
/// hypervisor.
///
/// For CPUs without a hypervisor flag. Returns `None` for an unknown vendor, because it proves
/// nothing.
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
    fn the_cpu_names_the_model_and_the_hypervisor_flag() {
        let x86 = "processor\t: 0\nmodel name\t: Some CPU @ 2GHz\n\
                   flags\t\t: fpu vme hypervisor lahf_lm\n";
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
