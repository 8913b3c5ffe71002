//! Containers and services that have CPUs for themselves.
//!
//! The kubelet (CPU Manager, policy `static`) and nri-plugins write a set into each container's
//! `cpuset.cpus`. A container with exclusive CPUs gets those; all other containers get the
//! remaining CPUs, the shared pool (`pkg/kubelet/cm/cpumanager/cpu_manager.go:reconcileState`).
//! Only containers of Guaranteed pods get exclusive CPUs, and the cgroups of these pods are
//! directly below the kubelet's. The kubelet's own record, `cpu_manager_state`, is not read,
//! because its folder also has the secrets of all pods.
//!
//! Outside a kubelet, only a cpuset partition keeps other cgroups off its CPUs: `AllowedCPUs=` of
//! systemd, `--cpuset-cpus` of Docker, and `cpuset.cpus.exclusive` without a partition do not.

use std::collections::BTreeMap;

use netsilo_model::machine::cpu_owner::CpuOwner;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::machine::topology::Topology;
use netsilo_model::parse::container::{Container, id, pod_uid};
use netsilo_model::parse::cpu_lists;
use netsilo_model::parse::pod_annotations::PodAnnotations;

use crate::files::root::Root;
use crate::read::containers;

/// The kubelet's cgroup, with systemd's cgroups or cgroupfs, in v2 and in v1.
const KUBELET: [&str; 4] = [
    "/sys/fs/cgroup/kubepods.slice",
    "/sys/fs/cgroup/kubepods",
    "/sys/fs/cgroup/cpuset/kubepods.slice",
    "/sys/fs/cgroup/cpuset/kubepods",
];

/// Where CRI-O, containerd and k3s keep each container's `config.json`.
const CONFIGS: [(&str, &str); 3] = [
    ("/run/containers/storage/overlay-containers", "/userdata"),
    ("/run/containerd/io.containerd.runtime.v2.task/k8s.io", ""),
    ("/run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io", ""),
];

/// The owners of CPUs, by the paths of their cgroups. `partitions`: the paths and CPUs of
/// partitions.
pub(crate) fn cpu_owners(
    root: &Root,
    topology: &Topology,
    partitions: Vec<(String, CpuSet)>,
) -> Vec<CpuOwner> {
    let mut found: BTreeMap<String, (CpuSet, &str)> = BTreeMap::new();
    for dir in KUBELET {
        let mut sets = Sets { all: set(root, dir), ..Sets::default() };
        sets.read(root, dir, true);
        let exclusive = sets.once.minus(&sets.shared);
        let each = sets.each.into_iter().map(|(path, cpus)| (path, cpus.and(&exclusive)));
        let each = each.filter(|(_, cpus)| !cpus.is_empty());
        found.extend(each.map(|(path, cpus)| (path, (cpus, "cpuset.cpus"))));
    }
    let each = partitions.into_iter().map(|(path, cpus)| (path, (cpus, "cpuset.cpus.partition")));
    for (path, owned) in each {
        found.entry(path).or_insert(owned);
    }
    let ids = found.keys().filter_map(|path| Some(Container::from_path(path)?.id)).collect();
    let names = containers::names_of(root, &ids);
    let owner = |(path, (cpus, why)): (&String, &(CpuSet, &str))| {
        let container = Container::from_path(path);
        let annotations =
            container.as_ref().and_then(|it| annotations(root, it.id)).unwrap_or_default();
        let first_core = cpus.lowest().filter(|_| annotations.keeps_first_core());
        let first_core = first_core.map_or_else(CpuSet::new, |cpu| topology.core_of(cpu));
        let cgroup = path.rsplit('/').next().unwrap_or(path).to_owned();
        let logged = container.as_ref().and_then(|it| names.get(it.id).cloned());
        let name = annotations.name().or(logged).or_else(|| Some(container?.label()));
        CpuOwner {
            name: name.unwrap_or_else(|| cgroup.clone()),
            cgroup,
            cpus: cpus.minus(&first_core),
            why: annotations.about_interrupts().unwrap_or_else(|| (*why).to_owned()),
            claims_queues: annotations.claims_queues(),
        }
    };
    found.iter().map(owner).collect()
}

/// What a container's pod says about interrupts and queues.
fn annotations(root: &Root, id: &str) -> Option<PodAnnotations> {
    let paths = CONFIGS.iter().map(|(dir, below)| format!("{dir}/{id}{below}/config.json"));
    let keep = |text: &str| {
        let annotations: PodAnnotations = serde_json::from_str(text).ok()?;
        serde_json::to_string(&annotations.known()).ok()
    };
    let config = paths.into_iter().find_map(|path| root.kept(&path, keep).ok().flatten())?;
    serde_json::from_str(&config).ok()
}

