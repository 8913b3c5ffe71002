//! The loss ledger: where packets were lost between the wire and the reader, stage by stage, in
//! the order of the receive path.
//!
//! Several counters (of the device, the driver, each queue) may count the same loss. The ledger
//! takes the largest of them for each subject, so the sum of a stage is a lower bound.

use std::collections::BTreeMap;

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::coverage::{StageCoverage, coverage, driver_counters};
use netsilo_model::derive::drop_class::DropClass;
use netsilo_model::drivers::counters;
use netsilo_model::drivers::loss_stage::LossStage;
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_model::snapshot::netfilter::NfQueue;
use netsilo_model::snapshot::sockets::SocketKind;
use netsilo_model::snapshot::subject::{ProtocolPart, Subject};
use serde::{Deserialize, Serialize};

use crate::judge::balance::{Balance, balance};
use crate::judge::dropped::{DropRow, dropped};

/// At most this many places of dropped packets are kept. The stages count all.
const MOST_ROWS: usize = 256;

/// All stages with known counters, in the order of the receive path.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Ledger {
    /// The stages.
    pub stages: Vec<StageLosses>,
    /// Where losses were counted, and where they were not.
    #[serde(default)]
    pub coverage: Vec<StageCoverage>,
    /// Packets that the kernel dropped, by reason and place, in all network namespaces; `None` if
    /// they were not counted. The stages include those that were lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<Vec<DropRow>>,
    /// The UDP packets of each network namespace, and how many of them are not accounted for;
    /// `None` if they were not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balance: Option<Vec<Balance>>,
    /// The next step for the stage that loses most; `None` if nothing is lost.
    pub next: Option<String>,
}

/// One stage of the receive path with its loss counters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StageLosses {
    /// The stage.
    pub stage: LossStage,
    /// Packets lost in the interval, a lower bound: what the counters say or the kernel's event,
    /// whichever is larger, and what was lost in other network namespaces. For a stage that loses
    /// nothing, the number of its events.
    pub count: u64,
    /// Packets that `skb:kfree_skb` saw lost here, in netsilo's own network namespace; `null` if
    /// it was not counted.
    #[serde(default)]
    pub by_event: Option<u64>,
    /// The same in all other network namespaces. No counter that netsilo reads includes them.
    #[serde(default)]
    pub elsewhere: u64,
    /// `count` per second.
    pub per_s: f64,
    /// The same since boot, or since the device or namespace was created.
    pub since_boot: u64,
    /// The counters that are not 0.
    pub lines: Vec<LossCounter>,
}

/// One counter of a stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LossCounter {
    /// The object to which it belongs (`eth0`, `cpu3`, `udp port 53 of dnsmasq (pid 812)`,
    /// `machine`).
    pub subject: Subject,
    /// Its name in the kernel or the driver.
    pub counter: String,
    /// Its growth in the interval; `None` if it was reset or did not exist before.
    pub count: Option<u64>,
    /// Its absolute value.
    pub since_boot: u64,
    /// Why it is not a loss, or which other counter includes it; `None` for a loss.
    pub aside: Option<String>,
    /// The file or interface it was read from.
    pub source: String,
}

impl Ledger {
    /// The entry of a stage; `None` if none of its counters is known.
    pub fn stage(&self, stage: LossStage) -> Option<&StageLosses> {
        self.stages.iter().find(|losses| losses.stage == stage)
    }

    /// Stages that lost packets in the interval.
    fn losing(&self) -> impl DoubleEndedIterator<Item = &StageLosses> {
        self.stages.iter().filter(|stage| stage.stage.loses() && stage.count > 0)
    }

    /// Whether packets were lost that no stage has, or may have been: those that nobody accounts
    /// for, and those that the kernel dropped. Connection tracking loses packets with the reason of
    /// a rule, and its counters are those of one namespace.
    pub fn may_have_lost(&self) -> bool {
        let tracked = self.coverage.iter().any(|it| it.stage == "conntrack" && it.is_counted());
        let dropped = self.dropped.iter().flatten().any(|row| {
            matches!(row.class, DropClass::Lost | DropClass::Unknown)
                || row.reason == "NETFILTER_DROP" && (row.netns.is_some() || !tracked)
        });
        dropped || self.balance.iter().flatten().any(Balance::has_gap)
    }

