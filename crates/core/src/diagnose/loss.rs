//! What is lost between the NIC and the reader, by the [ledger](super::ledger), with what would
//! mend the stage that loses.

mod device;
mod reader;

use super::ledger::{Ledger, Place, ledger};
use super::softirq::Load;
use super::{Evidence, Finding, FindingId, Gain, Measure, Remedy, Seen, Severity};
use crate::change::{Change, Words, knobs};
use crate::cpuset::CpuId;

/// All of the family.
pub(super) fn find(seen: &Seen<'_>) -> Vec<Finding> {
    let ledger = ledger(seen);
    let mut findings = device::find(seen, &ledger);
    findings.extend(backlog(seen, &ledger));
    findings.extend(squeezed(seen, &ledger));
    findings.extend(reader::find(seen, &ledger));
    findings.extend(nothing(seen, &ledger));
    findings
}

/// A sysctl to another value; nothing where it was not read or has it.
fn sysctl(seen: &Seen<'_>, name: &str, new: u64, reason: &str) -> Vec<Change> {
    seen.change(knobs::Sysctl { name: name.to_owned() }, Words::new(&new.to_string()), reason)
}

/// The first number of a sysctl.
fn sysctl_number(seen: &Seen<'_>, name: &str) -> Option<u64> {
    seen.observation.after.net.sysctls.get(name)?.split_ascii_whitespace().next()?.parse().ok()
}

/// The CPU in `cpu3`.
fn cpu_of(subject: &str) -> Option<CpuId> {
    subject.strip_prefix("cpu")?.parse().ok().map(CpuId)
}

/// Counters of a stage that grew, as evidence.
fn grown(ledger: &Ledger, place: Place, subject: &str) -> Vec<Evidence> {
    let stage = ledger.stage(place);
    let lines = stage.into_iter().flat_map(|stage| stage.grown(subject));
    lines.map(|line| {
        let aside = line.aside.as_ref().map(|aside| format!(" ({aside})")).unwrap_or_default();
        Evidence::new(format!("{}{aside}", line.counter), Measure::Count(line.count.unwrap_or(0)), line.source.clone())
    })
    .collect()
}