/// The sets of containers below a kubelet's cgroup.
#[derive(Default)]
struct Sets {
    /// The set of each container of a Guaranteed pod, by the path of its cgroup.
    each: Vec<(String, CpuSet)>,
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
                self.add(path.clone(), set(root, &path), guaranteed);
            } else if pod_uid(&name).is_some() {
                self.read(root, &path, guaranteed);
            } else if name.contains("burstable") || name.contains("besteffort") {
                self.read(root, &path, false);
            }
        }
    }

    fn add(&mut self, path: String, cpus: CpuSet, guaranteed: bool) {
        if cpus == self.all {
            return;
        }
        let again = if guaranteed { self.once.and(&cpus) } else { cpus.clone() };
        self.shared = self.shared.or(&again);
        self.once = self.once.or(&cpus);
        if guaranteed {
            self.each.push((path, cpus));
        }
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
        let owners = cpu_owners(&Root::at(dir.path()).unwrap(), &Topology::default(), Vec::new());
        Topology { cpu_owners: owners, ..Topology::default() }.exclusive().to_string()
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

    /// The owners in a tree, and in a capture of it.
    fn owners(tree: &[(String, &str)], configs: &[(u8, &str, &str)]) -> Vec<CpuOwner> {
        let (dir, capture) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let put = |path: String, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        for (path, cpus) in tree {
            put(format!("sys/fs/cgroup/{path}/cpuset.cpus"), cpus);
        }
        for (n, folder, annotations) in configs {
            let config = format!(
                r#"{{"process": {{"env": ["PASSWORD=secret"]}}, "annotations": {annotations}}}"#
            );
            put(folder.replace("ID", &container(*n)), &config);
        }
        put(format!("var/log/containers/db-1_shop_db-{}.log", container(2)), "");
        let topology = Topology::grid(1, 8, 2);
        let partitions =
            || vec![("/sys/fs/cgroup/a.slice/dns.service".to_owned(), CpuSet::first(1))];
        let read = |root: &Root| cpu_owners(root, &topology, partitions());
        let root = Root::at(dir.path()).unwrap();
        let (recording, recorder) = root.recording(capture.path()).unwrap();
        let found = read(&recording);
        recorder.finish().unwrap();
        let captured = read(&Root::at(capture.path()).unwrap());
        let words = |all: &[CpuOwner]| -> Vec<_> {
            all.iter().map(|it| (it.cpus.clone(), it.why.clone(), it.claims_queues)).collect()
        };
        assert_eq!(words(&captured), words(&found), "the capture says the same");
        for file in walk(capture.path()) {
            assert!(!std::fs::read_to_string(&file).unwrap().contains("secret"), "{file:?}");
        }
        found
    }

    fn walk(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
        let entries = std::fs::read_dir(dir).unwrap().map(|it| it.unwrap().path());
        entries.flat_map(|it| if it.is_dir() { walk(&it) } else { vec![it] }).collect()
    }

    #[test]
    fn a_pods_words_name_it_and_decide_about_its_cpus() {
        let tree = [
            ("kubepods.slice".into(), "0-15"),
            (systemd("", 1, 1), "2-5"),
            (systemd("", 2, 2), "6-7"),
            (systemd("", 3, 3), "8-9"),
            (systemd("", 4, 4), "10"),
            (systemd("besteffort", 5, 5), "0-1,11-15"),
        ];
        let crio = "run/containers/storage/overlay-containers/ID/userdata/config.json";
        let containerd = "run/containerd/io.containerd.runtime.v2.task/k8s.io/ID/config.json";
        let named = r#"{"io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.name": "web-1",
            "io.kubernetes.container.name": "nginx",
            "irq-load-balancing.crio.io": "housekeeping"}"#;
        let claims = r#"{"netsilo.io/claims-queues": "true"}"#;
        let found = owners(&tree, &[(1, crio, named), (3, containerd, claims)]);
        let found: Vec<String> = found
            .iter()
            .map(|it| format!("{} {it}", it.cpus).replace(&uid(0)[..34], "UID"))
            .collect();
        let partition = "0 dns.service (cpuset.cpus.partition)";
        let id = &container(3)[..12];
        let expected = [
            partition.to_owned(),
            "4-5 shop/web-1/nginx (irq-load-balancing.crio.io: housekeeping)".to_owned(),
            "6-7 shop/db-1/db (cpuset.cpus)".to_owned(),
            format!(
                "8-9 pod UID03 container {id} (cpuset.cpus, but takes the queues that it reads)"
            ),
            format!("10 pod UID04 container {id} (cpuset.cpus)"),
        ];
        assert_eq!(found, expected);
    }
}