    /// The stage that lost most in the interval. Of two equal ones it is the earlier, because
    /// packets lost there never reach the later one.
    pub fn most_lost(&self) -> Option<&StageLosses> {
        self.losing().rev().max_by_key(|stage| stage.count)
    }

    /// The next step for the stage that lost most, with its share of all losses.
    fn next_step(&self) -> Option<String> {
        let stage = self.most_lost()?;
        let worst = stage.by_subject().into_iter().max_by_key(|(_, count)| *count);
        let step =
            stage.stage.next(&worst.map(|(subject, _)| subject.to_string()).unwrap_or_default());
        let all: f64 = self.losing().map(|stage| stage.count as f64).sum();
        let share = stage.count as f64 / all * 100.0;
        Some(match self.losing().count() {
            1 => step,
            // Never "100%" if several stages lost packets.
            _ => format!(
                "{step} ({:.0}% of all losses: {})",
                share.floor().min(99.0),
                stage.stage.label()
            ),
        })
    }
}

impl StageLosses {
    /// The counters of a subject that grew in the interval.
    pub fn grown_counters<'a>(
        &'a self,
        subject: &'a Subject,
    ) -> impl Iterator<Item = &'a LossCounter> {
        self.lines.iter().filter(move |line| {
            line.subject == *subject && line.count.is_some_and(|count| count > 0)
        })
    }

    /// Packets lost in the interval by the counters alone.
    pub fn by_counters(&self) -> u64 {
        self.by_subject().values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Packets that each subject lost in the interval, a lower bound.
    pub fn by_subject(&self) -> BTreeMap<&Subject, u64> {
        let mut subjects: BTreeMap<&Subject, u64> = BTreeMap::new();
        for line in self.lines.iter().filter(|line| line.aside.is_none()) {
            let count = subjects.entry(&line.subject).or_default();
            *count = (*count).max(line.count.unwrap_or(0));
        }
        subjects.retain(|_, count| *count > 0);
        subjects
    }
}

/// Builds the loss ledger of an observation.
pub fn ledger(analysis: &Analysis<'_>) -> Ledger {
    let mut book: BTreeMap<LossStage, Vec<LossCounter>> = BTreeMap::new();
    for netdev in &analysis.observation.after.netdevs {
        netdev_lines(analysis, netdev, &mut book);
    }
    cpu_lines(analysis, &mut book);
    protocol_lines(analysis, &mut book);
    packet_socket_lines(analysis, &mut book);
    netfilter_lines(analysis, &mut book);
    qdisc_lines(analysis, &mut book);
    socket_lines(analysis, &mut book);
    let (coverage, mut dropped) = (coverage(analysis), dropped(analysis));
    for stage in dropped.iter().flatten().filter_map(|row| row.stage) {
        book.entry(stage).or_default();
    }
    let stages = book.into_iter().map(|(place, lines)| stage(analysis, place, lines, &dropped));
    let stages = stages.collect();
    dropped.iter_mut().for_each(|rows| rows.truncate(MOST_ROWS));
    let mut ledger = Ledger { stages, coverage, dropped, balance: balance(analysis), next: None };
    ledger.next = ledger.next_step();
    ledger
}

