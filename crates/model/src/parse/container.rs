//! Pods and containers, as the paths of cgroups and the kubelet's log files name them.
//!
//! | path ends with | written by |
//! |---|---|
//! | `kubepods-burstable-podU_U.slice/cri-containerd-ID.scope` | kubelet with systemd's cgroups |
//! | `kubepods/burstable/podU-U/ID` | kubelet with cgroupfs |
//! | `crio-ID.scope`, `docker-ID.scope`, `libpod-ID.scope` | CRI-O, Docker, Podman |
//! | `kubepods-podU_U.slice:cri-containerd:ID` | containerd set to another driver than the kubelet |
//!
//! The container itself may have made more folders below.

/// A container, as a cgroup's path names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container<'a> {
    /// The runtime's identifier: 64 hexadecimal digits.
    pub id: &'a str,
    /// The UID of its pod, with dashes as in the API; `None` outside Kubernetes.
    pub pod_uid: Option<String>,
}

impl<'a> Container<'a> {
    /// Finds the innermost container in the path of a cgroup.
    pub fn from_path(path: &'a str) -> Option<Self> {
        let id = path.rsplit('/').find_map(id)?;
        Some(Self { id, pod_uid: path.rsplit('/').find_map(pod_uid) })
    }

    /// The container in a few words, if its name is not known.
    pub fn label(&self) -> String {
        let id = self.id.get(..12).unwrap_or(self.id);
        match &self.pod_uid {
            Some(uid) => format!("pod {uid} container {id}"),
            None => format!("container {id}"),
        }
    }
}

/// The container's identifier in one folder's name.
///
/// `crio-conmon-ID.scope` is the container's monitor, not the container.
pub fn id(folder: &str) -> Option<&str> {
    let name = folder.strip_suffix(".scope").unwrap_or(folder);
    let id = name.rsplit(['-', ':']).next()?;
    (is_id(id) && !name.contains("conmon-")).then_some(id)
}

fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The pod's UID in one folder's name. The UIDs of static pods have no dashes.
pub fn pod_uid(folder: &str) -> Option<String> {
    let slice = folder.split(':').next().unwrap_or(folder);
    let name = slice.strip_suffix(".slice").unwrap_or(slice);
    let (before, uid) = name.rsplit_once("pod")?;
    let digits = uid.bytes().filter(u8::is_ascii_hexdigit).count();
    let is_uid =
        digits == 32 && uid.bytes().all(|it| it.is_ascii_hexdigit() || b"-_".contains(&it));
    (is_uid && (before.is_empty() || before.ends_with('-'))).then(|| uid.replace('_', "-"))
}

/// The identifier and the name (`namespace/pod/container`) in the name of a file of
/// `/var/log/containers`, `POD_NAMESPACE_CONTAINER-ID.log`.
///
/// None of the three may contain an underscore (`pkg/kubelet/kuberuntime/legacy.go`).
pub fn log_file(name: &str) -> Option<(&str, String)> {
    let (names, id) = name.strip_suffix(".log")?.rsplit_once('-')?;
    let mut names = names.split('_');
    let (pod, namespace, container) = (names.next()?, names.next()?, names.next()?);
    (is_id(id) && names.next().is_none()).then(|| (id, format!("{namespace}/{pod}/{container}")))
}

