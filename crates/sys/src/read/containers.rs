//! Names of containers, from the kubelet's log files.
//!
//! The kubelet keeps a link for each container of the node. Its name contains the pod, the
//! namespace and the container (`pkg/kubelet/kuberuntime/legacy.go`). So no request to an API
//! server is needed.

use std::collections::{BTreeMap, BTreeSet};

use netsilo_model::parse::container::{Container, log_file, pod_folder};
use netsilo_model::snapshot::attribution::Consumption;

use crate::files::root::Root;

/// Where the kubelet links the log files.
const LOGS: &str = "/var/log/containers";

/// Where the kubelet keeps the log files of each pod.
const PODS: &str = "/var/log/pods";

/// The names of all pods (`namespace/pod`), by UID.
pub(crate) fn pods(root: &Root) -> BTreeMap<String, String> {
    let folders = root.unrecorded().list(PODS).unwrap_or_default();
    let pods = folders.iter().filter_map(|name| pod_folder(name));
    pods.map(|(uid, name)| (uid.to_owned(), name)).collect()
}

/// The names of the consumers' containers, by identifier. Containers that the kubelet does not know
/// have no entry.
pub(crate) fn names(root: &Root, consumption: &[Consumption]) -> BTreeMap<String, String> {
    let paths = consumption.iter().filter_map(|one| one.consumer.cgroup.as_deref());
    let wanted: BTreeSet<&str> =
        paths.filter_map(|path| Some(Container::from_path(path)?.id)).collect();
    names_of(root, &wanted)
}

/// The names of containers, by identifier.
pub(crate) fn names_of(root: &Root, wanted: &BTreeSet<&str>) -> BTreeMap<String, String> {
    if wanted.is_empty() {
        return BTreeMap::new();
    }
    // A host without a kubelet does not have this folder.
    let files = root.unrecorded().list(LOGS).unwrap_or_default();
    let names = files.iter().filter_map(|file| log_file(file));
    let names = names.filter(|(id, _)| wanted.contains(id));
    names.map(|(id, name)| (id.to_owned(), name)).collect()
}

#[cfg(test)]
mod tests {
    use netsilo_model::synthetic::scene::Scene;

    use super::*;

    #[test]
    fn only_containers_that_read_data_are_named() {
        let [ours, other] = ["a".repeat(64), "b".repeat(64)];
        let dir = tempfile::tempdir().unwrap();
        let logs = dir.path().join("var/log/containers");
        std::fs::create_dir_all(&logs).unwrap();
        for id in [&ours, &other] {
            std::fs::write(logs.join(format!("web-1_shop_nginx-{id}.log")), "").unwrap();
        }
        let scene =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../cases/virtio-all-on-cpu0/before.json");
        let scene: Scene = serde_json::from_str(&std::fs::read_to_string(scene).unwrap()).unwrap();
        let mut reads = scene.observation().attribution.consumption;
        let root = Root::at(dir.path()).unwrap();
        assert_eq!(names(&root, &reads), BTreeMap::new());
        reads[0].consumer.cgroup = Some(format!("/kubepods/pod1/{ours}"));
        assert_eq!(names(&root, &reads), [(ours, "shop/web-1/nginx".to_owned())].into());
        assert_eq!(names(&Root::at("/proc").unwrap(), &reads), BTreeMap::new());
    }
}