fn stage(
    analysis: &Analysis<'_>,
    of: LossStage,
    mut lines: Vec<LossCounter>,
    dropped: &Option<Vec<DropRow>>,
) -> StageLosses {
    let largest = |count: &dyn Fn(&LossCounter) -> u64| {
        let mut subjects: BTreeMap<&Subject, u64> = BTreeMap::new();
        for line in lines.iter().filter(|line| line.aside.is_none() || !of.loses()) {
            let most = subjects.entry(&line.subject).or_default();
            *most = (*most).max(count(line));
        }
        subjects.values().fold(0, |sum: u64, count| sum.saturating_add(*count))
    };
    let (counted, since_boot) =
        (largest(&|line| line.count.unwrap_or(0)), largest(&|line| line.since_boot));
    let seen = |here: bool| {
        let rows = dropped.iter().flatten();
        // What is not known to be lost is shown, but not added to a loss.
        let rows = rows.filter(|row| row.class == DropClass::Lost && row.stage == Some(of));
        let rows = rows.filter(|row| row.netns.is_none() == here);
        rows.fold(0, |sum: u64, row| sum.saturating_add(row.packets))
    };
    let (by_event, elsewhere) = (dropped.as_ref().map(|_| seen(true)), seen(false));
    let by_event_of_all = by_event.unwrap_or(0).saturating_add(elsewhere);
    let count = if of == LossStage::PacketSocket {
        // Their counters are read in all network namespaces.
        counted.max(by_event_of_all)
    } else {
        counted.max(by_event.unwrap_or(0)).saturating_add(elsewhere)
    };
    lines.retain(|line| line.since_boot > 0);
    StageLosses {
        stage: of,
        count,
        by_event,
        elsewhere,
        per_s: analysis.per_s(count),
        since_boot,
        lines,
    }
}

/// The `statistics` of every netdev that count losses. Driver counters are in
/// [`netsilo_model::drivers::counters`].
const STATISTICS: &[(&str, LossStage, &str)] = &[
    ("rx_crc_errors", LossStage::Wire, ""),
    ("rx_frame_errors", LossStage::Wire, ""),
    ("rx_length_errors", LossStage::Wire, ""),
    ("rx_missed_errors", LossStage::Nic, ""),
    ("rx_over_errors", LossStage::Ring, ""),
    ("rx_fifo_errors", LossStage::Ring, ""),
    ("tx_dropped", LossStage::VirtualDevice, ""),
    (
        "rx_dropped",
        LossStage::Protocol,
        "by the backlog, by the driver, or without a protocol handler",
    ),
];

fn netdev_lines(
    analysis: &Analysis<'_>,
    netdev: &Netdev,
    book: &mut BTreeMap<LossStage, Vec<LossCounter>>,
) {
    let before = analysis.observation.before.netdevs.same(netdev);
    // Of a device with a ring, these are packets that the driver refused to send. The event names
    // the stage more exactly.
    let sends = netdev.device_path.is_none() && !analysis.observation.attribution.counts_drops();
    for (counter, place, aside) in STATISTICS {
        if *place == LossStage::VirtualDevice && !sends {
            continue;
        }
        let Some(value) = netdev.statistics.get(*counter) else { continue };
        let old = before.and_then(|before| before.statistics.get(*counter));
        book.entry(*place).or_default().push(LossCounter {
            subject: Subject::Netdev(netdev.name.clone()),
            counter: (*counter).to_owned(),
            count: old.and_then(|old| value.checked_sub(*old)),
            since_boot: *value,
            aside: non_empty(aside),
            source: format!("/sys/class/net/{}/statistics", netdev.name),
        });
    }
    let (old, new) = (before.map(driver_counters).unwrap_or_default(), driver_counters(netdev));
    for ((place, counter), (value, aside)) in new {
        let count = old.get(&(place, counter.clone())).and_then(|(old, _)| value.checked_sub(*old));
        let (subject, source) = (Subject::Netdev(netdev.name.clone()), "ethtool -S".to_owned());
        book.entry(place).or_default().push(LossCounter {
            subject,
            counter,
            count,
            since_boot: value,
            aside: non_empty(aside),
            source,
        });
    }
}

/// Packets per second that each rx queue of a netdev lost, of the queues whose losses the driver
/// counts. The largest of a queue's counters, as for the stages.
pub fn queue_drops(analysis: &Analysis<'_>, netdev: &Netdev) -> BTreeMap<u32, f64> {
    let mut drops = BTreeMap::new();
    let Some(before) = analysis.observation.before.netdevs.same(netdev) else { return drops };
    let stats = |netdev: &Netdev| -> BTreeMap<String, u64> {
        let stats = netdev.ethtool.as_ref().and_then(|ethtool| ethtool.stats.value());
        stats.into_iter().flatten().cloned().collect()
    };
    let (driver, old) = (netdev.driver.as_deref().unwrap_or_default(), stats(before));
    for (name, value) in stats(netdev) {
        let queue = counters::row(driver, &name).and_then(|row| row.queue(&name));
        let lost = old.get(&name).and_then(|old| value.checked_sub(*old));
        let (Some(queue), Some(lost)) = (queue, lost) else { continue };
        let most = drops.entry(queue).or_insert(0.0);
        *most = f64::max(*most, analysis.per_s(lost));
    }
    drops
}

