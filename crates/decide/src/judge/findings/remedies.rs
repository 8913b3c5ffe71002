//! Findings from verdicts: remedies that would help if a CPU is saturated, and settings that are on
//! and hurt.

use std::collections::BTreeMap;

use netsilo_model::change::{Change, knobs};
use netsilo_model::snapshot::netdev::{Netdev, NetdevIdentity};
use netsilo_model::snapshot::subject::Subject;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;
use crate::judge::findings::judged::Judged;
use crate::judge::verdict::{Claim, Look, RemedyName, RemedyVerdict, unsteerable};

/// If RFS cannot steer at least this share of bytes, it is reported as useless.
const USELESS: f64 = 0.9;

pub(super) fn find(judged: &Judged<'_>) -> Vec<Finding> {
    let analysis = judged.analysis;
    let mut by_netdev: BTreeMap<&Subject, Vec<&RemedyVerdict>> = BTreeMap::new();
    for verdict in &judged.verdicts {
        by_netdev.entry(&verdict.subject).or_default().push(verdict);
    }
    let mut findings: Vec<Finding> =
        by_netdev.values().flat_map(|verdicts| of_netdev(verdicts)).collect();
    findings.extend(
        analysis
            .observation
            .after
            .netdevs
            .iter()
            .filter_map(|netdev| rfs_useless(&judged.look, netdev)),
    );
    findings
}

fn of_netdev(verdicts: &[&RemedyVerdict]) -> Vec<Finding> {
    let with_claim = |remedy: RemedyName, claim: Claim| {
        verdicts.iter().copied().find(|verdict| verdict.remedy == remedy && verdict.claim == claim)
    };
    let helps = |remedy| with_claim(remedy, Claim::Help);
    let mut findings = Vec::new();
    if let Some(queues) = helps(RemedyName::MoreQueues) {
        let title = "its receive work saturates one cpu, and it has unused queues";
        let remedy = remedy(
            queues,
            "use more queues, so that more cpus poll",
            Some("traffic stops while the device is reconfigured"),
        );
        findings.push(finding(FindingId::MoreQueues, queues, title, vec![remedy]));
    }
    if let Some(arfs) = helps(RemedyName::Arfs) {
        let title = "its receive work saturates one cpu, the data is read on other cpus, and the \
                     device can steer flows to them";
        let remedy = remedy(
            arfs,
            "let the device steer each flow to the queue nearest its reader (aRFS)",
            None,
        );
        findings.push(finding(FindingId::ArfsWouldHelp, arfs, title, vec![remedy]));
    }
    // Remedies in the device need no inter-processor interrupts, so propose RPS only if there are
    // none.
    let by_device = [RemedyName::MoreQueues, RemedyName::Arfs, RemedyName::SpreadInterrupts];
    if let Some(rps) =
        helps(RemedyName::Rps).filter(|_| !by_device.iter().any(|remedy| helps(*remedy).is_some()))
    {
        let cost = Some("an inter-processor interrupt for each batch of steered packets");
        let mut remedies = vec![remedy(rps, "move protocol work to the idle cpus (RPS)", cost)];
        let both = helps(RemedyName::RpsAndRfs);
        remedies.extend(both.map(|both| {
            remedy(
                both,
                "the same, and steer flows to their readers where possible (RPS and RFS)",
                cost,
            )
        }));
        findings.push(finding(
            FindingId::RpsWouldHelp,
            rps,
            "its receive work saturates one cpu while others are idle",
            remedies,
        ));
    }
    let waits = [
        (
            RemedyName::Coalescing,
            "let the device wait for more packets before it raises an interrupt",
        ),
        (
            RemedyName::IrqDeferral,
            "poll from a timer while packets arrive, instead of taking an interrupt for every few \
             packets",
        ),
    ];
    if let Some((verdict, what)) =
        waits.iter().find_map(|(name, what)| Some((helps(*name)?, *what)))
    {
        let title =
            "the cpus are saturated, and spend much of their time on interrupts of few packets";
        let remedy = remedy(verdict, what, Some("each packet may be delayed by the wait time"));
        findings.push(finding(FindingId::FewerInterrupts, verdict, title, vec![remedy]));
    }
    if let Some(threaded) = helps(RemedyName::ThreadedNapi) {
        let title = "its receive work saturates one cpu, and its interrupts cannot be moved";
        let cost = Some("a context switch for each poll, and no priority over applications");
        let remedy = remedy(
            threaded,
            "poll in kthreads, which the scheduler can run on idle cpus (threaded NAPI)",
            cost,
        );
        findings.push(finding(FindingId::ThreadedWouldHelp, threaded, title, vec![remedy]));
    }
    if let Some(rps) =
        with_claim(RemedyName::Rps, Claim::Hurt).filter(|rps| !rps.changes.is_empty())
    {
        let remedies = vec![remedy(rps, "switch RPS off", None)];
        findings.push(finding(
            FindingId::RpsHurts,
            rps,
            "RPS is on and costs more than it relieves",
            remedies,
        ));
    }
    findings.extend(with_claim(RemedyName::Rps, Claim::Hurt).and_then(would_hurt));
    findings
}

