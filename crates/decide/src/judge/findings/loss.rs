//! Findings on packets lost between the NIC and the reader, from the [ledger](super::ledger), with
//! remedies for the stage that loses them.

mod decided;
mod device;
mod full_tap;
mod kernel;
mod lost;
mod reader;

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::coverage::in_words;
use netsilo_model::derive::namespaces::counted;
use netsilo_model::drivers::loss_stage::LossStage;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::snapshot::subject::Subject;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::cpu_work::CpuWork;
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;
use crate::judge::findings::judged::Judged;
use crate::judge::findings::loss::decided::on_purpose;
use crate::judge::findings::loss::lost::{all_of, grown, sysctl, sysctl_number};
use crate::judge::ledger::Ledger;
use crate::judge::limits::raised;

/// The limit of packets that wait for a CPU.
const BACKLOG: &str = "net.core.netdev_max_backlog";

/// All findings of the family.
pub(super) fn find(judged: &Judged<'_>) -> Vec<Finding> {
    let Judged { analysis, ledger, .. } = judged;
    let counted = counted(analysis);
    let mut findings = device::find(judged);
    findings.extend(backlog(analysis, ledger));
    findings.extend(squeezed(analysis, ledger));
    findings.extend(reader::find(analysis, &counted, ledger));
    findings.extend(kernel::find(analysis, &counted, ledger));
    findings.extend(nothing(analysis, ledger));
    findings
}

fn cpu_of(subject: &Subject) -> Option<CpuId> {
    match subject {
        Subject::Cpu(cpu) => Some(*cpu),
        _ => None,
    }
}

/// Drops at a CPU's backlog, by its own limit or by the flow limit.
fn backlog(analysis: &Analysis<'_>, ledger: &Ledger) -> Vec<Finding> {
    let Some(stage) = ledger.stage(LossStage::Backlog) else { return Vec::new() };
    let mut findings = Vec::new();
    for (subject, dropped) in stage.by_subject() {
        let limited =
            stage.grown_counters(subject).filter(|line| line.counter == "flow_limit_count");
        let limited: u64 = limited.filter_map(|line| line.count).fold(0, u64::saturating_add);
        let evidence = grown(ledger, LossStage::Backlog, subject);
        if limited > 0 {
            findings.push(flow_limit(analysis, subject, limited, evidence.clone()));
        }
        if dropped > limited {
            findings.extend(backlog_full(analysis, subject, dropped - limited, evidence));
        }
    }
    findings
}

fn backlog_full(
    analysis: &Analysis<'_>,
    subject: &Subject,
    lost: u64,
    mut evidence: Vec<Evidence>,
) -> Option<Finding> {
    let load = CpuWork::of(analysis, cpu_of(subject)?);
    let bound = sysctl_number(analysis, BACKLOG);
    evidence
        .extend(bound.map(|bound| {
            Evidence::new("backlog limit in packets", Measure::Count(bound), BACKLOG)
        }));
    let rps =
        analysis.rates.cpus.get(&cpu_of(subject)?).and_then(|it| it.softnet?.received_rps_per_s);
    evidence.extend(rps.map(|rate| {
        Evidence::new("wakeups for RPS", Measure::PerSecond(rate), "/proc/net/softnet_stat")
    }));
    evidence.extend(load.evidence());
    let reason = format!("the backlog of {subject} lost {lost} packets");
    let larger = Remedy {
        what: match bound {
            Some(bound) => format!(
                "raise the backlog limit to {} packets from {bound}",
                raised(BACKLOG, bound)
            ),
            None => format!("raise the backlog limit ({BACKLOG})"),
        },
        gain: if load.is_full() {
            Gain::Nothing("the cpu is saturated: a backlog of any size fills up".into())
        } else {
            all_of(
                analysis,
                lost,
                "all packets that the backlog lost, because a larger backlog holds bursts",
            )
        },
        cost: Some("packets of all flows on this cpu may wait longer".into()),
        not_when: Some(
            "the cpu has no idle time. The limit applies only to the backlog (RPS, loopback, veth \
             without GRO), not to the NIC's queues"
                .into(),
        ),
        changes: match (bound, load.is_full()) {
            (Some(bound), false) => sysctl(analysis, BACKLOG, raised(BACKLOG, bound), &reason),
            _ => Vec::new(),
        },
        interrupts_traffic: false,
    };
    let elsewhere = Remedy {
        what: format!(
            "reduce the work of {subject}: add cpus to the rps_cpus that contain it, or move other \
             work off it"
        ),
        gain: all_of(analysis, lost, "all packets that the backlog lost"),
        cost: None,
        not_when: Some("one flow causes the load: RPS steers it to one cpu".into()),
        changes: Vec::new(),
        interrupts_traffic: false,
    };
    Some(Finding {
        id: FindingId::BacklogOverflow,
        severity: Severity::Critical,
        subject: subject.clone(),
        title: format!("its backlog was full: {lost} packets lost"),
        evidence,
        remedies: if load.is_full() { vec![elsewhere, larger] } else { vec![larger, elsewhere] },
    })
}

