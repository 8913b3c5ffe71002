//! The other network namespaces in the ledger of loss.

use std::collections::BTreeMap;

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::namespaces::{names, not_counted};
use netsilo_model::machine::reading::Reading;
use netsilo_model::snapshot::namespaces::Namespace;
use netsilo_model::snapshot::sockets::Holder;
use serde::{Deserialize, Serialize};

/// Another network namespace than netsilo's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NamespaceLine {
    /// Inode number.
    pub inode: u32,
    /// Its name in subjects and rows: that of the file and of the pod or container, else of the
    /// cgroup or process.
    pub name: String,
    /// The file that holds it; `null` if only processes do.
    pub mount: Option<String>,
    /// Number of processes in it, as far as they could be seen.
    pub processes: u32,
    /// The process in it with the lowest pid.
    pub process: Option<Holder>,
    /// The cgroup of this process.
    pub cgroup: Option<String>,
    /// The pod of this cgroup (`namespace/pod`), if the kubelet logs its name.
    pub pod: Option<String>,
    /// Packets lost in it in the interval, in all stages.
    pub lost: u64,
    /// How long ago its counters were read, in seconds; `null` if they were not.
    pub age_s: Option<f64>,
    /// Why its losses were not counted; absent: they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_counted: Option<String>,
}

/// All others, those that lost most first. `None` if they were not read. `lost`: packets lost in
/// each.
pub(crate) fn namespaces(
    analysis: &Analysis<'_>,
    lost: &BTreeMap<u32, u64>,
) -> Option<Vec<NamespaceLine>> {
    let after = analysis.after();
    let read = after.namespaces.as_ref()?;
    let mut names = names(after.namespaces.as_ref());
    let line = |it: &Namespace| NamespaceLine {
        inode: it.inode,
        name: names.remove(&it.inode).unwrap_or_default(),
        mount: it.mount.clone(),
        processes: it.processes,
        process: it.process.clone(),
        cgroup: it.cgroup.clone(),
        pod: it.pod.clone(),
        lost: lost.get(&it.inode).copied().unwrap_or(0),
        age_s: match &it.counters {
            Reading::Value(counters) => Some(after.at.saturating_sub(counters.at).as_secs_f64()),
            Reading::Absent(_) => None,
        },
        not_counted: not_counted(analysis.observation, it),
    };
    let mut lines: Vec<NamespaceLine> = read.all.iter().map(line).collect();
    lines.sort_by(|a, b| b.lost.cmp(&a.lost).then_with(|| a.name.cmp(&b.name)));
    Some(lines)
}
