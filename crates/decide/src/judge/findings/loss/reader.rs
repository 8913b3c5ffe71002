//! Findings on packets lost at full sockets, and on packets dropped by protocols.

mod buffer;
mod cause;
mod full;
mod group;
mod listen;
mod losers;
mod throttled;

use std::collections::{BTreeMap, BTreeSet};

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::namespaces::CountedNamespace;
use netsilo_model::drivers::loss_stage::LossStage;
use netsilo_model::snapshot::sockets::SocketKind;
use netsilo_model::snapshot::subject::{ProtocolPart, Subject};

use crate::judge::evidence::{Evidence, Measure, Remedy};
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;
use crate::judge::findings::loss::lost::{all_of, grown};
use crate::judge::findings::loss::reader::buffer::buffer;
use crate::judge::findings::loss::reader::full::Full;
use crate::judge::findings::loss::reader::listen::{answered, listen};
use crate::judge::findings::loss::reader::losers::Losers;
use crate::judge::ledger::Ledger;

/// Maximum number of sockets of a port that are listed.
const SOCKETS_NAMED: usize = 5;

pub(super) fn find(
    analysis: &Analysis<'_>,
    counted: &[CountedNamespace<'_>],
    ledger: &Ledger,
) -> Vec<Finding> {
    let of_kind = |kind, place| {
        let of = move |it| sockets(analysis, it, ledger, kind, place);
        counted.iter().flat_map(of)
    };
    let mut findings = Vec::new();
    findings.extend(protocols(analysis, ledger));
    findings.extend(of_kind(SocketKind::TcpListen, LossStage::Listen));
    findings.extend(counted.iter().filter_map(answered));
    findings.extend(throttled::without_loss(analysis));
    findings.extend(group::find(analysis));
    findings.extend(of_kind(SocketKind::Udp, LossStage::Socket));
    findings
}

/// One finding per port of a network namespace whose sockets lost packets, and one per protocol
/// whose sockets are not known.
fn sockets(
    analysis: &Analysis<'_>,
    namespace: &CountedNamespace<'_>,
    ledger: &Ledger,
    kind: SocketKind,
    place: LossStage,
) -> Vec<Finding> {
    let Some(stage) = ledger.stage(place).filter(|stage| stage.count > 0) else {
        return Vec::new();
    };
    let mut ports: BTreeMap<Subject, Losers<'_>> = BTreeMap::new();
    let of_kind = namespace.losing_sockets.into_iter().flatten().filter(|it| it.kind == kind);
    for socket in of_kind {
        let lost = namespace.dropped(socket).unwrap_or(0);
        if lost > 0 {
            let subject = namespace.subject(socket.port_subject());
            let losers = ports.entry(subject).or_default();
            losers.sockets.push((socket, lost));
            losers.sockets.sort_by_key(|(_, lost)| std::cmp::Reverse(*lost));
        }
    }
    let finding = |subject: &Subject, losers: &Losers<'_>, lost: u64| {
        let evidence = counters(ledger, place, subject, losers);
        let full = Full { analysis, namespace, subject, losers, lost, evidence };
        match kind {
            SocketKind::Udp => buffer(full),
            SocketKind::TcpListen => listen(full),
        }
    };
    let mut findings: Vec<Finding> =
        ports.iter().map(|(port, losers)| finding(port, losers, losers.lost())).collect();
    let sockets = namespace.losing_sockets.into_iter().flatten();
    let of_sockets: BTreeSet<Subject> =
        sockets.map(|socket| namespace.subject(socket.subject())).collect();
    for (subject, lost) in stage.by_subject_in(namespace.inode()) {
        // A protocol's count includes the losses of its sockets.
        let of_kind = kind == SocketKind::TcpListen || subject.is_udp();
        if !of_sockets.contains(subject) && (ports.is_empty() || !of_kind) {
            findings.push(finding(subject, &Losers::default(), lost));
        }
    }
    findings
}

/// The counters of a subject that grew, and the losses of each socket of the port.
fn counters(
    ledger: &Ledger,
    place: LossStage,
    subject: &Subject,
    losers: &Losers<'_>,
) -> Vec<Evidence> {
    let mut evidence = grown(ledger, place, subject);
    for (socket, lost) in losers.sockets.iter().take(SOCKETS_NAMED) {
        let source = if place == LossStage::Listen { "sock_diag" } else { "/proc/net/udp" };
        evidence.push(Evidence::new(
            format!("dropped by {}", socket.subject()),
            Measure::Count(*lost),
            source,
        ));
    }
    evidence
}

/// Packets dropped by IP, fragment reassembly or checksum validation.
fn protocols(analysis: &Analysis<'_>, ledger: &Ledger) -> Vec<Finding> {
    let Some(stage) = ledger.stage(LossStage::Protocol) else { return Vec::new() };
    let finding = |(subject, lost): (&Subject, u64)| Finding {
        id: FindingId::ProtocolDrops,
        severity: Severity::Critical,
        subject: subject.clone(),
        title: format!("{lost} packets were dropped"),
        evidence: grown(ledger, LossStage::Protocol, subject),
        remedies: vec![Remedy {
            what: advice(subject).into(),
            gain: all_of(analysis, lost, "all packets dropped there"),
            cost: None,
            not_when: None,
            changes: Vec::new(),
            interrupts_traffic: false,
        }],
    };
    stage.by_subject().into_iter().map(finding).collect()
}

const FIND_THE_REASON: &str =
    "find the address or route: netsilo check -v lists what the kernel dropped, with the reason";

fn advice(subject: &Subject) -> &'static str {
    let Subject::Protocol(protocol) = subject.part() else { return FIND_THE_REASON };
    match protocol {
        ProtocolPart::Ipv4Fragments | ProtocolPart::Ipv6Fragments => {
            "avoid fragments: use smaller datagrams or a smaller MTU at the sender; else allow \
             more memory and time for reassembly (net.ipv4.ipfrag_high_thresh, ipfrag_time)"
        }
        ProtocolPart::UdpChecksums | ProtocolPart::TcpChecksums => {
            "find what damages the packets: a cable, a NIC's offload, a middlebox"
        }
        ProtocolPart::MemoryReserve => {
            "the machine is short of memory: only packets that help to free memory are accepted"
        }
        ProtocolPart::Ipv4Headers | ProtocolPart::Ipv6Headers => {
            "find the sender of malformed packets, or of packets whose hop limit expires here"
        }
        _ => FIND_THE_REASON,
    }
}

#[cfg(test)]
mod tests;