fn flow_limit(
    analysis: &Analysis<'_>,
    subject: &Subject,
    lost: u64,
    evidence: Vec<Evidence>,
) -> Finding {
    Finding {
        id: FindingId::FlowLimitDrops,
        severity: Severity::Warning,
        subject: subject.clone(),
        title: format!(
            "one flow fills its backlog; the flow limit, which protects other flows, dropped \
             {lost} of its packets"
        ),
        evidence,
        remedies: vec![Remedy {
            what: "keep the flow limit, unless that flow matters most: then clear this cpu in \
                   net.core.flow_limit_cpu_bitmap"
                .into(),
            gain: all_of(
                analysis,
                lost,
                "all packets that the flow lost; other flows lose packets \
                 instead when the backlog fills",
            ),
            cost: Some("a full backlog then drops packets of small flows too".into()),
            not_when: Some("other flows on this cpu matter as much".into()),
            changes: Vec::new(),
            interrupts_traffic: false,
        }],
    }
}

/// NET_RX stops with work left on a CPU that loses packets or has no idle time. Other squeezes need
/// no fix.
fn squeezed(analysis: &Analysis<'_>, ledger: &Ledger) -> Vec<Finding> {
    let Some(stage) = ledger.stage(LossStage::Squeeze) else { return Vec::new() };
    let squeeze = |line: &crate::judge::ledger::LossCounter| {
        let count = line.count.filter(|count| *count > 0)?;
        let load = CpuWork::of(analysis, cpu_of(&line.subject)?);
        let lost = load.lost(ledger);
        (lost > 0 || load.is_full())
            .then(|| squeeze(analysis, ledger, &load, &line.subject, count, lost))
    };
    stage.lines.iter().filter_map(squeeze).collect()
}

fn squeeze(
    analysis: &Analysis<'_>,
    ledger: &Ledger,
    load: &CpuWork<'_>,
    subject: &Subject,
    count: u64,
    lost: u64,
) -> Finding {
    let mut evidence = grown(ledger, LossStage::Squeeze, subject);
    let bounds = ["net.core.netdev_budget", "net.core.netdev_budget_usecs"];
    for name in bounds {
        evidence.extend(
            sysctl_number(analysis, name).map(|value| {
                Evidence::new("limit of one softirq run", Measure::Count(value), name)
            }),
        );
    }
    evidence.push(Evidence::new(
        "packets lost by the queues it polls and its backlog",
        Measure::Count(lost),
        "the ledger of loss",
    ));
    evidence.extend(load.evidence());
    let reason = format!(
        "{subject} stopped polling {count} times before its work was done, while {lost} packets \
         were lost"
    );
    let larger = bounds
        .map(|name| Some((name, raised(name, sysctl_number(analysis, name)?))))
        .into_iter()
        .flatten();
    let budget_helps = lost > 0 && !load.is_full();
    let remedy = Remedy {
        what: if budget_helps {
            let limits: Vec<String> =
                larger.clone().map(|(name, value)| format!("{name} {value}")).collect();
            format!("let NET_RX run longer before it yields: {}", limits.join(", "))
        } else {
            "move work off this cpu (netsilo explain lists it): it has no idle time that a \
              larger budget could use"
                .into()
        },
        gain: if budget_helps {
            all_of(
                analysis,
                lost,
                "all packets lost by the queues polled here, if they were \
             lost while NET_RX had yielded",
            )
        } else {
            Gain::Nothing(
                "a larger budget only moves work from ksoftirqd to softirq context".into(),
            )
        },
        cost: Some("threads and other softirqs on all cpus wait longer".into()),
        not_when: Some(
            "no packets are lost: a squeeze delays packets, it does not drop them".into(),
        ),
        changes: larger
            .filter(|_| budget_helps)
            .flat_map(|(name, value)| sysctl(analysis, name, value, &reason))
            .collect(),
        interrupts_traffic: false,
    };
    Finding {
        id: FindingId::BudgetSqueeze,
        severity: Severity::Warning,
        subject: subject.clone(),
        title: match lost {
            0 => "it stops polling before its work is done, and has no idle time".to_owned(),
            _ => "it stops polling before its work is done, and the queues it polls lose packets"
                .to_owned(),
        },
        evidence,
        remedies: vec![remedy],
    }
}

/// Reports that nothing was lost, if the backlog and socket stages are known.
fn nothing(analysis: &Analysis<'_>, ledger: &Ledger) -> Option<Finding> {
    let is_known = |place: LossStage| ledger.stage(place).is_some();
    let known = !analysis.rates.elapsed.is_zero()
        && is_known(LossStage::Backlog)
        && is_known(LossStage::Socket);
    let lost = ledger.most_lost().is_some() || ledger.may_have_lost();
    let counted = in_words(&ledger.coverage);
    (known && !lost).then(|| Finding {
        id: FindingId::NothingLost,
        severity: Severity::Ok,
        subject: Subject::Machine,
        title: match on_purpose(ledger) {
            Some(dropped) => format!("{dropped}; nothing was lost in the stages {counted}"),
            None => format!("nothing was lost in the stages {counted}"),
        },
        evidence: ledger
            .stages
            .iter()
            .map(|stage| {
                Evidence::new(
                    stage.stage.label(),
                    Measure::Count(stage.count),
                    "the ledger of loss",
                )
            })
            .collect(),
        remedies: Vec::new(),
    })
}