fn per_s(seen: &Seen<'_>, count: u64) -> f64 {
    let seconds = seen.rates.elapsed.as_secs_f64();
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

fn all_of(seen: &Seen<'_>, lost: u64, basis: &str) -> Gain {
    Gain::AtMost { measure: Measure::PerSecond(per_s(seen, lost)), of: "packets lost".into(), basis: basis.into() }
}

/// The backlog of a CPU overflows: by its own limit, or by the limit of one flow.
fn backlog(seen: &Seen<'_>, ledger: &Ledger) -> Vec<Finding> {
    let Some(stage) = ledger.stage(Place::Backlog) else { return Vec::new() };
    let mut findings = Vec::new();
    for (subject, dropped) in stage.by_subject() {
        let limited = stage.grown(subject).filter(|line| line.counter == "flow_limit_count");
        let limited: u64 = limited.filter_map(|line| line.count).fold(0, u64::saturating_add);
        let evidence = grown(ledger, Place::Backlog, subject);
        if limited > 0 {
            findings.push(flow_limit(seen, subject, limited, evidence.clone()));
        }
        if dropped > limited {
            findings.extend(backlog_full(seen, subject, dropped - limited, evidence));
        }
    }
    findings
}

fn backlog_full(seen: &Seen<'_>, subject: &str, lost: u64, mut evidence: Vec<Evidence>) -> Option<Finding> {
    let load = Load::of(seen, cpu_of(subject)?);
    let bound = sysctl_number(seen, "net.core.netdev_max_backlog");
    evidence.extend(bound.map(|bound| Evidence::new("packets that may wait", Measure::Count(bound), "net.core.netdev_max_backlog")));
    let rps = seen.rates.cpus.get(&cpu_of(subject)?).and_then(|it| it.softnet?.received_rps_per_s);
    evidence.extend(rps.map(|rate| Evidence::new("times woken for RPS", Measure::PerSecond(rate), "/proc/net/softnet_stat")));
    evidence.extend(load.evidence());
    let reason = format!("the backlog of {subject} lost {lost} packets");
    let larger = Remedy {
        what: match bound {
            Some(bound) => format!("let {} packets wait instead of {bound}", bound.saturating_mul(2)),
            None => "let more packets wait (net.core.netdev_max_backlog)".into(),
        },
        gain: match load.is_full() {
            true => Gain::Nothing("the cpu is at its limit: any queue fills in front of it".into()),
            false => all_of(seen, lost, "all that the backlog lost; what comes in bursts may wait"),
        },
        cost: Some("packets wait longer, and those of all other flows on this cpu behind them".into()),
        not_when: Some("the cpu has no idle time. It bounds this queue only (RPS, loopback, veth without GRO), never the NIC's".into()),
        changes: match (bound, load.is_full()) {
            (Some(bound), false) => sysctl(seen, "net.core.netdev_max_backlog", bound.saturating_mul(2), &reason),
            _ => Vec::new(),
        },
        interrupts_traffic: false,
    };
    let elsewhere = Remedy {
        what: format!("give {subject} less to do: widen the rps_cpus that aim at it, or take other work off it"),
        gain: all_of(seen, lost, "all that the backlog lost"),
        cost: None,
        not_when: Some("one flow makes the load: it has one target".into()),
        changes: Vec::new(),
        interrupts_traffic: false,
    };
    Some(Finding {
        id: FindingId::BacklogOverflow,
        severity: Severity::Critical,
        subject: subject.to_owned(),
        title: format!("its backlog was full: {lost} packets lost"),
        evidence,
        remedies: if load.is_full() { vec![elsewhere, larger] } else { vec![larger, elsewhere] },
    })
}

fn flow_limit(seen: &Seen<'_>, subject: &str, lost: u64, evidence: Vec<Evidence>) -> Finding {
    Finding {
        id: FindingId::FlowLimitDrops,
        severity: Severity::Warning,
        subject: subject.to_owned(),
        title: format!("one flow fills its backlog, and lost {lost} packets to its limit, so that others lose none"),
        evidence,
        remedies: vec![Remedy {
            what: "leave it, unless that flow is the one that matters: then clear this cpu in net.core.flow_limit_cpu_bitmap".into(),
            gain: all_of(seen, lost, "what the flow lost; other flows lose instead when the backlog fills"),
            cost: Some("small flows are dropped along with the large one".into()),
            not_when: Some("other flows on this cpu matter as much".into()),
            changes: Vec::new(),
            interrupts_traffic: false,
        }],
    }
}

/// NET_RX stops with work left, on a CPU that loses packets or has no time left; else a squeeze is
/// nothing to mend.
fn squeezed(seen: &Seen<'_>, ledger: &Ledger) -> Vec<Finding> {
    let Some(stage) = ledger.stage(Place::Squeeze) else { return Vec::new() };
    let squeeze = |line: &super::ledger::Line| {
        let count = line.count.filter(|count| *count > 0)?;
        let load = Load::of(seen, cpu_of(&line.subject)?);
        let lost = load.lost(ledger);
        (lost > 0 || load.is_full()).then(|| squeeze(seen, ledger, &load, &line.subject, count, lost))
    };
    stage.lines.iter().filter_map(squeeze).collect()
}

fn squeeze(seen: &Seen<'_>, ledger: &Ledger, load: &Load<'_>, subject: &str, count: u64, lost: u64) -> Finding {
    let mut evidence = grown(ledger, Place::Squeeze, subject);
    let bounds = ["net.core.netdev_budget", "net.core.netdev_budget_usecs"];
    for name in bounds {
        evidence.extend(sysctl_number(seen, name).map(|value| Evidence::new("limit of one run", Measure::Count(value), name)));
    }
    evidence.push(Evidence::new("packets lost by what it polls", Measure::Count(lost), "the ledger of loss"));
    evidence.extend(load.evidence());
    let reason = format!("{subject} stopped polling {count} times with work left while {lost} packets were lost");
    let larger = || {
        let double = |name: &str| sysctl_number(seen, name).map(|value| sysctl(seen, name, value.saturating_mul(2), &reason));
        bounds.into_iter().filter_map(double).flatten().collect::<Vec<Change>>()
    };
    let mends = lost > 0 && !load.is_full();
    let remedy = Remedy {
        what: match mends {
            true => "let NET_RX run twice as long before it yields".into(),
            false => "take work off this cpu (netsilo why says what): it has no time for a larger budget to use".into(),
        },
        gain: match mends {
            true => all_of(seen, lost, "all that the queues polled here lost, if they lost it while NET_RX had yielded"),
            false => Gain::Nothing("a larger budget moves time from ksoftirqd to softirq context, and makes none".into()),
        },
        cost: Some("threads and other softirqs of all cpus wait longer".into()),
        not_when: Some("nothing is lost: a squeeze is late, not lost".into()),
        changes: if mends { larger() } else { Vec::new() },
        interrupts_traffic: false,
    };
    Finding {
        id: FindingId::BudgetSqueeze,
        severity: Severity::Warning,
        subject: subject.to_owned(),
        title: match lost {
            0 => "it stops polling with work left, and has no time to spare".to_owned(),
            _ => "it stops polling with work left, and the queues that it polls lose packets".to_owned(),
        },
        evidence,
        remedies: vec![remedy],
    }
}

impl Load<'_> {
    /// What the netdevs polled on this CPU, and its backlog, lost in the interval.
    fn lost(&self, ledger: &Ledger) -> u64 {
        let mut names = self.netdevs();
        names.push(self.subject());
        let places = [Place::Nic, Place::Ring, Place::Backlog].into_iter().filter_map(|place| ledger.stage(place));
        places.flat_map(|stage| stage.by_subject()).filter(|(subject, _)| names.iter().any(|name| name == subject)).map(|it| it.1).fold(0, u64::saturating_add)
    }
}

/// All stages are known, and none lost anything.
fn nothing(seen: &Seen<'_>, ledger: &Ledger) -> Option<Finding> {
    let told = |place: Place| ledger.stage(place).is_some();
    let known = !seen.rates.elapsed.is_zero() && told(Place::Backlog) && ledger.stage(Place::Socket).is_some();
    (known && ledger.most_lost().is_none()).then(|| Finding {
        id: FindingId::NothingLost,
        severity: Severity::Ok,
        subject: "machine".into(),
        title: "nothing was lost between the NIC and the readers".into(),
        evidence: ledger
            .stages
            .iter()
            .map(|stage| Evidence::new(stage.place.label(), Measure::Count(stage.count), "the ledger of loss"))
            .collect(),
        remedies: Vec::new(),
    })
}
