//! Findings on CPUs busy with softirqs, and on receive work that runs on unintended CPUs.

mod steering;
mod where_it_runs;

use netsilo_model::snapshot::subject::Subject;
use std::collections::BTreeSet;

use netsilo_model::change::{Change, Target};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::cpu_time::{CpuSplit, DIFFERS};
use netsilo_model::derive::silo::Silo;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::judged::Judged;
use crate::judge::findings::{Finding, FindingId, Severity};
use crate::judge::why::ksoftirqd;

/// Share of a CPU's time in receive work from which the CPU is overloaded.
const OVERLOADED: f64 = 0.6;
/// Idle share up to which a CPU is saturated.
pub(super) const FULL: f64 = 0.05;
/// Idle share from which a CPU can take more work.
const IDLE: f64 = 0.5;
/// Share of the time that ksoftirqd runs, or waits, from which it delays packets noticeably.
const KSOFTIRQD: f64 = 0.1;
/// Share of a CPU's time in inter-processor interrupts from which they are reported.
const IPIS: f64 = 0.05;

/// All findings of the family.
pub(super) fn find(judged: &Judged<'_>) -> Vec<Finding> {
    let analysis = judged.analysis;
    let load: Vec<Load<'_>> = analysis
        .observation
        .after
        .topology
        .online
        .iter()
        .map(|cpu| Load::of(analysis, cpu))
        .collect();
    let mut findings: Vec<Finding> =
        load.iter().filter_map(|it| overloaded(judged, it, &load)).collect();
    if findings.is_empty() {
        findings.extend(calm(&load));
    }
    findings.extend(load.iter().filter_map(|it| late(judged, it)));
    findings.extend(where_it_runs::find(judged, &load));
    findings.extend(steering::find(analysis));
    findings.extend(load.iter().filter_map(|it| by_ipis(analysis, it)));
    findings.extend(load.iter().filter_map(misread));
    findings
}

/// The time of one CPU and the queues polled on it.
pub(super) struct Load<'a> {
    cpu: CpuId,
    split: CpuSplit,
    /// Queues polled on this CPU.
    queues: Vec<&'a Silo>,
}

impl<'a> Load<'a> {
    pub(super) fn of(analysis: &'a Analysis<'_>, cpu: CpuId) -> Self {
        let polled = |silo: &&Silo| {
            let interrupted =
                || silo.interrupts_per_s.as_ref().is_some_and(|rates| rates.contains_key(&cpu));
            silo.polls.get(&cpu).is_some_and(|rate| rate.packets_per_s > 0.0)
                || (silo.packets_per_s.is_none() && interrupted())
        };
        let queues = analysis.silos.queues.iter().filter(polled).collect();
        Self { cpu, split: CpuSplit::of(analysis.observation, &analysis.rates, cpu), queues }
    }

    pub(super) fn subject(&self) -> Subject {
        Subject::Cpu(self.cpu)
    }

    /// Names of the netdevs whose queues are polled on this CPU.
    pub(super) fn netdevs(&self) -> Vec<String> {
        let names: BTreeSet<&str> =
            self.queues.iter().map(|silo| silo.netdev.name.as_str()).collect();
        names.into_iter().map(str::to_owned).collect()
    }

    /// Share of the CPU's time in softirqs, interrupts and NAPI kthreads, at most 1.
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

    /// The split of the CPU's time, as evidence.
    pub(super) fn evidence(&self) -> Vec<Evidence> {
        let mut evidence = Vec::new();
        match (self.split.measured, self.split.ticks) {
            (Some(it), _) => {
                evidence.push(Evidence::new(
                    "in softirqs",
                    Measure::Share(it.softirq()),
                    "irq:softirq_entry/exit",
                ));
                evidence.push(Evidence::new(
                    "in device interrupts",
                    Measure::Share(it.hardirq),
                    "irq:irq_handler_entry/exit",
                ));
            }
            (None, Some(ticks)) => {
                let share = Measure::Share(ticks.softirq + ticks.irq);
                evidence.push(Evidence::new(
                    "in softirqs and interrupts, by clock ticks",
                    share,
                    "/proc/stat",
                ));
            }
            (None, None) => {}
        }
        evidence.extend(
            self.idle().map(|idle| Evidence::new("idle", Measure::Share(idle), "/proc/stat")),
        );
        evidence
    }
}

