//! CPUs that the kubelet gave to one container alone (CPU Manager, policy `static`).
//!
//! That policy writes a set into each container's `cpuset.cpus`. A container with exclusive CPUs
//! gets those; all other containers get the remaining CPUs, the shared pool
//! (`pkg/kubelet/cm/cpumanager/cpu_manager.go:reconcileState`). Only containers of Guaranteed pods
//! get exclusive CPUs, and the cgroups of these pods are directly below the kubelet's. The
//! kubelet's own record, `cpu_manager_state`, is not read, because its folder also has the secrets
//! of all pods.

use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::parse::container::{id, pod_uid};
use netsilo_model::parse::cpu_lists;

use crate::files::root::Root;

/// The kubelet's cgroup, with systemd's cgroups or cgroupfs, in v2 and in v1.
const KUBELET: [&str; 4] = [
    "/sys/fs/cgroup/kubepods.slice",
    "/sys/fs/cgroup/kubepods",
    "/sys/fs/cgroup/cpuset/kubepods.slice",
    "/sys/fs/cgroup/cpuset/kubepods",
];

/// The CPUs that belong to exactly one container, of a Guaranteed pod. None without a kubelet.
pub(crate) fn exclusive_cpus(root: &Root) -> CpuSet {
    let mut cpus = CpuSet::new();
    for dir in KUBELET {
        let mut sets = Sets { all: set(root, dir), ..Sets::default() };
        sets.read(root, dir, true);
        cpus = cpus.or(&sets.once.minus(&sets.shared));
    }
    cpus
}

/// The sets of containers below a kubelet's cgroup.
#[derive(Default)]
struct Sets {
    /// The set of the kubelet itself. A container with this set has not been given one.
    all: CpuSet,
    /// CPUs of at least one container of a Guaranteed pod.
    once: CpuSet,
    /// CPUs of two containers, or of a container of another pod.
    shared: CpuSet,
}

impl Sets {
    /// Adds the containers below `dir`; `guaranteed` is whether their pods are Guaranteed.
    fn read(&mut self, root: &Root, dir: &str, guaranteed: bool) {
        for name in root.unrecorded().list(dir).unwrap_or_default() {
            let path = format!("{dir}/{name}");
            if id(&name).is_some() {
                self.add(set(root, &path), guaranteed);
            } else if pod_uid(&name).is_some() {
                self.read(root, &path, guaranteed);
            } else if name.contains("burstable") || name.contains("besteffort") {
                self.read(root, &path, false);
            }
        }
    }

    fn add(&mut self, cpus: CpuSet, guaranteed: bool) {
        if cpus == self.all {
            return;
        }
        let again = if guaranteed { self.once.and(&cpus) } else { cpus.clone() };
        self.shared = self.shared.or(&again);
        self.once = self.once.or(&cpus);
    }
}

/// The set that was written for a cgroup. Empty if there is none, or if the cgroup has ended.
fn set(root: &Root, dir: &str) -> CpuSet {
    root.parse(&format!("{dir}/cpuset.cpus"), cpu_lists::list).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree of cgroups with their sets, below `/sys/fs/cgroup`.
    fn exclusive(cgroups: &[(String, &str)]) -> String {
        let dir = tempfile::tempdir().unwrap();
        for (path, cpus) in cgroups {
            let path = dir.path().join("sys/fs/cgroup").join(path);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join("cpuset.cpus"), format!("{cpus}\n")).unwrap();
            std::fs::write(path.join("tasks"), "").unwrap();
        }
        exclusive_cpus(&Root::at(dir.path()).unwrap()).to_string()
    }

    fn uid(n: u8) -> String {
        format!("0b8cf3a1-52d7-4c0e-9f6e-8a1d2c3b4e{n:02x}")
    }

    fn container(n: u8) -> String {
        format!("{n:064x}")
    }

    /// The path of a container in a pod of this class (`""` for Guaranteed), with systemd's
    /// cgroups.
    fn systemd(class: &str, pod: u8, n: u8) -> String {
        let uid = uid(pod).replace('-', "_");
        let (folder, class) = match class {
            "" => (String::new(), String::new()),
            _ => (format!("kubepods-{class}.slice/"), format!("{class}-")),
        };
        let scope = format!("cri-containerd-{}.scope", container(n));
        format!("kubepods.slice/{folder}kubepods-{class}pod{uid}.slice/{scope}")
    }

    fn cgroupfs(class: &str, pod: u8, n: u8) -> String {
        let class = if class.is_empty() { String::new() } else { format!("{class}/") };
        format!("kubepods/{class}pod{}/{}", uid(pod), container(n))
    }

    #[test]
    fn containers_with_a_set_of_their_own_have_exclusive_cpus_in_v2() {
        let tree = [
            ("kubepods.slice".into(), "0-7"),
            (systemd("", 1, 1), "2-3"),
            // its sidecar, and the pod's sandbox, to which no set is written
            (systemd("", 1, 2), "0-1,6-7"),
            (systemd("", 1, 3), ""),
            (systemd("", 2, 4), "4-5"),
            (systemd("burstable", 3, 5), "0-1,6-7"),
            (systemd("besteffort", 4, 6), "0-1,6-7"),
        ];
        assert_eq!(exclusive(&tree), "2-5");
        assert_eq!(exclusive(&[]), "");
    }

    #[test]
    fn they_have_them_in_v1_with_cgroupfs_too() {
        let below = |path: String| format!("cpuset/{path}");
        let tree = [
            ("cpuset/kubepods".into(), "0-7"),
            (below(cgroupfs("", 1, 1)), "4"),
            // in v1 a sandbox starts with all CPUs
            (below(cgroupfs("", 1, 2)), "0-7"),
            (below(cgroupfs("burstable", 3, 5)), "0-3,5-7"),
        ];
        assert_eq!(exclusive(&tree), "4");
    }

    #[test]
    fn without_the_static_policy_no_cpu_is_exclusive() {
        for set in ["", "0-7"] {
            let tree = [
                ("kubepods.slice".into(), "0-7"),
                (systemd("", 1, 1), set),
                (systemd("burstable", 2, 2), set),
            ];
            assert_eq!(exclusive(&tree), "", "{set:?}");
        }
    }

    #[test]
    fn the_shared_pool_is_not_exclusive_to_one_of_its_guaranteed_pods() {
        let tree = [
            ("kubepods.slice".into(), "0-7"),
            (systemd("", 1, 1), "2-3"),
            // a Guaranteed pod with half a CPU
            (systemd("", 2, 2), "0-1,4-7"),
            (systemd("besteffort", 3, 3), "0-1,4-7"),
        ];
        assert_eq!(exclusive(&tree), "2-3");
    }
}
