//! Which CPUs softirqs hold, and whether the work is where it was meant to be.

mod steering;
mod where_it_runs;

use std::collections::BTreeSet;

use super::{Evidence, Finding, FindingId, Gain, Measure, Remedy, Seen, Severity};
use crate::change::{Change, Target};
use crate::cpu_split::{CpuSplit, DIFFERS};
use crate::cpuset::{CpuId, CpuSet};
use crate::plan::{Goal, Plan, plan_of};
use crate::silo::Silo;
use crate::why::ksoftirqd;

/// From this share of its time in softirqs and interrupts on, a CPU does little else.
const HELD: f64 = 0.6;
/// A CPU that idles less has no room.
pub(super) const FULL: f64 = 0.05;
/// A CPU that idles more has room for others' work.
const IDLE: f64 = 0.5;
/// ksoftirqd that runs more, or waits more, delays packets noticeably.
const KSOFTIRQD: f64 = 0.1;
/// IPIs that take more are worth a word.
const IPIS: f64 = 0.05;

/// All of the family.
pub(super) fn find(seen: &Seen<'_>) -> Vec<Finding> {
    let load: Vec<Load<'_>> = seen.observation.after.topology.online.iter().map(|cpu| Load::of(seen, cpu)).collect();
    let mut findings: Vec<Finding> = load.iter().filter_map(|it| held(seen, it, &load)).collect();
    if findings.is_empty() {
        findings.extend(calm(&load));
    }
    findings.extend(load.iter().filter_map(|it| late(seen, it)));
    findings.extend(where_it_runs::find(seen, &load));
    findings.extend(steering::find(seen));
    findings.extend(load.iter().filter_map(|it| by_ipis(seen, it)));
    findings.extend(load.iter().filter_map(misread));
    findings
}

/// What one CPU does.
pub(super) struct Load<'a> {
    cpu: CpuId,
    split: CpuSplit,
    /// Queues polled there.
    queues: Vec<&'a Silo>,
}

impl<'a> Load<'a> {
    pub(super) fn of(seen: &Seen<'a>, cpu: CpuId) -> Self {
        let polled = |silo: &&Silo| {
            let interrupted = || silo.interrupts_per_s.as_ref().is_some_and(|rates| rates.contains_key(&cpu));
            silo.polls.get(&cpu).is_some_and(|rate| rate.packets_per_s > 0.0)
                || (silo.packets_per_s.is_none() && interrupted())
        };
        let queues = seen.silos.queues.iter().filter(polled).collect();
        Self { cpu, split: CpuSplit::of(seen.observation, seen.rates, cpu), queues }
    }

    pub(super) fn subject(&self) -> String {
        format!("cpu{}", self.cpu)
    }

    /// Names of the netdevs whose queues are polled there.
    pub(super) fn netdevs(&self) -> Vec<String> {
        let names: BTreeSet<&str> = self.queues.iter().map(|silo| silo.netdev.name.as_str()).collect();
        names.into_iter().map(str::to_owned).collect()
    }

    /// Softirqs, interrupts, and what NAPI kthreads take here.
    fn receiving(&self) -> f64 {
        let threads = self.queues.iter().filter(|silo| silo.kthread.is_some());
        let threads: f64 = threads.filter_map(|silo| silo.own_share.get(&self.cpu)).sum();
        (self.split.interrupted().unwrap_or(0.0) + threads).min(1.0)
    }

    pub(super) fn idle(&self) -> Option<f64> {
        self.split.idle
    }

    pub(super) fn is_full(&self) -> bool {
        self.idle().is_some_and(|idle| idle <= FULL)
    }

    fn has_room(&self) -> bool {
        self.idle().is_some_and(|idle| idle >= IDLE)
    }

    /// How its time went.
    pub(super) fn evidence(&self) -> Vec<Evidence> {
        let mut evidence = Vec::new();
        match (self.split.measured, self.split.ticks) {
            (Some(it), _) => {
                evidence.push(Evidence::new("in softirqs", Measure::Share(it.softirq()), "irq:softirq_entry/exit"));
                evidence.push(Evidence::new("in device interrupts", Measure::Share(it.hardirq), "irq:irq_handler_entry/exit"));
            }
            (None, Some(ticks)) => {
                let share = Measure::Share(ticks.softirq + ticks.irq);
                evidence.push(Evidence::new("in softirqs and interrupts, sampled", share, "/proc/stat"));
            }
            (None, None) => {}
        }
        evidence.extend(self.idle().map(|idle| Evidence::new("idle", Measure::Share(idle), "/proc/stat")));
        evidence
    }
}

