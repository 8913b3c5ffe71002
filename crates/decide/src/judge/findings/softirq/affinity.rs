//! Findings on interrupts outside their requested affinity, queues that share a core, and receive
//! work on reserved CPUs.

use std::collections::BTreeMap;

use netsilo_model::change::Change;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::silo::Silo;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_model::snapshot::subject::Subject;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::cpu_work::CpuWork;
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;
use crate::judge::findings::judged::Judged;
use crate::judge::findings::relief::own;
use crate::judge::verdict::percent;
use crate::plan::moves::{kept, moves_one_of};

/// Below this many interrupts per second nothing is concluded, because a moved interrupt changes
/// its CPU only when it next occurs.
pub(super) const OFTEN_PER_S: f64 = 10.0;
/// Below this share of an interrupt, some arrived elsewhere by chance.
const STRAY: f64 = 0.01;
/// Below this share of a CPU's time, queues on one core do not disturb each other.
const CROWDED: f64 = 0.2;

pub(super) fn find(judged: &Judged<'_>, load: &[CpuWork<'_>]) -> Vec<Finding> {
    let analysis = judged.analysis;
    let mut findings: Vec<Finding> =
        analysis.silos.queues.iter().filter_map(|silo| elsewhere(analysis, silo)).collect();
    findings.extend(analysis.after().netdevs.iter().filter_map(contradicted));
    findings.extend(crowded(judged, load));
    findings.extend(load.iter().filter_map(|it| reserved(judged, it)));
    findings
}

/// A queue's interrupt arrives on CPUs outside the affinity that was requested in both snapshots.
fn elsewhere(analysis: &Analysis<'_>, silo: &Silo) -> Option<Finding> {
    let irq = silo.irq.as_ref()?.to;
    let requested = silo.requested.as_ref().filter(|cpus| !cpus.is_empty())?;
    let before = analysis.observation.before.irqs.get(&irq)?.requested.as_ref();
    let online = requested.and(&analysis.observation.after.topology.online);
    if before != Some(requested) || online.is_empty() {
        return None;
    }
    let by_cpu = silo.interrupts_per_s.as_ref()?;
    let outside: BTreeMap<_, _> = by_cpu
        .iter()
        .filter(|(cpu, rate)| !requested.contains(**cpu) && **rate >= OFTEN_PER_S)
        .collect();
    let all: f64 = by_cpu.values().sum();
    let is_stray = outside.values().copied().sum::<f64>() < STRAY * all;
    if outside.is_empty() || is_stray {
        return None;
    }
    let cpus: CpuSet = outside.keys().map(|cpu| **cpu).collect();
    let mut evidence = vec![
        Evidence::new(
            "requested cpus",
            Measure::Text(requested.to_string()),
            format!("/proc/irq/{irq}/smp_affinity_list"),
        ),
        Evidence::new(
            "effective cpus",
            Measure::Text(
                silo.effective.as_ref().map_or_else(|| "not known".into(), CpuSet::to_string),
            ),
            format!("/proc/irq/{irq}/effective_affinity_list"),
        ),
    ];
    evidence.extend(outside.iter().map(|(cpu, rate)| {
        Evidence::new(
            format!("interrupts on cpu {cpu}"),
            Measure::PerSecond(**rate),
            "/proc/interrupts",
        )
    }));
    Some(Finding {
        id: FindingId::IrqNotWhereAsked,
        severity: Severity::Warning,
        subject: silo.subject(),
        title: format!("its irq {irq} is requested on {requested} but arrives on {cpus}"),
        evidence,
        remedies: vec![Remedy {
            what: if silo.ignores_affinity {
                "leave it where it arrives: its interrupt controller accepts an affinity and \
                 ignores it. RPS can move the protocol work, threaded NAPI the polls"
                    .into()
            } else {
                "write its affinity again; check for free vectors (ENOSPC) and for programs that \
                 move it"
                    .into()
            },
            gain: Gain::Unknown(
                "the cost of the wrong cpu depends on where the data is read".into(),
            ),
            cost: None,
            not_when: None,
            changes: Vec::new(),
            interrupts_traffic: false,
        }],
    })
}

/// Sources of the interrupts of a netdev's queues contradict each other.
fn contradicted(netdev: &Netdev) -> Option<Finding> {
    let evidence: Vec<Evidence> = netdev
        .rx_queues
        .iter()
        .filter_map(|queue| Some((queue, queue.irq.as_ref()?, queue.irq_conflicts.first()?)))
        .map(|(queue, used, told)| {
            let text = format!("irq {}, not {}", used.to, told.to);
            let source =
                format!("{}; of the other: {}", used.source.in_words(), told.source.in_words());
            Evidence::new(format!("rx-{}", queue.index), Measure::Text(text), source)
        })
        .collect();
    (!evidence.is_empty()).then(|| Finding {
        id: FindingId::IrqMapDisagrees,
        severity: Severity::Info,
        subject: Subject::Netdev(netdev.name.clone()),
        title: format!(
            "two sources name different interrupts for {} of its {} rx queues",
            evidence.len(),
            netdev.rx_queues.len()
        ),
        evidence,
        remedies: Vec::new(),
    })
}

