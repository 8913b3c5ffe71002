//! Findings on packets lost at full sockets, and on packets dropped by protocols.

use std::collections::{BTreeMap, BTreeSet};

use netsilo_model::change::Change;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::drivers::loss_stage::LossStage;
use netsilo_model::snapshot::sockets::{LosingSocket, SocketKind};
use netsilo_model::snapshot::subject::{ProtocolPart, Subject};

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;
use crate::judge::findings::loss::lost::{all_of, grown, sysctl, sysctl_number};
use crate::judge::ledger::Ledger;
use crate::judge::limits::{is_below_default, raised};

/// Maximum length of a listen queue.
const SOMAXCONN: &str = "net.core.somaxconn";

/// Maximum number of sockets of a port that are listed.
const SOCKETS_NAMED: usize = 5;

pub(super) fn find(analysis: &Analysis<'_>, ledger: &Ledger) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(protocols(analysis, ledger));
    findings.extend(sockets(analysis, ledger, SocketKind::TcpListen, LossStage::Listen));
    findings.extend(sockets(analysis, ledger, SocketKind::Udp, LossStage::Socket));
    findings
}

/// The sockets of one port that lost packets. Empty if only the total of the protocol is known.
#[derive(Default)]
struct Losers<'a> {
    /// Each socket with its lost packets, largest loss first.
    sockets: Vec<(&'a LosingSocket, u64)>,
}

impl Losers<'_> {
    fn lost(&self) -> u64 {
        self.sockets.iter().map(|(_, lost)| *lost).fold(0, u64::saturating_add)
    }

    fn worst(&self) -> Option<&LosingSocket> {
        self.sockets.first().map(|(socket, _)| *socket)
    }

    /// The process that reads the worst socket, or `its reader` if it is not known.
    fn reader(&self) -> String {
        let holder = self.worst().and_then(|socket| socket.holder.as_ref());
        holder.map_or_else(
            || "its reader".to_owned(),
            |holder| format!("{} (pid {})", holder.comm, holder.tgid),
        )
    }
}

/// One finding per port whose sockets lost packets, and one per protocol whose sockets are not
/// known.
fn sockets(
    analysis: &Analysis<'_>,
    ledger: &Ledger,
    kind: SocketKind,
    place: LossStage,
) -> Vec<Finding> {
    let Some(stage) = ledger.stage(place).filter(|stage| stage.count > 0) else {
        return Vec::new();
    };
    let mut ports: BTreeMap<Subject, Losers<'_>> = BTreeMap::new();
    let before = analysis.observation.before.losing_sockets.as_deref();
    for socket in analysis
        .observation
        .after
        .losing_sockets
        .iter()
        .flatten()
        .filter(|socket| socket.kind == kind)
    {
        let lost = before.map_or(0, |before| socket.dropped_since(before));
        if lost > 0 {
            let losers = ports.entry(socket.port_subject()).or_default();
            losers.sockets.push((socket, lost));
            losers.sockets.sort_by_key(|(_, lost)| std::cmp::Reverse(*lost));
        }
    }
    let finding = |subject: &Subject, losers: &Losers<'_>, lost: u64| {
        let evidence = counters(ledger, place, subject, losers);
        let full = Full { analysis, subject, losers, lost, evidence };
        match kind {
            SocketKind::Udp => buffer(full),
            SocketKind::TcpListen => listen(full),
        }
    };
    let mut findings: Vec<Finding> =
        ports.iter().map(|(port, losers)| finding(port, losers, losers.lost())).collect();
    let labels =
        analysis.observation.after.losing_sockets.iter().flatten().map(LosingSocket::subject);
    let of_sockets: BTreeSet<Subject> = labels.collect();
    for (subject, lost) in stage.by_subject() {
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

/// A full queue of sockets of a subject, and the evidence of its losses.
struct Full<'a> {
    analysis: &'a Analysis<'a>,
    subject: &'a Subject,
    losers: &'a Losers<'a>,
    lost: u64,
    evidence: Vec<Evidence>,
}

/// The words that distinguish a full receive buffer from a full accept queue.
struct Words {
    id: FindingId,
    title: String,
    /// How to make the reader faster.
    faster: String,
    /// What a faster reader gains.
    gain: Gain,
    /// How to make the queue longer.
    longer: String,
    /// What is not known about a longer queue.
    unknown: &'static str,
    /// What a longer queue costs.
    cost: &'static str,
    /// When a longer queue does not help.
    not_when: String,
    /// The changes that make the queue longer.
    changes: Vec<Change>,
    /// Whether a longer queue is the first remedy.
    longer_first: bool,
}

impl Full<'_> {
    /// The finding: a faster reader, or else a longer queue.
    fn finding(self, words: Words) -> Finding {
        let faster = Remedy {
            what: words.faster,
            gain: words.gain,
            cost: None,
            not_when: None,
            changes: Vec::new(),
            interrupts_traffic: false,
        };
        let longer = Remedy {
            what: words.longer,
            gain: Gain::Unknown(words.unknown.into()),
            cost: Some(words.cost.into()),
            not_when: Some(words.not_when),
            changes: words.changes,
            interrupts_traffic: false,
        };
        Finding {
            id: words.id,
            severity: Severity::Critical,
            subject: self.subject.clone(),
            title: words.title,
            evidence: self.evidence,
            remedies: if words.longer_first { vec![longer, faster] } else { vec![faster, longer] },
        }
    }
}

