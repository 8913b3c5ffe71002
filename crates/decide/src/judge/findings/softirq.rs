//! Findings on CPUs busy with softirqs, and on receive work that runs on unintended CPUs.

mod affinity;
mod stages;
mod steering;
mod stolen;

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::cpu_time::MIN_DIFFERENCE;
use netsilo_model::machine::words::{plural, whole_percent};
use netsilo_model::snapshot::host::NAPI_SETTINGS;
use netsilo_model::snapshot::subject::Subject;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::cpu_work::CpuWork;
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;
use crate::judge::findings::judged::Judged;
use crate::judge::findings::relief::{
    OVERLOADED, best_verdict, own, room, spread, spread_threads, steer_all,
};
use crate::judge::why::ksoftirqd;

/// If ksoftirqd runs or waits for this share of the time, it delays packets noticeably.
const KSOFTIRQD: f64 = 0.1;
/// From this share of a CPU's time, inter-processor interrupts are reported.
const IPIS: f64 = 0.05;

/// All findings of the family.
pub(super) fn find(judged: &Judged<'_>) -> Vec<Finding> {
    let analysis = judged.analysis;
    let load: Vec<CpuWork<'_>> = analysis
        .observation
        .after
        .topology
        .online
        .iter()
        .map(|cpu| CpuWork::of(analysis, cpu))
        .collect();
    let mut findings: Vec<Finding> =
        load.iter().filter_map(|it| overloaded(judged, it, &load)).collect();
    if findings.is_empty() {
        findings.extend(calm(analysis, &load));
    }
    findings.extend(load.iter().filter_map(|it| late(judged, it)));
    findings.extend(load.iter().flat_map(|it| stages::find(analysis, it)));
    findings.extend(load.iter().filter_map(|it| stolen::find(analysis, it)));
    findings.extend(affinity::find(judged, &load));
    findings.extend(steering::find(judged, &load));
    findings.extend(load.iter().filter_map(|it| by_ipis(analysis, it)));
    findings.extend(load.iter().filter_map(misread));
    findings
}

/// One CPU is overloaded by receive work while others are idle.
fn overloaded(judged: &Judged<'_>, load: &CpuWork<'_>, all: &[CpuWork<'_>]) -> Option<Finding> {
    let (full, receiving) = (load.is_full(), load.receiving_at_most());
    if receiving < OVERLOADED || !full && load.receiving() < OVERLOADED {
        return None;
    }
    let room = room(&judged.analysis.after().topology, all, load.cpu);
    if room.is_empty() {
        return None;
    }
    let mut evidence = load.evidence();
    evidence.push(Evidence::new(
        "cpus that are idle at least half of the time",
        Measure::Text(room.to_string()),
        "/proc/stat",
    ));
    evidence.extend(load.queues.iter().map(|silo| own(silo, load.cpu)));
    let unrecorded = match load.unrecorded() {
        0 => String::new(),
        count => {
            let threads = plural(count, "kernel thread");
            format!(" (how long {threads} worked for packets is not known)")
        }
    };
    let remedies = match (spread_threads(judged, load, &room), spread(judged, load)) {
        (Some(threads), moves) => {
            [threads, moves].into_iter().filter(|it| !it.changes.is_empty()).collect()
        }
        (None, moves) if !moves.changes.is_empty() => vec![moves],
        (None, none) => {
            let other = steer_all(judged, all, &room).or_else(|| best_verdict(judged, load));
            vec![other.unwrap_or(none)]
        }
    };
    Some(Finding {
        id: FindingId::SoftirqOneCpu,
        severity: if full && load.receiving() >= OVERLOADED {
            Severity::Critical
        } else {
            Severity::Warning
        },
        subject: load.subject(),
        title: format!(
            "receive work takes {}{:.0}% of its time{unrecorded}{}, while {} cpus are mostly idle",
            if unrecorded.is_empty() { "" } else { "up to " },
            receiving * 100.0,
            if full { ", and no idle time is left" } else { "" },
            room.len()
        ),
        evidence,
        remedies,
    })
}

/// No CPU is overloaded by receive work; `None` if no CPU polls a queue, or if the time of one that
/// does is not known: threads may poll, or others did in averages since boot.
fn calm(analysis: &Analysis<'_>, load: &[CpuWork<'_>]) -> Option<Finding> {
    let polling = || load.iter().filter(|it| !it.queues.is_empty() || !it.threads.is_empty());
    let may_be_full = |it: &CpuWork<'_>| it.receiving_at_most() >= OVERLOADED;
    let after = analysis.after();
    if after.was_not_recorded(NAPI_SETTINGS)
        || after.is_since_boot()
        || polling().any(|it| !it.is_known() || may_be_full(it))
    {
        return None;
    }
    let receiving = CpuWork::receiving_at_most;
    let busiest = polling().max_by(|a, b| receiving(a).total_cmp(&receiving(b)))?;
    Some(Finding {
        id: FindingId::SoftirqCalm,
        severity: Severity::Ok,
        subject: Subject::Machine,
        title: format!(
            "no cpu is overloaded by receive work: cpu {} does the most, {}{} of its time",
            busiest.cpu,
            if busiest.unrecorded() > 0 { "up to " } else { "" },
            whole_percent(receiving(busiest))
        ),
        evidence: busiest.evidence(),
        remedies: Vec::new(),
    })
}

/// Softirq work is late because ksoftirqd has to do it.
fn late(judged: &Judged<'_>, load: &CpuWork<'_>) -> Option<Finding> {
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
            "net_rx_action stopped before its work was done",
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
fn by_ipis(analysis: &Analysis<'_>, load: &CpuWork<'_>) -> Option<Finding> {
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
                "the IPIs are not caused by receive work (but by unmapped memory, for example)"
                    .into(),
            ),
            changes: Vec::new(),
            interrupts_traffic: false,
        }],
    })
}

/// Clock tick accounting differs from the measurement.
fn misread(load: &CpuWork<'_>) -> Option<Finding> {
    let (more, difference) = load.split.tick_excess().zip(load.split.difference())?;
    let (ticks, measured) = load.split.ticks.zip(load.split.measured)?;
    debug_assert!(more.abs() >= MIN_DIFFERENCE, "a small difference is not reported");
    Some(Finding {
        id: FindingId::SoftirqTimeMisread,
        severity: Severity::Info,
        subject: load.subject(),
        title: "top and mpstat show wrong irq and softirq times for this cpu".into(),
        evidence: vec![
            Evidence::new("why", Measure::Text(difference), "ticks and measurement, compared"),
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
            what: "use the measured share (netsilo show, netsilo explain), or a kernel with \
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
