//! What a pod says about interrupts and queues: annotations in a container's OCI `config.json`.
//!
//! CRI-O copies all annotations of the pod there, containerd those that `pod_annotations` of its
//! runtime lists. A key may name one container of the pod; that has precedence.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `disable`: no interrupts on the container's CPUs. `housekeeping`: only on its first CPU and
/// that CPU's siblings (`internal/runtimehandlerhooks/high_performance_hooks_linux.go`).
const CRI_O: &str = "irq-load-balancing.crio.io";

/// Interrupts that nri-plugins move to or from the container's CPUs
/// (`cmd/plugins/topology-aware/policy/irq-affinity.go`).
const NRI: &str = "irq-affinity.resource-policy.nri.io";

/// Allows the rx queues that the pod reads on its exclusive CPUs.
const CLAIM: &str = "netsilo.io/claims-queues";

/// Who the container is: namespace, pod and container, by CRI-O, then by containerd.
const NAMES: [[&str; 3]; 2] = [
    ["io.kubernetes.pod.namespace", "io.kubernetes.pod.name", "io.kubernetes.container.name"],
    [
        "io.kubernetes.cri.sandbox-namespace",
        "io.kubernetes.cri.sandbox-name",
        "io.kubernetes.cri.container-name",
    ],
];

/// The annotations of a container, as its `config.json` has them. All else in the file, such as
/// environment variables, is not read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodAnnotations {
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl PodAnnotations {
    /// Without annotations that netsilo does not know.
    pub fn known(mut self) -> Self {
        let is_known = |key: &str| {
            let base = key.split('/').next().unwrap_or(key);
            key == CLAIM || [CRI_O, NRI].contains(&base) || NAMES.as_flattened().contains(&key)
        };
        self.annotations.retain(|key, _| is_known(key));
        self
    }

    /// `namespace/pod/container`.
    pub fn name(&self) -> Option<String> {
        let name = |keys: &[&str; 3]| {
            let [namespace, pod, container] = keys.map(|key| self.annotations.get(key));
            Some(format!("{}/{}/{}", namespace?, pod?, container?))
        };
        NAMES.iter().find_map(name)
    }

    /// Whether the pod allows the rx queues that it reads on its exclusive CPUs.
    pub fn claims_queues(&self) -> bool {
        self.annotations.get(CLAIM).is_some_and(|value| value == "true")
    }

    /// Whether interrupts stay allowed on the container's first core.
    pub fn keeps_first_core(&self) -> bool {
        self.of_container(CRI_O, "").is_some_and(|(_, value)| value == "housekeeping")
    }

    /// What it says about interrupts on its CPUs: the key, of CRI-O with its value.
    pub fn about_interrupts(&self) -> Option<String> {
        let cri_o = self.of_container(CRI_O, "");
        // "true" is CRI-O's old word for it
        let cri_o = cri_o.filter(|it| ["disable", "housekeeping", "true"].contains(&it.1));
        let nri = || Some(self.of_container(NRI, "container.")?.0.to_owned());
        cri_o.map(|(key, value)| format!("{key}: {value}")).or_else(nri)
    }

    /// The annotation for this container, else for all of its pod.
    fn of_container(&self, key: &str, prefix: &str) -> Option<(&str, &str)> {
        let container = NAMES.iter().find_map(|keys| self.annotations.get(keys[2]));
        let own = container.map(|name| format!("{key}/{prefix}{name}")).into_iter();
        let mut keys = own.chain([format!("{key}/pod"), key.to_owned()]);
        let found = keys.find_map(|key| self.annotations.get_key_value(&key))?;
        Some((found.0, found.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(annotations: &[(&str, &str)]) -> PodAnnotations {
        let annotations: BTreeMap<&str, &str> = annotations.iter().copied().collect();
        let config = serde_json::json!({
            "process": { "env": ["PASSWORD=secret"] },
            "annotations": annotations,
        });
        serde_json::from_value::<PodAnnotations>(config).unwrap().known()
    }

    #[test]
    fn the_key_of_one_container_has_precedence_over_that_of_the_pod() {
        let web = ("io.kubernetes.container.name", "web");
        let of = |annotations: &[(&str, &str)]| {
            let read = words(annotations);
            (read.about_interrupts().unwrap_or_default(), read.keeps_first_core())
        };
        let table = [
            (vec![(CRI_O, "disable")], "irq-load-balancing.crio.io: disable", false),
            (vec![(CRI_O, "housekeeping")], "irq-load-balancing.crio.io: housekeeping", true),
            (vec![(CRI_O, "enable")], "", false),
            (
                vec![(CRI_O, "disable"), ("irq-load-balancing.crio.io/web", "housekeeping")],
                "irq-load-balancing.crio.io/web: housekeeping",
                true,
            ),
            (vec![("irq-load-balancing.crio.io/db", "disable")], "", false),
            (
                vec![("irq-affinity.resource-policy.nri.io/pod", "mask: ['*eth0*']")],
                "irq-affinity.resource-policy.nri.io/pod",
                false,
            ),
            (
                vec![("irq-affinity.resource-policy.nri.io/container.web", "claim: [40]")],
                "irq-affinity.resource-policy.nri.io/container.web",
                false,
            ),
        ];
        for (annotations, said, keeps) in table {
            let all: Vec<_> = annotations.into_iter().chain([web]).collect();
            assert_eq!(of(&all), (said.to_owned(), keeps), "{all:?}");
        }
    }

    #[test]
    fn names_are_those_of_cri_o_or_containerd_and_secrets_are_dropped() {
        let names = |keys: [&'static str; 3]| [(keys[0], "shop"), (keys[1], "w"), (keys[2], "web")];
        for keys in NAMES {
            assert_eq!(words(&names(keys)).name().as_deref(), Some("shop/w/web"));
        }
        assert_eq!(words(&names(NAMES[0])[1..]).name(), None);
        let read = words(&[(CLAIM, "true"), ("token", "secret")]);
        assert!(read.claims_queues() && !words(&[(CLAIM, "yes")]).claims_queues());
        let kept = serde_json::to_string(&read).unwrap();
        assert_eq!(kept, r#"{"annotations":{"netsilo.io/claims-queues":"true"}}"#);
        assert_eq!(
            serde_json::from_str::<PodAnnotations>("{}").unwrap(),
            PodAnnotations::default()
        );
    }
}