/// Several busy queues on one core while other cores are idle.
fn crowded(judged: &Judged<'_>, load: &[CpuWork<'_>]) -> Vec<Finding> {
    let topology = &judged.analysis.observation.after.topology;
    let apart = topology.reserved();
    let mut cores: BTreeMap<String, (CpuSet, Vec<&CpuWork<'_>>)> = BTreeMap::new();
    for it in load {
        let core = topology.core_of(it.cpu).and(&topology.online);
        cores.entry(core.to_string()).or_insert_with(|| (core, Vec::new())).1.push(it);
    }
    let is_free = |members: &[&CpuWork<'_>]| {
        members.iter().all(|it| it.queues.is_empty() && it.has_room() && !apart.contains(it.cpu))
    };
    let free: Vec<&CpuSet> =
        cores.values().filter(|(_, members)| is_free(members)).map(|(core, _)| core).collect();
    if free.is_empty() {
        return Vec::new();
    }
    let crowd = |(core, members): &(CpuSet, Vec<&CpuWork<'_>>)| {
        let queues: Vec<&Silo> = members.iter().flat_map(|it| it.busy_queues()).collect();
        let taken: f64 = members.iter().map(|it| it.receiving()).sum();
        (queues.len() >= 2 && taken >= CROWDED)
            .then(|| crowd(judged, core, members, &queues, taken, free.len()))
    };
    cores.values().filter_map(crowd).collect()
}

fn crowd(
    judged: &Judged<'_>,
    core: &CpuSet,
    members: &[&CpuWork<'_>],
    queues: &[&Silo],
    taken: f64,
    free: usize,
) -> Finding {
    let changes: Vec<Change> =
        judged.plan.changes.iter().filter(|change| moves_one_of(change, queues)).cloned().collect();
    let all_default = queues
        .iter()
        .all(|silo| silo.requested == judged.analysis.observation.after.default_smp_affinity);
    let mut evidence: Vec<Evidence> =
        members.iter().flat_map(|it| it.busy_queues().map(|silo| own(silo, it.cpu))).collect();
    evidence.push(Evidence::new(
        "in softirqs and interrupts, as a share of one cpu",
        Measure::Share(taken),
        "as measured, else /proc/stat",
    ));
    evidence.push(Evidence::new(
        "idle cores that poll nothing",
        Measure::Count(free as u64),
        "/proc/stat",
    ));
    if all_default {
        evidence.push(Evidence::new(
            "requested affinity",
            Measure::Text("default_smp_affinity for all of them".into()),
            "/proc/irq/default_smp_affinity",
        ));
    }
    let (severity, what, gain) = if changes.is_empty() {
        (
            Severity::Info,
            "leave the queues where they are".to_owned(),
            Gain::Nothing(kept(&judged.plan, queues)),
        )
    } else {
        let gain =
            judged.look.gain(&changes, &format!("they take {} of a cpu's time", percent(taken)));
        (Severity::Warning, "spread the queues as netsilo plan proposes".to_owned(), gain)
    };
    Finding {
        id: FindingId::QueuesShareCore,
        severity,
        subject: Subject::Cpu(core.lowest().unwrap_or_default()),
        title: format!(
            "{} busy queues are polled on core {core}, while {free} cores poll none",
            queues.len()
        ),
        evidence,
        remedies: vec![Remedy {
            what,
            gain,
            cost: None,
            not_when: Some("the queues' readers run on this core, and the load is light".into()),
            changes,
            interrupts_traffic: false,
        }],
    }
}

/// Receive work on a CPU that is isolated, tickless or exclusive to a container.
fn reserved(judged: &Judged<'_>, load: &CpuWork<'_>) -> Option<Finding> {
    let topology = &judged.analysis.observation.after.topology;
    let mut queues = load.queues.clone();
    let owner = topology.cpu_owners.iter().find(|owner| owner.cpus.contains(load.cpu));
    let (what, source) = if topology.isolated.contains(load.cpu) {
        ("isolated".into(), "/sys/devices/system/cpu/isolated")
    } else if topology.isolated_partitions.contains(load.cpu) {
        ("isolated by a cpuset partition".into(), "cpuset.cpus.partition of cgroups")
    } else if topology.nohz_full.contains(load.cpu) {
        ("tickless (nohz_full)".into(), "/sys/devices/system/cpu/nohz_full")
    } else {
        queues.retain(|silo| silo.claimed_by(topology).is_none_or(|it| Some(it) != owner));
        (format!("exclusive to {}", owner?), "cpusets of cgroups, config.json of containers")
    };
    if queues.is_empty() {
        return None;
    }
    let changes: Vec<Change> = judged
        .plan
        .changes
        .iter()
        .filter(|change| moves_one_of(change, &queues))
        .cloned()
        .collect();
    let labels: Vec<String> = queues.iter().map(|silo| silo.label()).collect();
    let mut evidence: Vec<Evidence> = queues.iter().map(|silo| own(silo, load.cpu)).collect();
    evidence.push(Evidence::new("cpu type", Measure::Text(what.clone()), source));
    evidence.extend(load.evidence());
    Some(Finding {
        id: FindingId::ReceiveOnIsolatedCpu,
        severity: Severity::Warning,
        subject: load.subject(),
        title: format!("this cpu is {what}, but polls {}", labels.join(", ")),
        evidence,
        remedies: vec![Remedy {
            what: "move the queues to cpus that are not reserved".into(),
            gain: if changes.is_empty() {
                Gain::Nothing(kept(&judged.plan, &queues))
            } else {
                let taken = percent(load.receiving());
                judged.look.gain(&changes, &format!("they take {taken} of cpu {}'s time", load.cpu))
            },
            cost: None,
            not_when: Some(
                "a thread on this cpu reads these queues, and no other cpu may process them".into(),
            ),
            changes,
            interrupts_traffic: false,
        }],
    })
}
