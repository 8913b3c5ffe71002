//! Findings on packets that the kernel dropped where no other finding counts them: connection
//! tracking, NFQUEUE, next hops, virtual netdevs, other network namespaces.

use std::collections::BTreeMap;

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::drop_class::DropClass;
use netsilo_model::derive::namespaces::CountedNamespace;
use netsilo_model::drivers::loss_stage::LossStage;
use netsilo_model::snapshot::netfilter::{Conntrack, NfQueue};
use netsilo_model::snapshot::packet_sockets::CaptureKind;
use netsilo_model::snapshot::sockets::Holder;
use netsilo_model::snapshot::subject::{ProtocolPart, Subject};

use crate::judge::dropped::DropRow;
use crate::judge::evidence::{Evidence, Measure, Remedy};
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;
use crate::judge::findings::loss::full_tap;
use crate::judge::findings::loss::lost::{all_of, grown};
use crate::judge::ledger::{Ledger, StageLosses};

/// How many places are named as evidence.
const PLACES_NAMED: usize = 5;

/// Below this rate, packets that were damaged or had no next hop are a notice: every network has a
/// few of them.
const FEW_PER_S: f64 = 1.0;

pub(super) fn find(
    analysis: &Analysis<'_>,
    counted: &[CountedNamespace<'_>],
    ledger: &Ledger,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for namespace in counted {
        findings.extend(conntrack(analysis, namespace, ledger));
        findings.extend(queues(analysis, namespace, ledger));
    }
    findings.extend(packet_sockets(analysis, ledger));
    let mut places: BTreeMap<(LossStage, bool, Subject), Vec<&DropRow>> = BTreeMap::new();
    for row in ledger.dropped.iter().flatten() {
        let Some(stage) = row.stage else { continue };
        if !has_counters(ledger, stage, row.netns) {
            let known = row.class == DropClass::Lost;
            places.entry((stage, known, subject(row))).or_default().push(row);
        }
    }
    let events = places.into_iter().map(|((stage, known, subject), rows)| {
        let lost = rows.iter().fold(0, |sum: u64, row| sum.saturating_add(row.packets));
        Finding {
            id: FindingId::PacketsDropped,
            severity: severity(stage, known, analysis.per_s(lost)),
            title: if known {
                title(stage, lost)
            } else {
                format!("the kernel dropped {lost} packets and gave no reason")
            },
            evidence: rows.iter().take(PLACES_NAMED).map(|row| place(row)).collect(),
            remedies: vec![match (stage, &subject) {
                (LossStage::VirtualDevice, Subject::Netdev(netdev)) => {
                    let of_reader = full_tap::advice(analysis, netdev);
                    remedy(analysis, of_reader.unwrap_or_else(|| advice(stage).into()), lost)
                }
                _ => remedy(analysis, advice(stage), lost),
            }],
            subject,
        }
    });
    findings.extend(events);
    findings
}

/// Whether other findings count what was lost at a stage in a network namespace: 99% of it, because
/// counters and events are not read at one time.
fn has_counters(ledger: &Ledger, stage: LossStage, netns: Option<u32>) -> bool {
    let of_machine = stage.is_of_whole_machine();
    let rows = ledger.dropped.iter().flatten().filter(|row| {
        row.class == DropClass::Lost
            && row.stage == Some(stage)
            && (of_machine || row.netns == netns)
    });
    let events = rows.fold(0, |sum: u64, row| sum.saturating_add(row.packets));
    let netns = netns.filter(|_| !of_machine);
    let counted = |losses: &StageLosses| losses.by_counters(netns) as f64 >= 0.99 * events as f64;
    match stage {
        LossStage::Neighbour | LossStage::VirtualDevice | LossStage::Other => false,
        _ => ledger.stage(stage).is_some_and(counted),
    }
}

fn subject(row: &DropRow) -> Subject {
    match row.elsewhere() {
        Some(netns) => Subject::Netns(netns),
        None if row.netdev.is_empty() => Subject::Machine,
        None => Subject::Netdev(row.netdev.clone()),
    }
}

fn severity(stage: LossStage, known: bool, per_s: f64) -> Severity {
    let by_others = matches!(stage, LossStage::Protocol | LossStage::Neighbour | LossStage::Other);
    match (known, by_others) {
        (false, _) => Severity::Info,
        (true, true) if per_s < FEW_PER_S => Severity::Info,
        (true, true) => Severity::Warning,
        (true, false) => Severity::Critical,
    }
}

/// `NEIGH_FAILED in arp_error_report, eth0, udp 53, of dns.service`.
fn place(row: &DropRow) -> Evidence {
    let port = row.port.map_or_else(String::new, |port| format!(" {port}"));
    let by = if row.function.is_empty() { "a hidden function" } else { &row.function };
    let reason = if row.reason.is_empty() { "no reason" } else { &row.reason };
    let protocol = format!("{}{port}", row.protocol);
    let owner = row.owner().map_or_else(String::new, |owner| format!("of {owner}"));
    let parts = [format!("{reason} in {by}"), row.netdev.clone(), protocol, owner];
    let known: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    Evidence::new(known.join(", "), Measure::Count(row.packets), "skb:kfree_skb")
}

fn title(stage: LossStage, lost: u64) -> String {
    match stage {
        LossStage::PacketSocket => format!("{lost} packets found a packet socket full"),
        LossStage::Conntrack => format!("connection tracking lost {lost} packets"),
        LossStage::Nfqueue => format!("{lost} packets found an NFQUEUE full"),
        LossStage::Neighbour => format!("{lost} packets had no next hop that answers"),
        LossStage::Qdisc => format!("{lost} packets found a queueing discipline full"),
        LossStage::VirtualDevice => {
            format!("{lost} packets found its queue full, or no program reads it")
        }
        LossStage::Backlog => format!("{lost} packets found the backlog of a cpu full"),
        LossStage::Listen => format!("{lost} connections found a listen queue full"),
        LossStage::Socket => format!("{lost} packets found the buffer of a socket full"),
        LossStage::Protocol => format!("{lost} packets were damaged or could not be sent on"),
        LossStage::Wire
        | LossStage::Nic
        | LossStage::Ring
        | LossStage::Xdp
        | LossStage::Squeeze
        | LossStage::Other => format!("the kernel dropped {lost} packets"),
    }
}

fn advice(stage: LossStage) -> &'static str {
    match stage {
        LossStage::PacketSocket => {
            "give the ring more blocks, or the program more threads (PACKET_FANOUT)"
        }
        LossStage::Neighbour => {
            "find out why the next hop does not answer (ip neigh: FAILED, INCOMPLETE): it is down, \
             its address is wrong, or the table is full (net.ipv4.neigh.default.gc_thresh3)"
        }
        LossStage::Qdisc => {
            "send no faster than the link (fq or fq_codel), or make the queue longer (tc qdisc, \
             txqueuelen). A netdev that is not connected (a tap that no program has opened) drops \
             everything here"
        }
        LossStage::VirtualDevice => {
            "find out whether its program or virtual machine runs and reads; against bursts, make \
             its queue longer (tun, tap: ip link set DEV txqueuelen N; GRO cells of a tunnel: \
             net.core.netdev_max_backlog; multicasts of macvlans: bcqueuelen; veth: 256, fixed)"
        }
        LossStage::Backlog => "see netsilo explain backlog-overflow",
        LossStage::Listen => "see netsilo explain listen-overflow, in that network namespace",
        LossStage::Socket => {
            "see netsilo explain socket-buffer-overflow, in that network namespace (nsenter -t PID \
             -n netsilo check)"
        }
        LossStage::Protocol
        | LossStage::Wire
        | LossStage::Nic
        | LossStage::Ring
        | LossStage::Xdp
        | LossStage::Conntrack
        | LossStage::Nfqueue
        | LossStage::Squeeze
        | LossStage::Other => "find the sender by the reason, the netdev and the port",
    }
}

