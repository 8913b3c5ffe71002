//! Reads what the kernel offers netsilo, and what this process may do.

use std::path::Path;

use netsilo_model::parse::scalar;
use netsilo_model::snapshot::prerequisites::{KernelFeature, Prerequisites};

use crate::files::root::Root;

/// A file of each feature. `*` stands for any one directory. The feature exists if any matching
/// file exists, or if `*` matches no directory that could contain the file.
const FILES: [(KernelFeature, &str); 8] = [
    (KernelFeature::Btf, "/sys/kernel/btf/vmlinux"),
    (KernelFeature::CountsByInterrupt, "/sys/kernel/irq"),
    (KernelFeature::EffectiveAffinity, "/proc/irq/*/effective_affinity"),
    (KernelFeature::Rps, "/sys/class/net/*/queues/rx-0/rps_cpus"),
    (KernelFeature::Rfs, "/proc/sys/net/core/rps_sock_flow_entries"),
    (KernelFeature::Xps, "/sys/class/net/*/queues/tx-0/xps_cpus"),
    (KernelFeature::ThreadedNapi, "/sys/class/net/*/threaded"),
    (KernelFeature::RpsDefaultMask, "/proc/sys/net/core/rps_default_mask"),
];

/// Mount points below which netsilo writes settings.
const WRITTEN: [&str; 5] = ["/proc", "/proc/irq", "/proc/sys", "/sys", "/sys/class/net"];

/// Reads what the kernel offers, and what this process may do.
pub fn prerequisites(root: &Root) -> Prerequisites {
    let number = |path: &str| root.parse(path, scalar::word).ok()?.parse().ok();
    let status = root.read("/proc/thread-self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.split_ascii_whitespace().map(str::to_owned).collect::<Vec<_>>())
    };
    let capabilities = field("CapEff").and_then(|words| words.first().cloned());
    let lockdown = root.read("/sys/kernel/security/lockdown").unwrap_or_default();
    let in_effect = |text: &str| Some(text.split_once('[')?.1.split_once(']')?.0.to_owned());
    let missing = FILES.iter().filter(|(_, path)| !exists(root, path)).map(|(feature, _)| *feature);
    Prerequisites {
        release: root.parse("/proc/sys/kernel/osrelease", scalar::word).ok(),
        missing: missing.collect(),
        // real, effective, saved, file system
        euid: field("Uid").and_then(|words| words.get(1)?.parse().ok()),
        capabilities: capabilities.and_then(|mask| u64::from_str_radix(&mask, 16).ok()),
        unprivileged_bpf_disabled: number("/proc/sys/kernel/unprivileged_bpf_disabled"),
        perf_event_paranoid: number("/proc/sys/kernel/perf_event_paranoid"),
        lockdown: in_effect(&lockdown),
        read_only: read_only(root, &root.read("/proc/self/mounts").unwrap_or_default()),
    }
}

fn exists(root: &Root, path: &str) -> bool {
    let Some((dir, file)) = path.split_once("/*/") else { return root.mode(path).is_ok() };
    let names = root.list(dir).unwrap_or_default();
    let mut inside = names.iter().map(|name| format!("{dir}/{name}"));
    inside.any(|dir| root.mode(&format!("{dir}/{file}")).is_ok())
}

/// The mount points in `/proc/self/mounts` that are read-only and below which netsilo writes.
fn read_only(root: &Root, mounts: &str) -> Vec<String> {
    // A tree has the mount points of the machine that was read.
    let at = |path: &str| match root.path(path) {
        Ok(mounted) if root.is_live() => mounted,
        _ => path.into(),
    };
    let point = |line: &str| {
        let mut words = line.split(' ').skip(1);
        let (point, options) = (words.next()?, words.nth(1)?);
        let hit = WRITTEN.iter().any(|path| at(path) == Path::new(point))
            && options.split(',').any(|option| option == "ro");
        hit.then(|| point.to_owned())
    };
    mounts.lines().filter_map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsilo_model::snapshot::prerequisites::Capability;

    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let root = Root::at(dir.path()).unwrap();
        (dir, root)
    }

    #[test]
    fn a_kernel_without_features_and_a_process_without_privileges() {
        let (_dir, root) = tree(&[
            ("/proc/sys/kernel/osrelease", "4.19.0\n"),
            ("/proc/thread-self/status", "Name:\tx\nUid:\t1000\t1001\t1\t1\nCapEff:\t0\n"),
            ("/proc/irq/30/smp_affinity", "1\n"),
            ("/sys/class/net/eth0/queues/rx-0/rps_cpus", "0\n"),
            ("/proc/self/mounts", "proc /proc proc rw 0 0\nsysfs /sys sysfs ro,nosuid 0 0\n"),
            ("/sys/kernel/security/lockdown", "none integrity [confidentiality]\n"),
            ("/proc/sys/kernel/perf_event_paranoid", "3\n"),
        ]);
        let read = prerequisites(&root);
        let missing: Vec<_> = FILES.map(|(feature, _)| feature).into();
        assert_eq!(
            read.missing,
            missing.into_iter().filter(|it| *it != KernelFeature::Rps).collect::<Vec<_>>()
        );
        assert_eq!((read.release.as_deref(), read.euid), (Some("4.19.0"), Some(1001)));
        assert_eq!(
            (read.has(Capability::Bpf), read.unprivileged_bpf_disabled),
            (Some(false), None)
        );
        assert_eq!(read.lockdown.as_deref(), Some("confidentiality"));
        assert_eq!((read.read_only, read.perf_event_paranoid), (vec!["/sys".to_owned()], Some(3)));
    }

    #[test]
    fn capabilities_are_those_of_the_mask() {
        let (_dir, root) = tree(&[
            ("/proc/sys/kernel/osrelease", "6.1\n"),
            ("/proc/thread-self/status", "CapEff:\t000000c000801000\n"),
        ]);
        let read = prerequisites(&root);
        let all = [Capability::NetAdmin, Capability::SysNice, Capability::Bpf, Capability::Perfmon];
        assert!(all.iter().all(|capability| read.has(*capability) == Some(true)));
        assert_eq!(read.has(Capability::SysAdmin), Some(false));
    }

    #[test]
    fn this_machine_can_be_read() {
        assert!(prerequisites(&Root::live()).release.is_some());
    }
}
