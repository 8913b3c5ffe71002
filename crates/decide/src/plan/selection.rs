//! Selects the netdevs and CPUs that a goal covers, and refuses invalid ones before anything is
//! planned.

use netsilo_model::drivers::software::SoftwareNetdev;
use netsilo_model::machine::cpu_owner::CpuOwner;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::machine::topology::Topology;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::Netdev;

use crate::plan::contents::{Plan, Refusal, RefusalCause};
use crate::plan::goal::Goal;

/// Returns the netdevs that the goal names, or all that are up and have rx queues with interrupts
/// or kthreads, or where there are none and the goal sets RPS or RFS, all whose packets are on the
/// backlogs of the CPUs that send them; and the part of the plan that says which are missing.
pub(super) fn netdevs<'a>(snapshot: &'a Snapshot, goal: &Goal) -> (Vec<&'a Netdev>, Plan) {
    let mut part = Plan::default();
    if goal.netdevs.is_empty() {
        let up = || snapshot.netdevs.iter().filter(|netdev| netdev.up);
        let mut chosen: Vec<_> = up().filter(|netdev| placeable(netdev)).collect();
        let has_rps = goal.rps.as_ref().is_some_and(|cpus| !cpus.is_empty());
        if goal.rps.is_some() || goal.rfs.is_some() {
            let others = || up().filter(|netdev| SoftwareNetdev::is_on_backlogs(netdev));
            if chosen.is_empty() {
                // devices whose interrupts are not known, else backlogs
                let is_device = |netdev: &&Netdev| {
                    let mut queues = netdev.rx_queues.iter();
                    netdev.device_path.is_some() && queues.any(|queue| queue.rps_cpus.is_some())
                };
                chosen = up().filter(is_device).collect();
                if chosen.is_empty() {
                    chosen = others().collect();
                }
            } else if let Some(first) = others().next().filter(|_| has_rps || goal.rfs.is_some()) {
                let what = if has_rps { "RPS and RFS" } else { "RFS" };
                let (first, more) = (&first.name, others().count() - 1);
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                let reason = format!(
                    "{what} of netdevs without interrupts ({first}{more}) stay: name them to \
                     change them"
                );
                part.leave("netdevs", &reason);
            }
        }
        if chosen.is_empty() && (has_rps || goal.rfs.is_some_and(|entries| entries > 0)) {
            let why = "no netdev that is up has a queue or backlog for RPS and RFS; name a netdev";
            part.refuse("netdevs", RefusalCause::NoSuchNetdev, why.into());
        } else if chosen.is_empty() {
            part.leave("netdevs", "no netdev that is up has an rx queue with a known interrupt");
        }
        return (chosen, part);
    }
    let mut chosen: Vec<&Netdev> = Vec::new();
    for name in &goal.netdevs {
        match snapshot.netdevs.named(name) {
            Some(netdev) if chosen.iter().any(|other| other.ifindex == netdev.ifindex) => {}
            Some(netdev) => chosen.push(netdev),
            None => part.refusals.extend(missing(name, snapshot)),
        }
    }
    (chosen, part)
}

fn placeable(netdev: &Netdev) -> bool {
    netdev.rx_queues.iter().any(|queue| queue.irq.is_some())
        || netdev.napis.iter().any(|napi| napi.thread.is_some())
}

/// A refusal of a netdev that is not there; `None` if it is.
pub fn missing(name: &str, snapshot: &Snapshot) -> Option<Refusal> {
    let names: Vec<&str> = snapshot.netdevs.iter().map(|netdev| netdev.name.as_str()).collect();
    let why = match (nearest(name, &names), names.as_slice()) {
        _ if names.contains(&name) => return None,
        (Some(nearest), _) => {
            format!("no such netdev; did you mean {nearest}? known netdevs: {}", names.join(", "))
        }
        (None, []) => "no such netdev; this network namespace has none".into(),
        (None, _) => format!("no such netdev; known netdevs: {}", names.join(", ")),
    };
    Some(Refusal::new(name, RefusalCause::NoSuchNetdev, why))
}

/// The known word nearest to a mistyped one, at most two edits away; else the first that contains
/// it.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    const LEAST_PART: usize = 4;
    let by_edits = known.iter().map(|known| (strsim::levenshtein(word, known), *known));
    let near = by_edits.min().filter(|(edits, _)| *edits <= 2).map(|(_, known)| known);
    let whole = || known.iter().copied().find(|known| known.contains(word));
    near.or_else(|| if word.len() >= LEAST_PART { whole() } else { None })
}