fn remedy(analysis: &Analysis<'_>, what: impl Into<String>, lost: u64) -> Remedy {
    Remedy::new(what, all_of(analysis, lost, "all packets dropped there"))
}

/// Connection tracking drops packets that it cannot track, with the reason of a rule.
fn conntrack(
    analysis: &Analysis<'_>,
    namespace: &CountedNamespace<'_>,
    ledger: &Ledger,
) -> Vec<Finding> {
    let subject = namespace.subject(Subject::Protocol(ProtocolPart::Conntrack));
    let lost =
        ledger.stage(LossStage::Conntrack).and_then(|it| it.by_subject().get(&subject).copied());
    let Some(now) = namespace.netfilter.and_then(|it| it.conntrack) else {
        return Vec::new();
    };
    let finding = |lost| {
        let mut evidence = grown(ledger, LossStage::Conntrack, &subject);
        let shown = [("entries now", now.entries), ("the most entries", now.max)];
        evidence.extend(shown.into_iter().filter_map(|(name, value)| {
            Some(Evidence::new(name, Measure::Count(value?), "nf_conntrack"))
        }));
        let (cause, what) = if is_full(now) {
            let more = now.max.unwrap_or(0).saturating_mul(2);
            (
                "its table is full",
                format!(
                    "allow more entries (sysctl net.netfilter.nf_conntrack_max={more}, about 320 \
                     bytes each), shorten the timeouts (net.netfilter.nf_conntrack_*_timeout), or \
                     do not track what needs no tracking (nft: notrack)"
                ),
            )
        } else {
            (
                "no entry could be inserted, and its table is not full",
                "give address translation more ports or addresses (the range after --to-ports or \
                 masquerade to :PORT-PORT), or do not track what needs no tracking (nft: notrack); \
                 a few are two packets of one new connection on two cpus"
                    .to_owned(),
            )
        };
        Finding {
            id: FindingId::PacketsDropped,
            severity: Severity::Critical,
            subject: subject.clone(),
            title: format!("connection tracking lost {lost} packets: {cause}"),
            evidence,
            remedies: vec![remedy(analysis, what, lost)],
        }
    };
    lost.into_iter().map(finding).collect()
}