fn non_empty(aside: &str) -> Option<String> {
    (!aside.is_empty()).then(|| aside.to_owned())
}

fn cpu_lines(analysis: &Analysis<'_>, book: &mut BTreeMap<LossStage, Vec<LossCounter>>) {
    let seconds = analysis.rates.elapsed.as_secs_f64();
    for (cpu, counters) in &analysis.observation.after.cpus {
        let Some(softnet) = counters.softnet else { continue };
        let rates =
            analysis.rates.cpus.get(cpu).and_then(|rates| rates.softnet).unwrap_or_default();
        let rows = [
            (LossStage::Backlog, "dropped", rates.dropped_per_s, softnet.dropped, ""),
            (
                LossStage::Backlog,
                "flow_limit_count",
                rates.flow_limit_per_s,
                softnet.flow_limit_count,
                "part of dropped",
            ),
            (
                LossStage::Squeeze,
                "time_squeeze",
                rates.time_squeeze_per_s,
                softnet.time_squeeze,
                "not a loss",
            ),
        ];
        for (place, counter, per_s, since_boot, aside) in rows {
            let lines = book.entry(place).or_default();
            let count = per_s.map(|rate| (rate * seconds).round() as u64);
            // Most CPUs have never counted anything: no line, and no loss.
            if since_boot == 0 && count.unwrap_or(0) == 0 {
                continue;
            }
            lines.push(LossCounter {
                subject: Subject::Cpu(*cpu),
                counter: counter.to_owned(),
                count,
                since_boot: since_boot.into(),
                aside: non_empty(aside),
                source: "/proc/net/softnet_stat".to_owned(),
            });
        }
    }
}

/// Protocol counters: name, stage, subject, and the reason if it is not a loss. Counters of one
/// subject overlap, so the ledger takes the largest.
const PROTOCOLS: &[(&str, LossStage, ProtocolPart, &str)] = &[
    ("IpInDiscards", LossStage::Protocol, ProtocolPart::Ipv4, ""),
    ("IpInHdrErrors", LossStage::Protocol, ProtocolPart::Ipv4Headers, ""),
    ("IpReasmFails", LossStage::Protocol, ProtocolPart::Ipv4Fragments, ""),
    ("Ip6InDiscards", LossStage::Protocol, ProtocolPart::Ipv6, ""),
    ("Ip6InHdrErrors", LossStage::Protocol, ProtocolPart::Ipv6Headers, ""),
    ("Ip6ReasmFails", LossStage::Protocol, ProtocolPart::Ipv6Fragments, ""),
    ("UdpInCsumErrors", LossStage::Protocol, ProtocolPart::UdpChecksums, ""),
    ("TcpInCsumErrors", LossStage::Protocol, ProtocolPart::TcpChecksums, ""),
    ("TcpExtPFMemallocDrop", LossStage::Protocol, ProtocolPart::MemoryReserve, ""),
    ("IpExtInNoRoutes", LossStage::Protocol, ProtocolPart::Ipv4Routes, ""),
    ("Ip6InNoRoutes", LossStage::Protocol, ProtocolPart::Ipv6Routes, ""),
    ("IpExtInTruncatedPkts", LossStage::Protocol, ProtocolPart::Ipv4, ""),
    ("Ip6InTruncatedPkts", LossStage::Protocol, ProtocolPart::Ipv6, ""),
    ("SctpInPktDiscards", LossStage::Protocol, ProtocolPart::Sctp, ""),
    ("XfrmInError", LossStage::Protocol, ProtocolPart::Ipsec, ""),
    ("XfrmInBufferError", LossStage::Protocol, ProtocolPart::Ipsec, ""),
    ("XfrmInNoStates", LossStage::Protocol, ProtocolPart::Ipsec, ""),
    ("XfrmInStateProtoError", LossStage::Protocol, ProtocolPart::Ipsec, ""),
    ("XfrmInStateSeqError", LossStage::Protocol, ProtocolPart::Ipsec, ""),
    (
        "XfrmInPolBlock",
        LossStage::Protocol,
        ProtocolPart::Ipsec,
        "rejected by a rule, not dropped because of a full queue",
    ),
    (
        "TcpExtIPReversePathFilter",
        LossStage::Protocol,
        ProtocolPart::RpFilter,
        "rejected by a rule, not dropped because of a full queue",
    ),
    ("UdpNoPorts", LossStage::Protocol, ProtocolPart::Udp, "no socket listens on the port"),
    ("TcpExtListenOverflows", LossStage::Listen, ProtocolPart::Tcp, ""),
    ("TcpExtListenDrops", LossStage::Listen, ProtocolPart::Tcp, ""),
    ("TcpExtTCPReqQFullDrop", LossStage::Listen, ProtocolPart::TcpRequests, "part of ListenDrops"),
    ("UdpRcvbufErrors", LossStage::Socket, ProtocolPart::Udp, ""),
    ("Udp6RcvbufErrors", LossStage::Socket, ProtocolPart::Udp6, ""),
    ("UdpMemErrors", LossStage::Socket, ProtocolPart::UdpMemory, ""),
    ("TcpExtTCPBacklogDrop", LossStage::Socket, ProtocolPart::TcpBacklog, ""),
    ("TcpExtTCPRcvQDrop", LossStage::Socket, ProtocolPart::Tcp, ""),
    ("TcpExtRcvPruned", LossStage::Socket, ProtocolPart::Tcp, ""),
    ("TcpExtTCPOFODrop", LossStage::Socket, ProtocolPart::TcpOutOfOrder, ""),
    (
        "TcpExtPruneCalled",
        LossStage::Socket,
        ProtocolPart::Tcp,
        "memory was reclaimed from the buffer",
    ),
];