/// One CPU held by receive work, while others idle.
fn held(seen: &Seen<'_>, load: &Load<'_>, all: &[Load<'_>]) -> Option<Finding> {
    let topology = &seen.observation.after.topology;
    let apart = topology.isolated.or(&topology.nohz_full);
    let room: CpuSet =
        all.iter().filter(|it| it.cpu != load.cpu && it.has_room() && !apart.contains(it.cpu)).map(|it| it.cpu).collect();
    if load.receiving() < HELD || room.is_empty() {
        return None;
    }
    let mut evidence = load.evidence();
    evidence.push(Evidence::new("cpus that idle half of the time or more", Measure::Text(room.to_string()), "/proc/stat"));
    evidence.extend(load.queues.iter().map(|silo| own(silo, load.cpu)));
    let full = load.is_full();
    Some(Finding {
        id: FindingId::SoftirqOneCpu,
        severity: if full { Severity::Critical } else { Severity::Warning },
        subject: load.subject(),
        title: format!(
            "receive work takes {:.0}% of its time{}, while {} cpus have room",
            load.receiving() * 100.0,
            if full { ", and none is left" } else { "" },
            room.len()
        ),
        evidence,
        remedies: vec![spread(seen, load)],
    })
}

fn own(silo: &Silo, cpu: CpuId) -> Evidence {
    let share = silo.own_share.get(&cpu).copied();
    let measure = share.map_or_else(|| Measure::Text("share not known".into()), Measure::Share);
    Evidence::new(format!("{} polled here", silo.label()), measure, "its packets' part of NET_RX")
}

/// The placement's changes that take queues off a CPU; with the reason where there are none.
pub(super) fn spread(seen: &Seen<'_>, load: &Load<'_>) -> Remedy {
    let plan = plan_for(seen, load.netdevs());
    let goes = |silo: &&&Silo| {
        plan.placements.iter().any(|it| it.label == silo.label() && it.moves && !it.cpus.contains(load.cpu))
    };
    let leaving: Vec<&Silo> = load.queues.iter().filter(goes).copied().collect();
    let moved: f64 = leaving.iter().filter_map(|silo| silo.own_share.get(&load.cpu)).sum();
    let changes: Vec<Change> = plan.changes.iter().filter(|change| moves_one_of(change, &leaving)).cloned().collect();
    let gain = match (changes.is_empty(), load.queues.len()) {
        (true, 0) => Gain::Unknown("no rx queue seen here is polled on it: netsilo why tells what is".into()),
        (true, 1) => Gain::Nothing("it is one queue: moving it makes another cpu the busy one".into()),
        (true, _) => Gain::Nothing("placement finds no better place for them: netsilo plan says why".into()),
        (false, _) => Gain::AtMost {
            measure: Measure::Share(moved.min(1.0)),
            of: format!("cpu {}'s time", load.cpu),
            basis: "what the queues that leave it take there, by their packets".into(),
        },
    };
    let what = match (changes.is_empty(), leaving.len()) {
        (true, _) if load.queues.len() == 1 => {
            "more queues, or RPS onto idle cpus, if it has many flows: one flow stays on one cpu".to_owned()
        }
        (true, _) => "see what is there and why: netsilo why".to_owned(),
        (false, 1) => format!("move {} elsewhere", leaving[0].label()),
        (false, n) if n == load.queues.len() => format!("move its {n} queues elsewhere"),
        (false, n) => format!("move {n} of its {} queues elsewhere", load.queues.len()),
    };
    Remedy {
        what,
        gain,
        cost: None,
        not_when: Some("one flow makes the load, which no placement splits, or every queue feeds every reader".into()),
        changes,
        interrupts_traffic: false,
    }
}

/// What placement would do with these netdevs, whoever owns the knobs.
pub(super) fn plan_for(seen: &Seen<'_>, netdevs: Vec<String>) -> Plan {
    let goal = Goal { netdevs, costs: seen.costs.clone(), even_if_owned: true, ..Goal::default() };
    plan_of(seen.observation, seen.rates, seen.silos, &goal)
}

/// Whether a change moves the interrupt or the kthread of one of these queues.
pub(super) fn moves_one_of(change: &Change, silos: &[&Silo]) -> bool {
    match &change.target {
        Target::IrqAffinity(knob) => silos.iter().any(|silo| silo.irq.as_ref().is_some_and(|edge| edge.to == knob.irq)),
        Target::NapiThread(knob) => silos.iter().any(|silo| silo.kthread.as_ref().is_some_and(|it| it.pid == knob.pid)),
        _ => false,
    }
}

/// No CPU is held, where receive work was seen.
fn calm(load: &[Load<'_>]) -> Option<Finding> {
    let busiest = load.iter().filter(|it| !it.queues.is_empty()).max_by(|a, b| a.receiving().total_cmp(&b.receiving()))?;
    (busiest.receiving() < HELD).then(|| Finding {
        id: FindingId::SoftirqCalm,
        severity: Severity::Ok,
        subject: "machine".into(),
        title: format!(
            "no cpu is held by receive work: cpu {} does most, {:.0}% of its time",
            busiest.cpu,
            busiest.receiving() * 100.0
        ),
        evidence: busiest.evidence(),
        remedies: Vec::new(),
    })
}

/// Softirq work that ksoftirqd has to do.
fn late(seen: &Seen<'_>, load: &Load<'_>) -> Option<Finding> {
    let it = ksoftirqd(seen.observation, seen.rates.elapsed.as_secs_f64(), load.cpu)?;
    if it.ran < KSOFTIRQD && it.waited < KSOFTIRQD {
        return None;
    }
    let source = "/proc/PID/schedstat of ksoftirqd";
    let mut evidence = vec![
        Evidence::new("ksoftirqd ran", Measure::Share(it.ran), source),
        Evidence::new("ksoftirqd waited for its turn", Measure::Share(it.waited), source),
    ];
    evidence.extend(load.evidence());
    let squeezes = seen.rates.cpus.get(&load.cpu).and_then(|rates| rates.softnet?.time_squeeze_per_s);
    evidence.extend(squeezes.map(|rate| {
        Evidence::new("net_rx_action stopped with work left", Measure::PerSecond(rate), "/proc/net/softnet_stat")
    }));
    let title = if it.waited >= KSOFTIRQD {
        format!("softirq work waits behind threads: ksoftirqd/{} waited {:.0}% of the time", load.cpu, it.waited * 100.0)
    } else {
        format!("softirqs come faster than they are done: ksoftirqd/{} ran {:.0}% of the time", load.cpu, it.ran * 100.0)
    };
    Some(Finding {
        id: FindingId::KsoftirqdBusy,
        severity: Severity::Warning,
        subject: load.subject(),
        title,
        evidence,
        remedies: vec![Remedy {
            not_when: Some(
                "one flow makes the load; and a larger budget does not help, it only moves the time from ksoftirqd".into(),
            ),
            ..spread(seen, load)
        }],
    })
}

/// IPIs that take a share worth a word.
fn by_ipis(seen: &Seen<'_>, load: &Load<'_>) -> Option<Finding> {
    let measured = load.split.measured.filter(|it| it.ipi >= IPIS)?;
    let elapsed = seen.observation.attribution.elapsed.as_secs_f64();
    let ipis = seen.observation.attribution.cpu_time.get(&load.cpu)?.ipis as f64 / elapsed;
    let rps = seen.rates.cpus.get(&load.cpu).and_then(|it| it.softnet?.received_rps_per_s).unwrap_or(0.0);
    let by_rps = rps >= ipis / 2.0;
    let what = if by_rps {
        "narrow RPS to cpus with idle time, or have a queue per cpu instead: check judges RPS by itself"
    } else {
        "have queues interrupt the cpu where their reader runs: then its wakeups need no IPI"
    };
    Some(Finding {
        id: FindingId::IpiShare,
        severity: Severity::Warning,
        subject: load.subject(),
        title: format!(
            "{:.0}% of its time goes to inter-processor interrupts{}",
            measured.ipi * 100.0,
            if by_rps { ", most of them RPS's" } else { "" }
        ),
        evidence: vec![
            Evidence::new("in call-function IPIs", Measure::Share(measured.ipi), "irq_vectors, ipi tracepoints"),
            Evidence::new("call-function IPIs", Measure::PerSecond(ipis), "irq_vectors, ipi tracepoints"),
            Evidence::new("of them for RPS", Measure::PerSecond(rps), "/proc/net/softnet_stat"),
        ],
        remedies: vec![Remedy {
            what: what.into(),
            gain: Gain::AtMost {
                measure: Measure::Share(measured.ipi),
                of: format!("cpu {}'s time", load.cpu),
                basis: "all of its IPIs".into(),
            },
            cost: None,
            not_when: Some("the IPIs come from elsewhere (memory being unmapped): then receive work has no part in them".into()),
            changes: Vec::new(),
            interrupts_traffic: false,
        }],
    })
}

/// Clock ticks that tell another story than the measurement.
fn misread(load: &Load<'_>) -> Option<Finding> {
    let (more, difference) = load.split.ticks_tell_more().zip(load.split.difference())?;
    let (ticks, measured) = load.split.ticks.zip(load.split.measured)?;
    debug_assert!(more.abs() >= DIFFERS, "a difference is named only where it misleads");
    Some(Finding {
        id: FindingId::SoftirqTimeMisread,
        severity: Severity::Info,
        subject: load.subject(),
        title: format!("top and mpstat are wrong about it: {difference}"),
        evidence: vec![
            Evidence::new("softirq and irq by clock ticks", Measure::Share(ticks.softirq + ticks.irq), "/proc/stat"),
            Evidence::new("the same, measured", Measure::Share(measured.interrupted()), "irq, softirq and ipi tracepoints"),
        ],
        remedies: vec![Remedy {
            what: "read the measured share (netsilo show, netsilo why); or a kernel with CONFIG_IRQ_TIME_ACCOUNTING".into(),
            gain: Gain::Nothing("it changes what is read, not what is done".into()),
            cost: Some("IRQ_TIME_ACCOUNTING reads the clock twice in each interrupt".into()),
            not_when: None,
            changes: Vec::new(),
            interrupts_traffic: false,
        }],
    })
}