/// Returns the CPUs that the goal may use, `None` if it names CPUs that it may not use; and the
/// part of the plan that says which are left out or refused.
pub(super) fn pool(topology: &Topology, goal: &Goal) -> (Option<CpuSet>, Plan) {
    let mut part = Plan::default();
    let Some(cpus) = &goal.cpus else {
        let cpus = topology.housekeeping().minus(&goal.exclude);
        leave_to_owners(topology, &mut part);
        let apart = topology.online.and(&topology.isolated_or_tickless());
        if !apart.is_empty() {
            let why = why_apart(topology, &apart);
            part.leave("cpus", &format!("{} {why}: nothing is placed there", cpus_are(&apart)));
        }
        if cpus.is_empty() {
            let reason = "all online cpus are isolated, tickless, exclusive to their owners or \
                          excluded; choose cpus with --cpus";
            part.refuse("cpus", RefusalCause::EmptyMask, reason.into());
        }
        return ((!cpus.is_empty()).then_some(cpus), part);
    };
    part.refuse_all(unusable(topology, "cpus", cpus));
    if !part.refusals.is_empty() {
        return (None, part);
    }
    let allowed = cpus.minus(&goal.exclude);
    if allowed.is_empty() {
        part.refuse("cpus", RefusalCause::EmptyMask, format!("all of {cpus} are excluded"));
    }
    ((!allowed.is_empty()).then_some(allowed), part)
}

/// Says which CPUs have owners, one owner a line.
fn leave_to_owners(topology: &Topology, part: &mut Plan) {
    const NAMED: usize = 8;
    let online = |owner: &CpuOwner| topology.online.and(&owner.cpus);
    let owners: Vec<&CpuOwner> =
        topology.cpu_owners.iter().filter(|it| !online(it).is_empty()).collect();
    let (named, others) = owners.split_at(owners.len().min(NAMED));
    let named = named.iter().map(|owner| (online(owner), owner.to_string()));
    let others = others.iter().map(|owner| online(owner)).reduce(|all, it| all.or(&it));
    let others = others.map(|cpus| (cpus, "other containers".to_owned()));
    for (cpus, owner) in named.chain(others) {
        let why = format!("exclusive to {owner}: nothing is placed there unless --cpus names them");
        part.leave("cpus", &format!("{} {why}", cpus_are(&cpus)));
    }
}

/// Why these CPUs may not be used for a knob.
pub(super) fn unusable(topology: &Topology, subject: &str, cpus: &CpuSet) -> Vec<Refusal> {
    if cpus.is_empty() {
        let reason = "the set of cpus is empty; the kernel refuses an empty set";
        return vec![Refusal::new(subject, RefusalCause::EmptyMask, reason.into())];
    }
    closed(topology, subject, cpus)
}

/// Refusals that name the CPUs that are not online or take no work.
pub(super) fn closed(topology: &Topology, subject: &str, cpus: &CpuSet) -> Vec<Refusal> {
    let mut refusals: Vec<Refusal> = offline(topology, subject, cpus).into_iter().collect();
    let apart = cpus.and(&topology.isolated_or_tickless());
    if !apart.is_empty() {
        let why = why_apart(topology, &apart);
        let reason = format!(
            "{} {why}: nothing may be placed there; allowed are {}",
            cpus_are(&apart),
            topology.housekeeping()
        );
        refusals.push(Refusal::new(subject, RefusalCause::IsolatedCpu, reason));
    }
    refusals
}

/// A refusal that names the CPUs that are not online.
pub(super) fn offline(topology: &Topology, subject: &str, cpus: &CpuSet) -> Option<Refusal> {
    let offline = cpus.minus(&topology.online);
    if offline.is_empty() {
        return None;
    }
    let possible = offline.minus(&topology.possible).is_empty();
    let what = if possible { "not online" } else { "not present" };
    let reason = format!("{} {what}; online are {}", cpus_are(&offline), topology.online);
    Some(Refusal::new(subject, RefusalCause::OfflineCpu, reason))
}

/// A refusal that names who else holds a queue.
pub(super) fn leased(holder: Option<&str>, subject: &str) -> Option<Refusal> {
    let reason = format!("in use by {}: end that use first", holder?);
    Some(Refusal::new(subject, RefusalCause::LeasedQueue, reason))
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
    fn the_nearest_name_has_the_fewest_edits_or_contains_the_word() {
        let known = ["eth0", "ens5", "lo", "backlog-overflow"];
        let nearest = ["ethO", "ens55", "backlog", "log", "wlan0"].map(|it| nearest(it, &known));
        assert_eq!(
            nearest,
            [Some("eth0"), Some("ens5"), Some("backlog-overflow"), Some("lo"), None]
        );
    }
}