/// Whether the table is full or was a moment ago.
fn is_full(now: Conntrack) -> bool {
    let share = |(entries, max): (u64, u64)| entries as f64 >= 0.95 * max as f64;
    now.entries.zip(now.max).is_some_and(share)
}

/// The NFQUEUEs that lost packets, each with its program.
fn queues(
    analysis: &Analysis<'_>,
    namespace: &CountedNamespace<'_>,
    ledger: &Ledger,
) -> Vec<Finding> {
    let Some(stage) = ledger.stage(LossStage::Nfqueue) else { return Vec::new() };
    let known = namespace.netfilter.into_iter().flat_map(|it| &it.queues);
    let finding = |queue: &NfQueue| {
        let subject = namespace.subject(Subject::NfQueue(queue.number));
        let lost = stage.by_subject().get(&subject).copied()?;
        let reader = match &queue.reader {
            Some(reader) => format!("{} (pid {})", reader.comm, reader.tgid),
            None => format!("its program (netlink port {})", queue.port),
        };
        let mut evidence = grown(ledger, LossStage::Nfqueue, &subject);
        let waiting = Measure::Count(queue.waiting.into());
        evidence.push(Evidence::new("packets that wait for a verdict", waiting, "nfnetlink_queue"));
        Some(Finding {
            id: FindingId::PacketsDropped,
            severity: Severity::Critical,
            title: format!("{reader} gives its verdicts too slowly: {lost} packets lost"),
            evidence,
            remedies: vec![
                remedy(
                    analysis,
                    format!(
                        "make {reader} faster: several queues with a thread each (--queue-balance, \
                         --queue-cpu-fanout), verdicts in batches, only the first packets of a flow"
                    ),
                    lost,
                ),
                remedy(
                    analysis,
                    "let the program accept what finds its queue full (NFQA_CFG_F_FAIL_OPEN; \
                     bypass in the rule helps only while no program is bound), or give it a longer \
                     queue and a larger netlink buffer for bursts",
                    lost,
                ),
            ],
            subject,
        })
    };
    known.filter_map(finding).collect()
}

/// The programs whose packet sockets lost packets.
fn packet_sockets(analysis: &Analysis<'_>, ledger: &Ledger) -> Vec<Finding> {
    let Some(stage) = ledger.stage(LossStage::PacketSocket) else { return Vec::new() };
    let finding = |(subject, lost): (&Subject, u64)| {
        let (Subject::PacketSockets(holder) | Subject::XdpSockets(holder)) = subject else {
            return None;
        };
        let sockets = &analysis.observation.attribution.packet_sockets;
        let own = || sockets.iter().filter(|it| it.subject() == *subject);
        let taken = own().fold(0, |sum: u64, it| sum.saturating_add(it.packets));
        let mut evidence = grown(ledger, LossStage::PacketSocket, subject);
        let source = evidence.first().map_or_else(String::new, |it| it.source.clone());
        evidence.push(Evidence::new("packets that it took", Measure::Count(taken), source));
        let loses = |kind| own().any(|it| it.kind == kind && it.lost > 0);
        let (place, threads, room) = if loses(CaptureKind::Xdp) {
            (
                "ring",
                "more threads, each with the socket of another rx queue",
                "more descriptors (XDP_RX_RING, XDP_UMEM_FILL_RING)",
            )
        } else if loses(CaptureKind::Ring) {
            (
                "ring",
                "more threads, each with its own socket (PACKET_FANOUT)",
                "more blocks (PACKET_RX_RING)",
            )
        } else {
            (
                "buffer",
                "more threads, each with its own socket (PACKET_FANOUT)",
                "a larger buffer (SO_RCVBUF, net.core.rmem_max), or a ring (PACKET_RX_RING)",
            )
        };
        let Holder { tgid, comm } = holder;
        Some(Finding {
            id: FindingId::PacketsDropped,
            severity: Severity::Critical,
            title: format!(
                "{comm} (pid {tgid}) captures too slowly: {lost} packets found its {place} full"
            ),
            evidence,
            remedies: vec![
                remedy(analysis, threads, lost),
                remedy(analysis, "capture less: a filter in the kernel, or a snap length", lost),
                remedy(analysis, format!("against bursts only: {room}"), lost),
            ],
            subject: subject.clone(),
        })
    };
    stage.by_subject().into_iter().filter_map(finding).collect()
}
