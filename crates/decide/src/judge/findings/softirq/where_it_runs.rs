//! Interrupts that come elsewhere than asked, queues that crowd one core, receive work on CPUs set
//! apart.

use std::collections::BTreeMap;

use netsilo_model::change::Change;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::silo::Silo;
use netsilo_model::machine::cpuset::CpuSet;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::softirq::{Load, moves_one_of, own, plan_for};
use crate::judge::findings::{Finding, FindingId, Severity};

/// An interrupt that comes less often proves nothing: it may not have come since it was moved.
const OFTEN_PER_S: f64 = 10.0;
/// Queues that take less of a core do not disturb each other.
const CROWDED: f64 = 0.2;

pub(super) fn find(seen: &Analysis<'_>, load: &[Load<'_>]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = seen.silos.queues.iter().filter_map(|silo| elsewhere(seen, silo)).collect();
    findings.extend(crowded(seen, load));
    findings.extend(load.iter().filter_map(|it| set_apart(seen, it)));
    findings
}

/// The interrupt of a queue comes on CPUs that nobody asked for, by both looks.
fn elsewhere(seen: &Analysis<'_>, silo: &Silo) -> Option<Finding> {
    let irq = silo.irq.as_ref()?.to;
    let requested = silo.requested.as_ref().filter(|cpus| !cpus.is_empty())?;
    let before = seen.observation.before.irqs.get(&irq)?.requested.as_ref();
    let online = requested.and(&seen.observation.after.topology.online);
    if before != Some(requested) || online.is_empty() {
        return None;
    }
    let came = silo.interrupts_per_s.as_ref()?;
    let outside: BTreeMap<_, _> = came.iter().filter(|(cpu, rate)| !requested.contains(**cpu) && **rate >= OFTEN_PER_S).collect();
    if outside.is_empty() {
        return None;
    }
    let cpus: CpuSet = outside.keys().map(|cpu| **cpu).collect();
    let mut evidence = vec![
        Evidence::new("asked for on", Measure::Text(requested.to_string()), format!("/proc/irq/{irq}/smp_affinity_list")),
        Evidence::new(
            "in force on",
            Measure::Text(silo.effective.as_ref().map_or_else(|| "not known".into(), CpuSet::to_string)),
            format!("/proc/irq/{irq}/effective_affinity_list"),
        ),
    ];
    evidence.extend(outside.iter().map(|(cpu, rate)| {
        Evidence::new(format!("interrupts on cpu {cpu}"), Measure::PerSecond(**rate), "/proc/interrupts")
    }));
    Some(Finding {
        id: FindingId::IrqNotWhereAsked,
        severity: Severity::Warning,
        subject: silo.label(),
        title: format!("its irq {irq} is asked for on {requested} and comes on {cpus}"),
        evidence,
        remedies: vec![Remedy {
            what: "write its affinity again, and look for free vectors (ENOSPC) and for who moves it; an interrupt controller \
                   that cannot be directed ignores all of it"
                .into(),
            gain: Gain::Unknown("what the wrong place costs depends on who reads there".into()),
            cost: None,
            not_when: None,
            changes: Vec::new(),
            interrupts_traffic: false,
        }],
    })
}