fn protocol_lines(analysis: &Analysis<'_>, book: &mut BTreeMap<LossStage, Vec<LossCounter>>) {
    let seconds = analysis.rates.elapsed.as_secs_f64();
    for (counter, place, subject, aside) in PROTOCOLS {
        let Some(value) = analysis.observation.after.protocols.get(*counter) else { continue };
        let rate = analysis.rates.protocols.get(*counter);
        let file = match counter {
            name if name.starts_with("Xfrm") => "xfrm_stat",
            name if name.starts_with("Sctp") => "sctp/snmp",
            name if name.starts_with("TcpExt") || name.starts_with("IpExt") => "netstat",
            name if name.contains('6') => "snmp6",
            _ => "snmp",
        };
        book.entry(*place).or_default().push(LossCounter {
            subject: Subject::Protocol(*subject),
            counter: (*counter).to_owned(),
            count: rate.map(|rate| (rate * seconds).round() as u64),
            since_boot: *value,
            aside: non_empty(aside),
            source: format!("/proc/net/{file}"),
        });
    }
}

/// The packet and AF_XDP sockets of all network namespaces, summed by their programs.
fn packet_socket_lines(analysis: &Analysis<'_>, book: &mut BTreeMap<LossStage, Vec<LossCounter>>) {
    let attribution = &analysis.observation.attribution;
    if !attribution.counts_packet_sockets() {
        return;
    }
    let mut lost: BTreeMap<Subject, u64> = BTreeMap::new();
    for socket in &attribution.packet_sockets {
        let sum = lost.entry(socket.subject()).or_default();
        *sum = sum.saturating_add(socket.lost);
    }
    let line = |(subject, lost): (Subject, u64)| {
        let (counter, source) = match subject {
            Subject::XdpSockets(_) => ("rx_dropped + rx_ring_full", "xdp_sock (iter/task_file)"),
            _ => ("tp_drops", "packet_sock (iter/task_file)"),
        };
        LossCounter {
            subject,
            counter: counter.to_owned(),
            count: Some(lost),
            since_boot: lost,
            aside: None,
            source: source.to_owned(),
        }
    };
    book.entry(LossStage::PacketSocket).or_default().extend(lost.into_iter().map(line));
}