/// The UID and the name (`namespace/pod`) in the name of a folder of `/var/log/pods`,
/// `NAMESPACE_POD_UID` (`pkg/kubelet/kuberuntime/helpers.go:BuildPodLogsDirectory`).
pub fn pod_folder(name: &str) -> Option<(&str, String)> {
    let mut names = name.split('_');
    let (namespace, pod, uid) = (names.next()?, names.next()?, names.next()?);
    names.next().is_none().then(|| (uid, format!("{namespace}/{pod}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f1c0d9e8b7a6f5e4d3c2b1a09f8e7d6c5b4a3928170695e4d3c2b1a09f8e7d6";
    const UID: &str = "0b8cf3a1-52d7-4c0e-9f6e-8a1d2c3b4e5f";

    #[test]
    fn a_container_is_found_in_the_path_of_each_runtime_and_driver() {
        let systemd = format!("pod{}.slice", UID.replace('-', "_"));
        let burstable =
            format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-{systemd}");
        let paths = [
            format!("{burstable}/cri-containerd-{ID}.scope"),
            format!("/kubepods.slice/kubepods-{systemd}/crio-{ID}.scope"),
            format!("/kubepods.slice/kubepods-{systemd}/crio-{ID}.scope/container"),
            format!("{burstable}/docker-{ID}.scope"),
            format!("/kubepods/burstable/pod{UID}/{ID}"),
            format!("/kubepods/pod{UID}/{ID}"),
            format!("/kubepods/pod{UID}/crio-{ID}"),
            format!("/system.slice/containerd.service/kubepods-{systemd}:cri-containerd:{ID}"),
            // systemd runs in the container
            format!("{burstable}/cri-containerd-{ID}.scope/system.slice/nginx.service"),
            // a reader in a separate cgroup namespace
            format!("/../../kubepods-burstable-{systemd}/cri-containerd-{ID}.scope"),
            // kind: a node that is itself a container
            format!(
                "/system.slice/docker-{}.scope/kubelet.slice/kubelet-kubepods.slice/\
                 kubelet-kubepods-{systemd}/cri-containerd-{ID}.scope",
                "a".repeat(64)
            ),
        ];
        for path in &paths {
            let found = Container::from_path(path);
            assert_eq!(found, Some(Container { id: ID, pod_uid: Some(UID.into()) }), "{path}");
        }
    }

    #[test]
    fn a_container_outside_kubernetes_has_no_pod() {
        let paths = [
            format!("/docker/{ID}"),
            format!("/system.slice/docker-{ID}.scope"),
            format!("/machine.slice/libpod-{ID}.scope/container"),
            format!("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope"),
        ];
        for path in &paths {
            let found = Container::from_path(path).unwrap();
            assert_eq!((found.id, &found.pod_uid), (ID, &None), "{path}");
            assert_eq!(found.label(), "container 3f1c0d9e8b7a");
        }
    }

    #[test]
    fn services_sessions_and_monitors_are_no_containers() {
        for path in [
            "/system.slice/nginx.service".into(),
            "/user.slice/user-1000.slice/session-3.scope".into(),
            "/kubepods.slice/kubepods-burstable.slice".into(),
            "/".into(),
            format!("/system.slice/crio-conmon-{ID}.scope"),
            format!("/machine.slice/libpod-conmon-{ID}.scope"),
            format!("/system.slice/docker-{}.scope", &ID[1..]),
            format!("/system.slice/docker-{}.scope", ID.replace('3', "x")),
        ] {
            assert_eq!(Container::from_path(&path), None, "{path}");
        }
    }

    #[test]
    fn a_static_pod_has_a_uid_without_dashes_and_podman_is_no_pod() {
        let uid = "0123456789abcdef0123456789abcdef";
        assert_eq!(pod_uid(&format!("kubepods-pod{uid}.slice")).as_deref(), Some(uid));
        assert_eq!(pod_uid("kubepods.slice"), None);
        assert_eq!(pod_uid(&format!("tripod{uid}")), None);
    }

    #[test]
    fn the_kubelets_folder_names_the_pod() {
        let name = format!("shop_web-7d4b9_{UID}");
        assert_eq!(pod_folder(&name), Some((UID, "shop/web-7d4b9".into())));
        assert_eq!([pod_folder("shop_web"), pod_folder("a_b_c_d")], [None, None]);
    }

    #[test]
    fn the_kubelets_log_file_names_the_container() {
        let name = format!("web-7d4b9_shop_nginx-edge-{ID}.log");
        assert_eq!(log_file(&name), Some((ID, "shop/web-7d4b9/nginx-edge".into())));
        for bad in [format!("web_shop-{ID}.log"), format!("a_b_c_d-{ID}.log"), "a_b_c-1.log".into()]
        {
            assert_eq!(log_file(&bad), None, "{bad}");
        }
    }
}