/// Several busy queues on one core, while other cores idle.
fn crowded(seen: &Analysis<'_>, load: &[Load<'_>]) -> Vec<Finding> {
    let topology = &seen.observation.after.topology;
    let apart = topology.isolated.or(&topology.nohz_full);
    let mut cores: BTreeMap<String, (CpuSet, Vec<&Load<'_>>)> = BTreeMap::new();
    for it in load {
        let core = topology.core_of(it.cpu).and(&topology.online);
        cores.entry(core.to_string()).or_insert_with(|| (core, Vec::new())).1.push(it);
    }
    let is_free = |members: &[&Load<'_>]| {
        members.iter().all(|it| it.queues.is_empty() && it.has_room() && !apart.contains(it.cpu))
    };
    let free: Vec<&CpuSet> = cores.values().filter(|(_, members)| is_free(members)).map(|(core, _)| core).collect();
    if free.is_empty() {
        return Vec::new();
    }
    let crowd = |(core, members): &(CpuSet, Vec<&Load<'_>>)| {
        let queues: Vec<&Silo> = members.iter().flat_map(|it| it.queues.iter().copied()).collect();
        let taken: f64 = members.iter().map(|it| it.receiving()).sum();
        (queues.len() >= 2 && taken >= CROWDED).then(|| crowd(seen, core, members, &queues, taken, free.len()))
    };
    cores.values().filter_map(crowd).collect()
}

fn crowd(
    seen: &Analysis<'_>,
    core: &CpuSet,
    members: &[&Load<'_>],
    queues: &[&Silo],
    taken: f64,
    free: usize,
) -> Finding {
    let mut netdevs: Vec<String> = queues.iter().map(|silo| silo.netdev.name.clone()).collect();
    netdevs.dedup();
    let plan = plan_for(seen, netdevs);
    let changes: Vec<Change> = plan.changes.into_iter().filter(|change| moves_one_of(change, queues)).collect();
    let nobody_asked = queues.iter().all(|silo| silo.requested == seen.observation.after.default_smp_affinity);
    let mut evidence: Vec<Evidence> =
        members.iter().flat_map(|it| it.queues.iter().map(|silo| own(silo, it.cpu))).collect();
    evidence.push(Evidence::new("in softirqs and interrupts, of one cpu", Measure::Share(taken), "as measured, else /proc/stat"));
    evidence.push(Evidence::new("cores that idle and poll nothing", Measure::Count(free as u64), "/proc/stat"));
    if nobody_asked {
        evidence.push(Evidence::new(
            "asked for",
            Measure::Text("nothing: all of them have default_smp_affinity".into()),
            "/proc/irq/default_smp_affinity",
        ));
    }
    // One queue has to stay: of the others it is not known which until they are placed.
    let shares = queues.iter().map(|silo| members.iter().filter_map(|it| silo.own_share.get(&it.cpu)).sum::<f64>());
    let least = shares.fold(f64::INFINITY, f64::min);
    let gain = match changes.is_empty() {
        true => Gain::Nothing("placement finds no better place for them: netsilo plan says why".into()),
        false => Gain::AtMost {
            measure: Measure::Share((taken - least).max(0.0)),
            of: format!("core {core}'s time"),
            basis: "what all but the least of its queues take there".into(),
        },
    };
    Finding {
        id: FindingId::QueuesShareCore,
        severity: Severity::Warning,
        subject: format!("cpu{}", core.lowest().unwrap_or_default()),
        title: format!("{} busy queues are polled on core {core}, while {free} cores poll none", queues.len()),
        evidence,
        remedies: vec![Remedy {
            what: "spread them as netsilo plan says".into(),
            gain,
            cost: None,
            not_when: Some("their readers run on this core, and the load is light".into()),
            changes,
            interrupts_traffic: false,
        }],
    }
}

/// Receive work on a CPU that was set apart from such work.
fn set_apart(seen: &Analysis<'_>, load: &Load<'_>) -> Option<Finding> {
    let topology = &seen.observation.after.topology;
    let what = match (topology.isolated.contains(load.cpu), topology.nohz_full.contains(load.cpu)) {
        (true, _) => "isolated",
        (_, true) => "tickless (nohz_full)",
        _ => return None,
    };
    if load.queues.is_empty() {
        return None;
    }
    let plan = plan_for(seen, load.netdevs());
    let changes: Vec<Change> = plan.changes.into_iter().filter(|change| moves_one_of(change, &load.queues)).collect();
    let labels: Vec<String> = load.queues.iter().map(|silo| silo.label()).collect();
    let mut evidence: Vec<Evidence> = load.queues.iter().map(|silo| own(silo, load.cpu)).collect();
    evidence.push(Evidence::new(
        "set apart",
        Measure::Text(what.into()),
        if what == "isolated" { "/sys/devices/system/cpu/isolated" } else { "/sys/devices/system/cpu/nohz_full" },
    ));
    evidence.extend(load.evidence());
    let interrupted = load.receiving();
    Some(Finding {
        id: FindingId::ReceiveOnIsolatedCpu,
        severity: Severity::Warning,
        subject: load.subject(),
        title: format!("it is {what}, and polls {}", labels.join(", ")),
        evidence,
        remedies: vec![Remedy {
            what: "move them to cpus that are not set apart".into(),
            gain: match changes.is_empty() {
                true => Gain::Nothing("placement finds no other place for them: netsilo plan says why".into()),
                false => Gain::AtMost {
                    measure: Measure::Share(interrupted),
                    of: format!("cpu {}'s time", load.cpu),
                    basis: "all of its softirq and interrupt time".into(),
                },
            },
            cost: None,
            not_when: Some("its own thread reads these queues, and nothing else may touch them".into()),
            changes,
            interrupts_traffic: false,
        }],
    })
}