/// Connection tracking and the NFQUEUEs. Each packet is in one counter of a queue.
fn netfilter_lines(analysis: &Analysis<'_>, book: &mut BTreeMap<LossStage, Vec<LossCounter>>) {
    let Some(after) = &analysis.observation.after.netfilter else { return };
    let before = analysis.observation.before.netfilter.as_ref();
    let line = |subject, counter: &str, old: Option<u64>, new: u64, source: &str| LossCounter {
        subject,
        counter: counter.to_owned(),
        count: old.and_then(|old| new.checked_sub(old)),
        since_boot: new,
        aside: None,
        source: source.to_owned(),
    };
    if let Some(new) = &after.conntrack {
        let old = before.and_then(|before| before.conntrack);
        let counters = [
            ("drop", old.map(|old| old.drop), new.drop),
            ("insert_failed", old.map(|old| old.insert_failed), new.insert_failed),
        ];
        book.entry(LossStage::Conntrack).or_default().extend(counters.map(|(name, old, new)| {
            line(Subject::Protocol(ProtocolPart::Conntrack), name, old, new, "ctnetlink")
        }));
    }
    for new in &after.queues {
        let same = |old: &&NfQueue| (old.number, old.port) == (new.number, new.port);
        let old = before.and_then(|before| before.queues.iter().find(same));
        // A queue that was bound in the interval lost all its packets in it.
        let old = before.map(|_| old.map_or(0, NfQueue::lost));
        let (subject, source) = (Subject::NfQueue(new.number), "nfnetlink_queue");
        let counter = "queue_dropped + user_dropped";
        let queue = line(subject, counter, old, new.lost(), source);
        book.entry(LossStage::Nfqueue).or_default().push(queue);
    }
}

/// The disciplines of each netdev, summed by kind.
fn qdisc_lines(analysis: &Analysis<'_>, book: &mut BTreeMap<LossStage, Vec<LossCounter>>) {
    for netdev in &analysis.observation.after.netdevs {
        let leaves = analysis.leaf_qdiscs(netdev);
        let on_purpose = analysis
            .qdiscs(netdev)
            .iter()
            .any(|(_, qdisc)| qdisc.is_egress() && qdisc.drops_on_purpose());
        let mut kinds: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for (old, new) in leaves {
            let sums = kinds.entry(new.kind.as_str()).or_default();
            // 32 bits, which wrap
            sums.0 += u64::from(new.drops.wrapping_sub(old.drops));
            sums.1 += u64::from(new.drops);
        }
        let lines = kinds.into_iter().map(|(kind, (count, since_boot))| LossCounter {
            subject: Subject::Netdev(netdev.name.clone()),
            counter: format!("{kind} drops"),
            count: Some(count),
            since_boot,
            aside: on_purpose.then(|| "on purpose: it keeps to a rate or its queue short".into()),
            source: "tc -s qdisc".to_owned(),
        });
        book.entry(LossStage::Qdisc).or_default().extend(lines);
    }
}