/// The receive buffer of a socket is full.
fn buffer(mut full: Full<'_>) -> Finding {
    let Full { analysis, subject, losers, lost, .. } = full;
    full.evidence.extend(losers.worst().map(|socket| {
        let queued = Measure::Bytes(socket.queued.into());
        Evidence::new("bytes waiting to be read", queued, "/proc/net/udp")
    }));
    let tcp = subject.is_tcp();
    let bounds: &[&str] =
        if tcp { &["net.ipv4.tcp_rmem"] } else { &["net.core.rmem_default", "net.core.rmem_max"] };
    for name in bounds {
        let value = analysis.observation.after.net.sysctls.get(*name);
        full.evidence.extend(value.map(|value| {
            Evidence::new("limit of the buffer", Measure::Text(value.replace('\t', " ")), *name)
        }));
    }
    let reader = losers.reader();
    let reason = format!("{subject} lost {lost} packets because its buffer was full");
    let default = sysctl_number(analysis, "net.core.rmem_default").filter(|_| !tcp);
    let max = sysctl_number(analysis, "net.core.rmem_max");
    let doubled = default.map(|default| raised("net.core.rmem_default", default));
    let changes = doubled.zip(max).map(|(doubled, max)| {
        let mut names = vec!["net.core.rmem_default"];
        names.extend((max < doubled).then_some("net.core.rmem_max"));
        names.into_iter().flat_map(|name| sysctl(analysis, name, doubled, &reason)).collect()
    });
    full.finding(Words {
        id: FindingId::SocketBufferOverflow,
        title: format!("{reader} reads too slowly: {lost} packets found its buffer full"),
        faster: format!(
            "make {reader} read faster: more threads or sockets (SO_REUSEPORT), batches \
             (recvmmsg), a cpu with idle time"
        ),
        gain: all_of(analysis, lost, "all packets that found the buffer full"),
        longer: match doubled {
            Some(doubled) => format!(
                "a default buffer of {doubled} bytes, for sockets opened from now on that do not \
                 set SO_RCVBUF"
            ),
            None => "a larger buffer: the application sets it (SO_RCVBUF) up to net.core.rmem_max"
                .into(),
        },
        unknown: "a larger buffer holds bursts; whether the packets arrived in bursts was not \
                  measured",
        cost: "more memory for each socket, and packets may wait longer",
        not_when: format!(
            "{reader} reads more slowly than packets arrive on average: then a buffer of any size \
             fills up. Open sockets keep their buffer size"
        ),
        changes: changes.unwrap_or_default(),
        longer_first: false,
    })
}

/// The accept queue of a listening socket is full.
fn listen(mut full: Full<'_>) -> Finding {
    let Full { analysis, subject, losers, lost, .. } = full;
    let socket = losers.worst();
    let bound = sysctl_number(analysis, SOMAXCONN);
    let limit = socket.and_then(|socket| socket.limit).map(u64::from);
    let shown = [
        ("connections waiting to be accepted", socket.map(|it| u64::from(it.queued)), "sock_diag"),
        ("limit of the accept queue", limit, "sock_diag"),
        ("maximum of that limit", bound, SOMAXCONN),
    ];
    full.evidence.extend(shown.into_iter().filter_map(|(quantity, value, source)| {
        Some(Evidence::new(quantity, Measure::Count(value?), source))
    }));
    let reader = losers.reader();
    let reason =
        format!("{subject} rejected {lost} connections; {reader} must call listen again after it");
    // The kernel cuts the length given to `listen` to the maximum. Without tcp_diag, either may be
    // the one that limits.
    let binding = bound.filter(|bound| limit.is_none_or(|limit| limit >= *bound));
    let larger = |bound| raised(SOMAXCONN, bound);
    full.finding(Words {
        id: FindingId::ListenOverflow,
        title: match binding {
            Some(bound) if is_below_default(SOMAXCONN, bound) => format!(
                "{reader} has a short accept queue ({bound}): {lost} connections found it full"
            ),
            _ => format!("{reader} accepts too slowly: {lost} connections found its queue full"),
        },
        faster: format!(
            "make {reader} accept faster: more threads, or several listeners (SO_REUSEPORT)"
        ),
        gain: Gain::AtMost {
            measure: Measure::PerSecond(analysis.per_s(lost)),
            of: "connections rejected".into(),
            basis: "all connections that found the queue full".into(),
        },
        longer: match binding {
            Some(bound) => format!(
                "allow {} waiting connections; {reader} must call listen again, \
                 with that backlog{}",
                larger(bound),
                if limit.is_none() { " (its current value was not read)" } else { "" }
            ),
            None => {
                format!(
                    "make {reader} call listen with a larger backlog{}",
                    match limit {
                        None => ", up to net.core.somaxconn",
                        Some(_) => ": the kernel would allow it",
                    }
                )
            }
        },
        unknown: "a longer queue holds bursts; whether the connections arrived in bursts was not \
                  measured",
        cost: "connections may wait longer before they are served",
        not_when: format!("{reader} accepts more slowly than connections arrive on average"),
        changes: binding
            .map_or_else(Vec::new, |bound| sysctl(analysis, SOMAXCONN, larger(bound), &reason)),
        // A limit below the kernel's default is the more likely cause.
        longer_first: binding.is_some_and(|bound| is_below_default(SOMAXCONN, bound)),
    })
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
    "find the address or route (dropwatch; the skb:kfree_skb tracepoint reports the reason)";

fn advice(subject: &Subject) -> &'static str {
    let Subject::Protocol(protocol) = subject else { return FIND_THE_REASON };
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
