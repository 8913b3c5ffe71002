//! Selects the netdevs and CPUs that a goal covers, and refuses invalid ones before anything is
//! planned.

use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::machine::topology::Topology;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::Netdev;

use crate::plan::contents::{Plan, RefusalCause};
use crate::plan::goal::Goal;

/// Returns the netdevs that the goal names, or all that are up and have rx queues with interrupts
/// or kthreads.
pub(super) fn netdevs<'a>(snapshot: &'a Snapshot, goal: &Goal, plan: &mut Plan) -> Vec<&'a Netdev> {
    if goal.netdevs.is_empty() {
        let chosen: Vec<_> =
            snapshot.netdevs.iter().filter(|netdev| netdev.up && placeable(netdev)).collect();
        if chosen.is_empty() {
            plan.leave("netdevs", "no netdev that is up has an rx queue with a known interrupt");
        }
        return chosen;
    }
    let mut chosen: Vec<&Netdev> = Vec::new();
    for name in &goal.netdevs {
        match snapshot.netdevs.iter().find(|netdev| netdev.name == *name) {
            Some(netdev) if chosen.iter().any(|other| other.ifindex == netdev.ifindex) => {}
            Some(netdev) => chosen.push(netdev),
            None => plan.refuse(name, RefusalCause::NoSuchNetdev, no_such_netdev(name, snapshot)),
        }
    }
    chosen
}

fn placeable(netdev: &Netdev) -> bool {
    netdev.rx_queues.iter().any(|queue| queue.irq.is_some())
        || netdev.napis.iter().any(|napi| napi.thread.is_some())
}

fn no_such_netdev(name: &str, snapshot: &Snapshot) -> String {
    let names: Vec<&str> = snapshot.netdevs.iter().map(|netdev| netdev.name.as_str()).collect();
    match (nearest(name, &names), names.as_slice()) {
        (Some(nearest), _) => {
            format!("no such netdev; did you mean {nearest}? known netdevs: {}", names.join(", "))
        }
        (None, []) => "no such netdev; this network namespace has none".into(),
        (None, _) => format!("no such netdev; known netdevs: {}", names.join(", ")),
    }
}

/// The known word nearest to a mistyped one, at most two edits away.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let by_edits = known.iter().map(|known| (edits(word, known), *known));
    by_edits.min().filter(|(edits, _)| *edits <= 2).map(|(_, known)| known)
}

/// Levenshtein distance: insertions, deletions and substitutions.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// Returns the CPUs that the goal may use; `None`, with refusals, if it names CPUs that it may not
/// use.
pub(super) fn pool(topology: &Topology, goal: &Goal, plan: &mut Plan) -> Option<CpuSet> {
    let Some(cpus) = &goal.cpus else {
        let cpus = topology.housekeeping().minus(&goal.exclude);
        let exclusive = topology.online.and(&topology.exclusive);
        if !exclusive.is_empty() {
            let why = "exclusive to containers: nothing is placed there unless --cpus names them";
            plan.leave("cpus", &format!("{} {why}", cpus_are(&exclusive)));
        }
        let apart = topology.online.and(&topology.isolated_or_tickless());
        if !apart.is_empty() {
            plan.leave(
                "cpus",
                &format!(
                    "{} {}: nothing is placed there",
                    cpus_are(&apart),
                    why_apart(topology, &apart)
                ),
            );
        }
        if cpus.is_empty() {
            plan.refuse(
                "cpus",
                RefusalCause::EmptyMask,
                "all online cpus are isolated, tickless, exclusive to containers or excluded; \
                 choose cpus with --cpus"
                    .into(),
            );
        }
        return (!cpus.is_empty()).then_some(cpus);
    };
    if !usable(topology, "cpus", cpus, plan) {
        return None;
    }
    let allowed = cpus.minus(&goal.exclude);
    if allowed.is_empty() {
        plan.refuse("cpus", RefusalCause::EmptyMask, format!("all of {cpus} are excluded"));
    }
    (!allowed.is_empty()).then_some(allowed)
}

/// Whether these CPUs may be used for a knob; adds refusals with the reasons if not.
pub(super) fn usable(topology: &Topology, subject: &str, cpus: &CpuSet, plan: &mut Plan) -> bool {
    if cpus.is_empty() {
        plan.refuse(
            subject,
            RefusalCause::EmptyMask,
            "the set of cpus is empty; the kernel refuses an empty set".into(),
        );
        return false;
    }
    all_open(topology, subject, cpus, plan)
}

/// Whether all CPUs are online and take work; adds refusals that name the others.
pub(super) fn all_open(topology: &Topology, subject: &str, cpus: &CpuSet, plan: &mut Plan) -> bool {
    let online = all_online(topology, subject, cpus, plan);
    let apart = cpus.and(&topology.isolated_or_tickless());
    if !apart.is_empty() {
        let why = why_apart(topology, &apart);
        let reason = format!(
            "{} {why}: nothing may be placed there; allowed are {}",
            cpus_are(&apart),
            topology.housekeeping()
        );
        plan.refuse(subject, RefusalCause::IsolatedCpu, reason);
    }
    online && apart.is_empty()
}

/// Whether all CPUs are online; adds a refusal that names the others.
pub(super) fn all_online(
    topology: &Topology,
    subject: &str,
    cpus: &CpuSet,
    plan: &mut Plan,
) -> bool {
    let offline = cpus.minus(&topology.online);
    if !offline.is_empty() {
        let possible = offline.minus(&topology.possible).is_empty();
        let what = if possible { "not online" } else { "not present" };
        plan.refuse(
            subject,
            RefusalCause::OfflineCpu,
            format!("{} {what}; online are {}", cpus_are(&offline), topology.online),
        );
    }
    offline.is_empty()
}

/// Whether no one else holds a queue; adds a refusal that names the holder.
pub(super) fn unless_leased(holder: Option<&str>, subject: &str, plan: &mut Plan) -> bool {
    if let Some(holder) = holder {
        let reason = format!("in use by {holder}: end that use first");
        plan.refuse(subject, RefusalCause::LeasedQueue, reason);
    }
    holder.is_none()
}

/// `cpu 3 is`, `cpus 3-5 are`.
pub(super) fn cpus_are(cpus: &CpuSet) -> String {
    if cpus.len() == 1 { format!("cpu {cpus} is") } else { format!("cpus {cpus} are") }
}

/// `isolated`, `tickless` or both.
pub(super) fn why_apart(topology: &Topology, cpus: &CpuSet) -> &'static str {
    let isolated = topology.isolated.or(&topology.isolated_partitions);
    match (cpus.intersects(&isolated), cpus.intersects(&topology.nohz_full)) {
        (true, true) => "isolated or tickless (nohz_full)",
        (false, true) => "tickless (nohz_full)",
        _ => "isolated",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_the_one_with_fewest_edits() {
        assert_eq!(
            [edits("eth0", "eth0"), edits("ethO", "eth0"), edits("ens5", "eth0"), edits("", "lo")],
            [0, 1, 3, 2]
        );
    }
}