fn socket_lines(analysis: &Analysis<'_>, book: &mut BTreeMap<LossStage, Vec<LossCounter>>) {
    let Some(sockets) = &analysis.observation.after.losing_sockets else { return };
    let before = analysis.observation.before.losing_sockets.as_deref();
    for socket in sockets {
        let (place, source, within) = match socket.kind {
            SocketKind::Udp => (LossStage::Socket, "/proc/net/udp", "UdpRcvbufErrors"),
            SocketKind::TcpListen => (LossStage::Listen, "sock_diag", "ListenDrops"),
        };
        let counted = book
            .get(&place)
            .is_some_and(|lines| lines.iter().any(|line| line.counter.ends_with(within)));
        book.entry(place).or_default().push(LossCounter {
            subject: socket.subject(),
            counter: "sk_drops".to_owned(),
            count: before.map(|before| socket.dropped_since(before)),
            since_boot: socket.drops,
            aside: counted.then(|| format!("part of {within}")),
            source: source.to_owned(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::machine::cpuset::CpuId;
    use netsilo_model::snapshot::observation::Observation;
    use netsilo_model::snapshot::sockets::LosingSocket;
    use netsilo_model::synthetic::scene::Scene;
    use netsilo_model::synthetic::scene::SceneNetdev;

    fn ledger_of(observation: &Observation) -> Ledger {
        ledger(&Analysis::new(observation, &Costs::default()))
    }

    fn host() -> Observation {
        let netdev =
            SceneNetdev { name: "eth0".into(), driver: "igb".into(), ..SceneNetdev::default() };
        Scene { netdevs: vec![netdev], ..Scene::default() }.observation()
    }

    #[test]
    fn several_counters_of_one_subject_count_one_loss() {
        let mut host = host();
        for (counter, lost) in
            [("rx_missed_errors", 0), ("rx_fifo_errors", 40), ("rx_over_errors", 50)]
        {
            host.before.netdevs[0].statistics.insert(counter.into(), 1000);
            host.after.netdevs[0].statistics.insert(counter.into(), 1000 + lost);
        }
        let ledger = ledger_of(&host);
        let ring = ledger.stage(LossStage::Ring).unwrap();
        assert_eq!((ring.count, ring.since_boot, ring.per_s), (50, 1050, 5.0));
        assert_eq!(ledger.most_lost().unwrap().stage, LossStage::Ring);
        assert!(ledger.next.unwrap().starts_with("eth0: find the cpus that poll it"));
    }

    #[test]
    fn the_next_step_is_for_the_stage_that_loses_most_not_for_the_first() {
        let mut host = host();
        for (counter, lost) in [("rx_crc_errors", 3), ("rx_fifo_errors", 997)] {
            host.before.netdevs[0].statistics.insert(counter.into(), 0);
            host.after.netdevs[0].statistics.insert(counter.into(), lost);
        }
        let ledger = ledger_of(&host);
        assert_eq!(ledger.most_lost().unwrap().stage, LossStage::Ring);
        let next = ledger.next.unwrap();
        assert!(next.starts_with("eth0: find the cpus that poll it"), "{next}");
        assert!(next.ends_with("(99% of all losses: ring: no free descriptor)"), "{next}");
        host.after.netdevs[0].statistics.insert("rx_crc_errors".into(), 997);
        assert_eq!(
            ledger_of(&host).most_lost().unwrap().stage,
            LossStage::Wire,
            "the earlier of two equal stages"
        );
    }

    #[test]
    fn a_squeeze_is_counted_but_not_as_a_loss() {
        let mut host = host();
        host.after.cpus.get_mut(&CpuId(0)).unwrap().softnet.as_mut().unwrap().time_squeeze = 70;
        let ledger = ledger_of(&host);
        assert_eq!(ledger.stage(LossStage::Squeeze).unwrap().count, 70);
        assert_eq!((ledger.most_lost(), &ledger.next), (None, &None));
    }

    #[test]
    fn a_sockets_drops_are_part_of_its_protocols_count() {
        let mut host = host();
        host.before.protocols = [("UdpRcvbufErrors".to_owned(), 5)].into();
        host.after.protocols = [("UdpRcvbufErrors".to_owned(), 35)].into();
        let socket = LosingSocket {
            kind: SocketKind::Udp,
            port: 53,
            inode: 7,
            drops: 29,
            queued: 0,
            limit: None,
            holder: None,
        };
        (host.before.losing_sockets, host.after.losing_sockets) =
            (Some(vec![]), Some(vec![socket]));
        let ledger = ledger_of(&host);
        let stage = ledger.stage(LossStage::Socket).unwrap();
        assert_eq!((stage.count, stage.lines.len()), (30, 2));
        assert_eq!(
            stage.grown_counters(&Subject::Port(SocketKind::Udp, 53)).next().unwrap().count,
            Some(29)
        );
    }

    #[test]
    fn a_counter_that_was_reset_has_no_count() {
        let mut host = host();
        host.before.netdevs[0].statistics.insert("rx_missed_errors".into(), 9);
        host.after.netdevs[0].statistics.insert("rx_missed_errors".into(), 2);
        let ledger = ledger_of(&host);
        assert_eq!((ledger.stage(LossStage::Nic).unwrap().count, ledger.most_lost()), (0, None));
    }
}
