//! Verdicts that are sure enough to be findings: what would help where something is full, and what
//! is on and hurts.

use std::collections::BTreeMap;

use super::{Evidence, Finding, FindingId, Gain, Measure, Remedy, Seen, Severity};
use crate::change::{Change, NetdevIdentity, knobs};
use crate::host::Netdev;
use crate::verdict::{Outcome, RemedyName, Verdict, unsteerable, verdicts};

/// From this share of bytes on that RFS cannot steer it is called useless.
const USELESS: f64 = 0.9;

pub(super) fn find(seen: &Seen<'_>) -> Vec<Finding> {
    let mut by_netdev: BTreeMap<String, Vec<Verdict>> = BTreeMap::new();
    for verdict in verdicts(seen) {
        by_netdev.entry(verdict.subject.clone()).or_default().push(verdict);
    }
    let mut findings: Vec<Finding> = by_netdev.into_values().flat_map(of_netdev).collect();
    findings.extend(seen.observation.after.netdevs.iter().filter_map(|netdev| rfs_useless(seen, netdev)));
    findings
}

fn of_netdev(verdicts: Vec<Verdict>) -> Vec<Finding> {
    let that = |remedy: RemedyName, outcome: Outcome| {
        verdicts.iter().find(|verdict| verdict.remedy == remedy && verdict.outcome == outcome)
    };
    let helps = |remedy| that(remedy, Outcome::Help);
    let mut findings = Vec::new();
    if let Some(queues) = helps(RemedyName::MoreQueues) {
        let title = "one cpu is full of its receive work, and it has queues that are not used";
        let remedy = remedy(queues, "more queues, so that more cpus poll", Some("traffic stops while the device is set up anew"));
        findings.push(finding(FindingId::MoreQueues, queues, title, vec![remedy]));
    }
    if let Some(arfs) = helps(RemedyName::Arfs) {
        let title = "one cpu is full of receive work that is read elsewhere, and the device can bring it there";
        let remedy = remedy(arfs, "let the device steer each flow to the queue nearest its reader (aRFS)", None);
        findings.push(finding(FindingId::ArfsWouldHelp, arfs, title, vec![remedy]));
    }
    // What the device can do costs no interrupts between cpus: RPS is for where it cannot.
    let by_device = [RemedyName::MoreQueues, RemedyName::Arfs, RemedyName::SpreadInterrupts];
    if let Some(rps) = helps(RemedyName::Rps).filter(|_| !by_device.iter().any(|remedy| helps(*remedy).is_some())) {
        let cost = Some("an interrupt between cpus for each batch that is handed on");
        let mut remedies = vec![remedy(rps, "hand protocol work on to the idle cpus (RPS)", cost)];
        let both = helps(RemedyName::RpsAndRfs);
        remedies.extend(both.map(|both| remedy(both, "the same, flows that can be steered to their readers (RPS and RFS)", cost)));
        findings.push(finding(FindingId::RpsWouldHelp, rps, "one cpu is full of its receive work while others are idle", remedies));
    }
    let waits = [
        (RemedyName::Coalescing, "let the device wait for more packets before it interrupts"),
        (RemedyName::IrqDeferral, "poll from a timer while packets come, instead of an interrupt for a few of them"),
    ];
    if let Some((verdict, what)) = waits.iter().find_map(|(name, what)| Some((helps(*name)?, *what))) {
        let title = "one cpu is full, and much of its time goes into interrupts that announce few packets each";
        let remedy = remedy(verdict, what, Some("each packet may come later by as long as is waited"));
        findings.push(finding(FindingId::FewerInterrupts, verdict, title, vec![remedy]));
    }
    if let Some(threaded) = helps(RemedyName::ThreadedNapi) {
        let title = "one cpu is full of its receive work, and its interrupts cannot be moved";
        let cost = Some("a switch of threads for each poll, and no priority over applications");
        let remedy = remedy(threaded, "poll in kthreads, which the scheduler moves to idle cpus (threaded NAPI)", cost);
        findings.push(finding(FindingId::ThreadedWouldHelp, threaded, title, vec![remedy]));
    }
    if let Some(rps) = that(RemedyName::Rps, Outcome::Hurt).filter(|rps| !rps.changes.is_empty()) {
        let remedies = vec![remedy(rps, "switch RPS off", None)];
        findings.push(finding(FindingId::RpsHurts, rps, "RPS is on and costs more than it relieves", remedies));
    }
    findings.extend(that(RemedyName::Rps, Outcome::Hurt).and_then(would_hurt));
    findings
}

/// A warning before anybody switches RPS on: what is on has a gain by switching it off.
fn would_hurt(rps: &Verdict) -> Option<Finding> {
    let Gain::Nothing(why) = &rps.bound else { return None };
    let what = "leave RPS off: there is no idle time to hand work to; less work for each packet, or more cpus, would help";
    let remedies = vec![Remedy { not_when: None, ..remedy(rps, what, None) }];
    let title = format!("RPS would cost more than it relieves: {why}");
    Some(Finding { severity: Severity::Info, ..finding(FindingId::RpsWouldHurt, rps, &title, remedies) })
}

fn finding(id: FindingId, verdict: &Verdict, title: &str, remedies: Vec<Remedy>) -> Finding {
    Finding {
        id,
        severity: Severity::Warning,
        subject: verdict.subject.clone(),
        title: title.to_owned(),
        evidence: verdict.reasons.clone(),
        remedies,
    }
}

fn remedy(verdict: &Verdict, what: &str, cost: Option<&str>) -> Remedy {
    Remedy {
        what: what.to_owned(),
        gain: verdict.bound.clone(),
        cost: cost.map(str::to_owned),
        not_when: verdict.not_when.clone(),
        changes: verdict.changes.clone(),
        interrupts_traffic: verdict.changes.iter().any(|change| change.target.interrupts_traffic().is_some()),
    }
}

/// RFS notes where connected sockets are read, and no others.
fn rfs_useless(seen: &Seen<'_>, netdev: &Netdev) -> Option<Finding> {
    let share = unsteerable(seen, netdev).filter(|share| *share >= USELESS)?;
    let off = |queue: &crate::host::RxQueue| {
        let old = queue.rps_flow_cnt.filter(|count| *count > 0)?;
        let knob = knobs::RpsFlowCnt { netdev: NetdevIdentity::of(netdev), queue: queue.index };
        Some(Change::new(knob, old, 0, "RFS off: it steers nothing that arrives here"))
    };
    let bytes = Evidence::new("bytes read by unconnected UDP sockets", Measure::Share(share), "eBPF (udp reads)");
    Some(Finding {
        id: FindingId::RfsUseless,
        severity: Severity::Info,
        subject: netdev.name.clone(),
        title: "RFS is on, and nearly all that arrives is UDP that it cannot steer".into(),
        evidence: vec![bytes],
        remedies: vec![Remedy {
            what: "switch RFS off, or connect a socket for each peer".into(),
            gain: Gain::Unknown("a look into a table for each packet was not measured".into()),
            cost: None,
            not_when: Some("at other times connected sockets are read here".into()),
            changes: netdev.rx_queues.iter().filter_map(off).collect(),
            interrupts_traffic: false,
        }],
    })
}