/// Warns against switching RPS on. `None` when RPS is on: then its changes switch it off.
fn would_hurt(rps: &RemedyVerdict) -> Option<Finding> {
    if !rps.changes.is_empty() {
        return None;
    }
    let what = "leave RPS off: no cpu has idle time for the work. Less work per packet, or more \
                cpus, would help";
    let remedies = vec![Remedy { not_when: None, ..remedy(rps, what, None) }];
    let title = "RPS would cost more than it relieves";
    Some(Finding {
        severity: Severity::Info,
        ..finding(FindingId::RpsWouldHurt, rps, title, remedies)
    })
}

fn finding(id: FindingId, verdict: &RemedyVerdict, title: &str, remedies: Vec<Remedy>) -> Finding {
    Finding {
        id,
        severity: Severity::Warning,
        subject: verdict.subject.clone(),
        title: title.to_owned(),
        evidence: verdict.reasons.clone(),
        remedies,
    }
}

fn remedy(verdict: &RemedyVerdict, what: &str, cost: Option<&str>) -> Remedy {
    Remedy {
        what: what.to_owned(),
        gain: verdict.gain.clone(),
        cost: cost.map(str::to_owned),
        not_when: verdict.not_when.clone(),
        changes: verdict.changes.clone(),
        interrupts_traffic: verdict
            .changes
            .iter()
            .any(|change| change.target.interrupts_traffic().is_some()),
    }
}

/// RFS is on, but steers only connected sockets, and nearly all bytes go to unconnected ones.
fn rfs_useless(look: &Look<'_>, netdev: &Netdev) -> Option<Finding> {
    let share = unsteerable(look, netdev).filter(|share| *share >= USELESS)?;
    let off = |queue: &netsilo_model::snapshot::netdev::RxQueue| {
        let old = queue.rps_flow_cnt.filter(|count| *count > 0)?;
        let knob =
            knobs::RpsFlowCnt { netdev: NetdevIdentity::from_netdev(netdev), queue: queue.index };
        Some(Change::new(knob, old, 0, "RFS off: it can steer almost none of the traffic"))
    };
    let bytes = Evidence::new(
        "bytes read by unconnected UDP sockets",
        Measure::Share(share),
        "eBPF (udp reads)",
    );
    Some(Finding {
        id: FindingId::RfsUseless,
        severity: Severity::Info,
        subject: Subject::Netdev(netdev.name.clone()),
        title: "RFS is on, but nearly all traffic is UDP that it cannot steer".into(),
        evidence: vec![bytes],
        remedies: vec![Remedy {
            what: "switch RFS off, or connect one socket per peer in the application".into(),
            gain: Gain::Unknown("the cost of a table lookup per packet was not measured".into()),
            cost: None,
            not_when: Some("connected sockets are read here at other times".into()),
            changes: netdev.rx_queues.iter().filter_map(off).collect(),
            interrupts_traffic: false,
        }],
    })
}
