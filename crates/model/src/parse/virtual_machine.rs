//! Virtual machines, as the names of their programs' cgroups, arguments and threads tell them.

use crate::snapshot::tap_holders::TapThreadRole;

/// The name of the virtual machine whose program runs in this cgroup.
///
/// | path ends with | written by |
/// |---|---|
/// | `machine-qemu\x2d3\x2dweb1.scope` | libvirt by systemd-machined |
/// | `qemu.slice/100.scope` | Proxmox |
///
/// There may be more folders below.
pub fn of_cgroup(path: &str) -> Option<String> {
    let folders: Vec<&str> = path.split('/').collect();
    let scopes = folders.iter().enumerate();
    let mut scopes = scopes.filter_map(|(at, name)| Some((at, name.strip_suffix(".scope")?)));
    scopes.find_map(|(at, scope)| match scope.strip_prefix("machine-") {
        Some(escaped) => {
            let name = unescaped(escaped);
            let (driver, rest) = name.split_once('-')?;
            let (number, name) = rest.split_once('-')?;
            let is_one = driver == "qemu" && number.bytes().all(|it| it.is_ascii_digit());
            is_one.then(|| name.to_owned())
        }
        None => (folders.get(at.checked_sub(1)?) == Some(&"qemu.slice")).then(|| scope.to_owned()),
    })
}

/// A name without the escapes of `systemd-escape`: `\x2d` is a byte.
fn unescaped(name: &str) -> String {
    let mut bytes = Vec::new();
    let mut parts = name.split("\\x");
    bytes.extend(parts.next().unwrap_or_default().bytes());
    for part in parts {
        match part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                bytes.extend(part.bytes().skip(2));
            }
            None => bytes.extend(b"\\x".iter().copied().chain(part.bytes())),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The name in the arguments of a program (`/proc/PID/cmdline`): QEMU's `-name`, Firecracker's
/// `--id`.
pub fn of_arguments(cmdline: &str) -> Option<String> {
    let words: Vec<&str> = cmdline.split('\0').collect();
    let value = |option: &str| {
        let at = words.iter().position(|it| *it == option)?;
        words.get(at + 1).copied().filter(|it| !it.is_empty())
    };
    let of_qemu = |value: &str| {
        let first = value.split(',').find(|it| it.starts_with("guest="));
        let name = first.or_else(|| value.split(',').next().filter(|it| !it.contains('=')))?;
        Some(name.strip_prefix("guest=").unwrap_or(name).to_owned())
    };
    let program = words[0].rsplit('/').next()?;
    match program {
        _ if program.starts_with("qemu") || program == "kvm" => value("-name").and_then(of_qemu),
        _ if program.starts_with("firecracker") => value("--id").map(str::to_owned),
        _ => None,
    }
}

/// What a thread of this name (`comm`) does.
///
/// | name | program |
/// |---|---|
/// | `vhost-812` | the kernel's vhost worker, made by thread 812 |
/// | `CPU 3/KVM`, `CPU 3/TCG` | QEMU with `debug-threads=on` (libvirt) |
/// | `vcpu3`, `fc_vcpu 3`, `crosvm_vcpu3` | Cloud Hypervisor, Firecracker, crosvm |
pub fn role(comm: &str) -> TapThreadRole {
    if maker_of_vhost(comm).is_some() {
        return TapThreadRole::Vhost;
    }
    let qemu = comm.strip_prefix("CPU ").and_then(|rest| rest.split_once('/')).map(|it| it.0);
    let others = || comm.split_once("vcpu").map(|it| it.1.trim_start());
    match qemu.or_else(others).filter(|it| is_number(it)).and_then(|it| it.parse().ok()) {
        Some(number) => TapThreadRole::Vcpu(number),
        None => TapThreadRole::Other,
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit())
}

/// The thread that has made the vhost worker of this name.
pub fn maker_of_vhost(comm: &str) -> Option<u32> {
    comm.strip_prefix("vhost-").filter(|it| is_number(it))?.parse().ok()
}

/// The tun or tap of a descriptor of `/dev/net/tun` (`/proc/PID/fdinfo/FD`); `None` if it has none
/// yet.
pub fn tun_of_descriptor(fdinfo: &str) -> Option<&str> {
    let name = fdinfo.lines().find_map(|line| line.strip_prefix("iff:"))?.trim();
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_cgroup_or_the_arguments() {
        let of = |path| of_cgroup(path);
        let libvirt = r"/machine.slice/machine-qemu\x2d3\x2dweb\x2d1.scope/libvirt/emulator";
        assert_eq!(of(libvirt).as_deref(), Some("web-1"));
        let escaped = r"/machine.slice/machine-qemu\x2d3\x2da\x5fb\xzz.scope";
        assert_eq!(of(escaped).as_deref(), Some(r"a_b\xzz"));
        assert_eq!(of("/qemu.slice/100.scope").as_deref(), Some("100"));
        let others =
            ["/machine.slice/machine-lxc\\x2d3\\x2dweb.scope", "/user.slice/100.scope", ""];
        assert_eq!(others.map(of), [None, None, None]);
        let of = |words: &[&str]| of_arguments(&words.join("\0"));
        let qemu = of(&["qemu", "-name", "guest=web1,debug-threads=on", "-S"]);
        assert_eq!(qemu.as_deref(), Some("web1"));
        assert_eq!(of(&["qemu", "-name", "web2,process=q"]).as_deref(), Some("web2"));
        assert_eq!(of(&["/usr/bin/firecracker", "--id", "f1", ""]).as_deref(), Some("f1"));
        assert_eq!(of(&["openvpn", "--id", "7", "-name", "x"]), None);
        assert_eq!(
            [of(&["qemu", "-name", "debug-threads=on"]), of(&["qemu", "-name"])],
            [None, None]
        );
    }

    #[test]
    fn threads_are_known_by_their_names() {
        use TapThreadRole::{Other, Vcpu, Vhost};
        let names = ["vhost-812", "CPU 3/KVM", "CPU 12/TCG", "vcpu0", "fc_vcpu 1", "crosvm_vcpu7"];
        assert_eq!(names.map(role), [Vhost, Vcpu(3), Vcpu(12), Vcpu(0), Vcpu(1), Vcpu(7)]);
        assert_eq!(["vhost-", "CPU x/KVM", "vcpus", "pasta", "my-vhost-8"].map(role), [Other; 5]);
        assert_eq!(maker_of_vhost("vhost-812"), Some(812));
        assert_eq!([maker_of_vhost("vhost-"), maker_of_vhost("qemu")], [None, None]);
    }

    #[test]
    fn a_descriptor_tells_its_tap() {
        assert_eq!(tun_of_descriptor("pos:\t0\nflags:\t02\niff:\tvnet0\n"), Some("vnet0"));
        assert_eq!([tun_of_descriptor("iff:\t\n"), tun_of_descriptor("pos:\t0\n")], [None, None]);
    }
}