/// One CPU is overloaded by receive work while others are idle.
fn overloaded(judged: &Judged<'_>, load: &Load<'_>, all: &[Load<'_>]) -> Option<Finding> {
    let topology = &judged.analysis.observation.after.topology;
    let apart = topology.isolated.or(&topology.nohz_full);
    let room: CpuSet = all
        .iter()
        .filter(|it| it.cpu != load.cpu && it.has_room() && !apart.contains(it.cpu))
        .map(|it| it.cpu)
        .collect();
    if load.receiving() < OVERLOADED || room.is_empty() {
        return None;
    }
    let mut evidence = load.evidence();
    evidence.push(Evidence::new(
        "cpus that are idle at least half of the time",
        Measure::Text(room.to_string()),
        "/proc/stat",
    ));
    evidence.extend(load.queues.iter().map(|silo| own(silo, load.cpu)));
    let full = load.is_full();
    Some(Finding {
        id: FindingId::SoftirqOneCpu,
        severity: if full { Severity::Critical } else { Severity::Warning },
        subject: load.subject(),
        title: format!(
            "receive work takes {:.0}% of its time{}, while {} cpus are mostly idle",
            load.receiving() * 100.0,
            if full { ", and no idle time is left" } else { "" },
            room.len()
        ),
        evidence,
        remedies: vec![spread(judged, load)],
    })
}

fn own(silo: &Silo, cpu: CpuId) -> Evidence {
    let share = silo.own_share.get(&cpu).copied();
    let measure = share.map_or_else(|| Measure::Text("share unknown".into()), Measure::Share);
    Evidence::new(format!("{} polled here", silo.label()), measure, "NET_RX time, by packets")
}

/// The changes of placement that move queues off a CPU, or the reason why there are none.
pub(super) fn spread(judged: &Judged<'_>, load: &Load<'_>) -> Remedy {
    let plan = judged.plans.of(load.netdevs());
    let goes = |silo: &&&Silo| {
        plan.placements
            .iter()
            .any(|it| it.label == silo.subject() && it.moves && !it.cpus.contains(load.cpu))
    };
    let leaving: Vec<&Silo> = load.queues.iter().filter(goes).copied().collect();
    let moved: f64 = leaving.iter().filter_map(|silo| silo.own_share.get(&load.cpu)).sum();
    let changes: Vec<Change> =
        plan.changes.iter().filter(|change| moves_one_of(change, &leaving)).cloned().collect();
    let gain = match (changes.is_empty(), load.queues.len()) {
        (true, 0) => Gain::Unknown(
            "none of the known rx queues is polled on this cpu: netsilo why lists its work".into(),
        ),
        (true, 1) => Gain::Nothing("moving its only queue just makes another cpu busy".into()),
        (true, _) => Gain::Nothing(
            "placement finds no better cpus for these queues: netsilo plan prints the reason"
                .into(),
        ),
        (false, _) => Gain::AtMost {
            measure: Measure::Share(moved.min(1.0)),
            of: format!("cpu {}'s time", load.cpu),
            basis: "the time that the moved queues take on this cpu, by their packets".into(),
        },
    };
    let what = match (changes.is_empty(), leaving.len()) {
        (true, _) if load.queues.len() == 1 => {
            "use more queues, or RPS onto idle cpus, if there are many flows: one flow stays on \
             one cpu"
                .to_owned()
        }
        (true, _) => "find the cpu's work and its causes with netsilo why".to_owned(),
        (false, 1) => format!("move {} to another cpu", leaving[0].label()),
        (false, n) if n == load.queues.len() => format!("move its {n} queues to other cpus"),
        (false, n) => format!("move {n} of its {} queues to other cpus", load.queues.len()),
    };
    Remedy {
        what,
        gain,
        cost: None,
        not_when: Some(
            "one flow causes the load, which no placement can split, or every queue feeds every \
             reader"
                .into(),
        ),
        changes,
        interrupts_traffic: false,
    }
}

/// Whether a change moves the interrupt or the kthread of one of these queues.
pub(super) fn moves_one_of(change: &Change, silos: &[&Silo]) -> bool {
    match &change.target {
        Target::IrqAffinity { irq, .. } => {
            silos.iter().any(|silo| silo.irq.as_ref().is_some_and(|edge| edge.to == *irq))
        }
        Target::NapiThread { pid, .. } => {
            silos.iter().any(|silo| silo.kthread.as_ref().is_some_and(|it| it.pid == *pid))
        }
        _ => false,
    }
}

/// No CPU is overloaded by receive work; `None` when no CPU polls a queue.
fn calm(load: &[Load<'_>]) -> Option<Finding> {
    let busiest = load
        .iter()
        .filter(|it| !it.queues.is_empty())
        .max_by(|a, b| a.receiving().total_cmp(&b.receiving()))?;
    (busiest.receiving() < OVERLOADED).then(|| Finding {
        id: FindingId::SoftirqCalm,
        severity: Severity::Ok,
        subject: Subject::Machine,
        title: format!(
            "no cpu is overloaded by receive work: cpu {} does the most, {:.0}% of its time",
            busiest.cpu,
            busiest.receiving() * 100.0
        ),
        evidence: busiest.evidence(),
        remedies: Vec::new(),
    })
}

/// Softirq work is late because ksoftirqd has to do it.
fn late(judged: &Judged<'_>, load: &Load<'_>) -> Option<Finding> {
    let analysis = judged.analysis;
    let it = ksoftirqd(analysis, load.cpu)?;
    if it.ran < KSOFTIRQD && it.waited < KSOFTIRQD {
        return None;
    }
    let source = "/proc/PID/schedstat of ksoftirqd";
    let mut evidence = vec![
        Evidence::new("ksoftirqd ran", Measure::Share(it.ran), source),
        Evidence::new("ksoftirqd waited for its turn", Measure::Share(it.waited), source),
    ];
    evidence.extend(load.evidence());
    let squeezes =
        analysis.rates.cpus.get(&load.cpu).and_then(|rates| rates.softnet?.time_squeeze_per_s);
    evidence.extend(squeezes.map(|rate| {
        Evidence::new(
            "net_rx_action stopped with work left",
            Measure::PerSecond(rate),
            "/proc/net/softnet_stat",
        )
    }));
    let title = if it.waited >= KSOFTIRQD {
        format!(
            "softirq work waits behind threads: ksoftirqd/{} waited {:.0}% of the time",
            load.cpu,
            it.waited * 100.0
        )
    } else {
        format!(
            "softirqs are raised faster than they are processed: ksoftirqd/{} ran {:.0}% of the \
             time",
            load.cpu,
            it.ran * 100.0
        )
    };
    Some(Finding {
        id: FindingId::KsoftirqdBusy,
        severity: Severity::Warning,
        subject: load.subject(),
        title,
        evidence,
        remedies: vec![Remedy {
            not_when: Some(
                "one flow causes the load. A larger budget does not help: it only moves time out \
                 of ksoftirqd"
                    .into(),
            ),
            ..spread(judged, load)
        }],
    })
}

/// Inter-processor interrupts take a large share of the CPU's time.
fn by_ipis(analysis: &Analysis<'_>, load: &Load<'_>) -> Option<Finding> {
    let measured = load.split.measured.filter(|it| it.ipi >= IPIS)?;
    let elapsed = analysis.observation.attribution.elapsed.as_secs_f64();
    let ipis = analysis.observation.attribution.cpu_time.get(&load.cpu)?.ipis as f64 / elapsed;
    let rps = analysis
        .rates
        .cpus
        .get(&load.cpu)
        .and_then(|it| it.softnet?.received_rps_per_s)
        .unwrap_or(0.0);
    let by_rps = rps >= ipis / 2.0;
    let what = if by_rps {
        "limit RPS to cpus with idle time, or use one queue per cpu instead: see the verdict on RPS"
    } else {
        "place each queue's interrupt on its reader's cpu: then wakeups need no IPI"
    };
    Some(Finding {
        id: FindingId::IpiShare,
        severity: Severity::Warning,
        subject: load.subject(),
        title: format!(
            "{:.0}% of its time goes to inter-processor interrupts{}",
            measured.ipi * 100.0,
            if by_rps { ", most of them for RPS" } else { "" }
        ),
        evidence: vec![
            Evidence::new(
                "in call-function IPIs",
                Measure::Share(measured.ipi),
                "irq_vectors, ipi tracepoints",
            ),
            Evidence::new(
                "call-function IPIs",
                Measure::PerSecond(ipis),
                "irq_vectors, ipi tracepoints",
            ),
            Evidence::new("of these for RPS", Measure::PerSecond(rps), "/proc/net/softnet_stat"),
        ],
        remedies: vec![Remedy {
            what: what.into(),
            gain: Gain::AtMost {
                measure: Measure::Share(measured.ipi),
                of: format!("cpu {}'s time", load.cpu),
                basis: "all its IPIs".into(),
            },
            cost: None,
            not_when: Some(
                "the IPIs have another cause (such as unmapped memory) than receive work".into(),
            ),
            changes: Vec::new(),
            interrupts_traffic: false,
        }],
    })
}

/// Clock tick accounting differs from the measurement.
fn misread(load: &Load<'_>) -> Option<Finding> {
    let (more, difference) = load.split.ticks_tell_more().zip(load.split.difference())?;
    let (ticks, measured) = load.split.ticks.zip(load.split.measured)?;
    debug_assert!(more.abs() >= DIFFERS, "a small difference is not reported");
    Some(Finding {
        id: FindingId::SoftirqTimeMisread,
        severity: Severity::Info,
        subject: load.subject(),
        title: format!("top and mpstat show wrong values for this cpu: {difference}"),
        evidence: vec![
            Evidence::new(
                "softirq and irq, by clock ticks",
                Measure::Share(ticks.softirq + ticks.irq),
                "/proc/stat",
            ),
            Evidence::new(
                "softirq and irq, measured",
                Measure::Share(measured.interrupted()),
                "irq, softirq and ipi tracepoints",
            ),
        ],
        remedies: vec![Remedy {
            what: "use the measured share (netsilo show, netsilo why), or a kernel with \
                   CONFIG_IRQ_TIME_ACCOUNTING"
                .into(),
            gain: Gain::Nothing("this changes the reported values, not the work".into()),
            cost: Some("IRQ_TIME_ACCOUNTING reads the clock twice per interrupt".into()),
            not_when: None,
            changes: Vec::new(),
            interrupts_traffic: false,
        }],
    })
}
