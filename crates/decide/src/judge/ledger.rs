//! The loss ledger: where packets were lost between the wire and the reader, stage by stage, in
//! the order of the receive path.
//!
//! Several counters (of the device, the driver, each queue) may count the same loss. The ledger
//! takes the largest of them for each subject, so the sum of a stage is a lower bound.

use std::collections::BTreeMap;

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::coverage::{OTHER_NAMESPACES, StageCoverage, coverage, driver_counters};
use netsilo_model::derive::drop_class::DropClass;
use netsilo_model::derive::namespaces::{CountedNamespace, counted};
use netsilo_model::drivers::counters;
use netsilo_model::drivers::loss_stage::LossStage;
use netsilo_model::drivers::name::DriverName;
use netsilo_model::drivers::protocol_losses::PROTOCOLS;
use netsilo_model::drivers::software::SoftwareNetdev;
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_model::snapshot::sockets::SocketKind;
use netsilo_model::snapshot::subject::{ProtocolPart, Subject};
use serde::{Deserialize, Serialize};

use crate::judge::balance::{Balance, balance};
use crate::judge::dropped::{DropRow, dropped};
use crate::judge::namespaces::{NamespaceLine, namespaces};

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
    /// The packets for UDP, raw and packet sockets of each network namespace, and how many of them
    /// are not accounted for; `None` if they were not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balance: Option<Vec<Balance>>,
    /// The other network namespaces; `None` if they were not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<Vec<NamespaceLine>>,
    /// The next step for the stage that loses most; `None` if nothing is lost.
    pub next: Option<String>,
}

/// One stage of the receive path with its loss counters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StageLosses {
    /// The stage.
    pub stage: LossStage,
    /// Packets lost in the interval, a lower bound: in each network namespace what the counters say
    /// or the kernel's event, whichever is larger. For a stage that loses nothing, the number of
    /// its events.
    pub count: u64,
    /// Packets that `skb:kfree_skb` saw lost here, in netsilo's own network namespace; `null` if
    /// it was not counted.
    #[serde(default)]
    pub by_event: Option<u64>,
    /// Packets lost in other network namespaces, in each what its counters say or the event,
    /// whichever is larger. `count` includes them.
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
    /// Inode number of the network namespace, if it is another than netsilo's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<u32>,
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

    /// Another network namespace.
    fn namespace(&self, inode: u32) -> Option<&NamespaceLine> {
        self.namespaces.iter().flatten().find(|it| it.inode == inode)
    }

    /// Stages that lost packets in the interval.
    fn losing(&self) -> impl DoubleEndedIterator<Item = &StageLosses> {
        self.stages.iter().filter(|stage| stage.stage.loses() && stage.count > 0)
    }

    /// Whether packets were lost that no stage has, or may have been: those that nobody accounts
    /// for, that the kernel dropped, and those of namespaces that were not counted. Connection
    /// tracking loses packets with the reason of a rule; its counters say how many.
    pub fn may_have_lost(&self) -> bool {
        let own = self.coverage.iter().any(|it| it.stage == "conntrack" && it.is_counted());
        let is_tracked = |row: &DropRow| match row.netns {
            Some(netns) => self.namespace(netns).is_some_and(|it| it.not_counted.is_none()),
            None => own,
        };
        let dropped = self.dropped.iter().flatten().any(|row| {
            matches!(row.class, DropClass::Lost | DropClass::Unknown)
                || row.reason == "NETFILTER_DROP" && !is_tracked(row)
        });
        let others = self.coverage.iter().find(|it| it.stage == OTHER_NAMESPACES);
        let unseen = self.namespaces.is_some() && others.is_some_and(|it| !it.is_counted());
        dropped || unseen || self.balance.iter().flatten().any(Balance::has_gap)
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
        let rows = || self.dropped.iter().flatten().filter(|row| row.stage == Some(stage.stage));
        let by_event = || rows().find_map(DropRow::elsewhere).map(Subject::Netns);
        let worst = worst.map(|(subject, _)| subject.clone()).or_else(by_event);
        let step = match (stage.stage, worst) {
            (LossStage::Nic | LossStage::Ring, Some(worst @ Subject::InNetns { .. })) => {
                format!("{worst}: run netsilo check in that network namespace (nsenter -t PID -n)")
            }
            (stage, worst) => stage.next(&worst.unwrap_or_default().to_string()),
        };
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

    /// Packets lost in the interval by the counters of a network namespace alone; `None`: netsilo's
    /// own.
    pub fn by_counters(&self, netns: Option<u32>) -> u64 {
        self.by_subject_in(netns).values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Packets that each subject of a network namespace lost in the interval, a lower bound.
    pub fn by_subject_in(&self, netns: Option<u32>) -> BTreeMap<&Subject, u64> {
        by_subject(self.lines.iter().filter(|line| line.netns == netns))
    }

    /// Packets that each subject lost in the interval, a lower bound.
    pub fn by_subject(&self) -> BTreeMap<&Subject, u64> {
        by_subject(self.lines.iter())
    }
}

fn by_subject<'a>(lines: impl Iterator<Item = &'a LossCounter>) -> BTreeMap<&'a Subject, u64> {
    let mut subjects: BTreeMap<&Subject, u64> = BTreeMap::new();
    for line in lines.filter(|line| line.aside.is_none()) {
        let count = subjects.entry(&line.subject).or_default();
        *count = (*count).max(line.count.unwrap_or(0));
    }
    subjects.retain(|_, count| *count > 0);
    subjects
}

/// Builds the loss ledger of an observation.
pub fn ledger(analysis: &Analysis<'_>) -> Ledger {
    let counted = counted(analysis);
    let mut book: BTreeMap<LossStage, Vec<LossCounter>> = BTreeMap::new();
    for namespace in &counted {
        for netdev in namespace.netdevs.iter() {
            netdev_lines(analysis, namespace, netdev, &mut book);
        }
    }
    cpu_lines(analysis, &mut book);
    counted.iter().for_each(|namespace| protocol_lines(namespace, &mut book));
    packet_socket_lines(analysis, &mut book);
    counted.iter().for_each(|namespace| netfilter_lines(namespace, &mut book));
    qdisc_lines(analysis, &mut book);
    counted.iter().for_each(|namespace| socket_lines(namespace, &mut book));
    let (coverage, mut dropped) = (coverage(analysis), dropped(analysis));
    for stage in dropped.iter().flatten().filter_map(|row| row.stage) {
        book.entry(stage).or_default();
    }
    let mut lost = BTreeMap::new();
    let stage = |(place, lines)| stage(analysis, place, lines, &dropped, &mut lost);
    let stages = book.into_iter().map(stage).collect();
    let namespaces = namespaces(analysis, &lost);
    dropped.iter_mut().for_each(|rows| rows.truncate(MOST_ROWS));
    let balance = balance(analysis);
    let mut ledger = Ledger { stages, coverage, dropped, balance, namespaces, next: None };
    ledger.next = ledger.next_step();
    ledger
}

/// What the counters of a network namespace say, and what the event saw there.
#[derive(Default)]
struct Lost<'a> {
    by_counters: BTreeMap<&'a Subject, u64>,
    by_event: u64,
}

impl Lost<'_> {
    fn counted(&self) -> u64 {
        self.by_counters.values().fold(0, |sum: u64, count| sum.saturating_add(*count))
    }

    fn most(&self) -> u64 {
        self.counted().max(self.by_event)
    }
}

/// The losses of a stage. Adds those of other network namespaces to `lost_in`.
fn stage(
    analysis: &Analysis<'_>,
    of: LossStage,
    mut lines: Vec<LossCounter>,
    dropped: &Option<Vec<DropRow>>,
    lost_in: &mut BTreeMap<u32, u64>,
) -> StageLosses {
    let mut lost: BTreeMap<Option<u32>, Lost<'_>> = BTreeMap::new();
    let mut since_boot: BTreeMap<&Subject, u64> = BTreeMap::new();
    for line in lines.iter().filter(|line| line.aside.is_none() || !of.loses()) {
        let of_netns = &mut lost.entry(line.netns).or_default().by_counters;
        let most = of_netns.entry(&line.subject).or_default();
        *most = (*most).max(line.count.unwrap_or(0));
        let most = since_boot.entry(&line.subject).or_default();
        *most = (*most).max(line.since_boot);
    }
    // What is not known to be lost is shown, but not added to a loss.
    let is_lost = |row: &&DropRow| row.class == DropClass::Lost && row.stage == Some(of);
    for row in dropped.iter().flatten().filter(is_lost) {
        let sum = &mut lost.entry(row.netns).or_default().by_event;
        *sum = sum.saturating_add(row.packets);
    }
    let since_boot = since_boot.values().fold(0, |sum: u64, count| sum.saturating_add(*count));
    let own = lost.remove(&None).unwrap_or_default();
    let mut elsewhere: u64 = 0;
    for (netns, lost) in lost.iter().filter_map(|(netns, lost)| Some(((*netns)?, lost))) {
        elsewhere = elsewhere.saturating_add(lost.most());
        if of.loses() {
            let sum = lost_in.entry(netns).or_default();
            *sum = sum.saturating_add(lost.most());
        }
    }
    let count = if of.is_of_whole_machine() {
        own.counted().max(own.by_event.saturating_add(elsewhere))
    } else {
        own.most().saturating_add(elsewhere)
    };
    let by_event = dropped.as_ref().map(|_| own.by_event);
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
    namespace: &CountedNamespace<'_>,
    netdev: &Netdev,
    book: &mut BTreeMap<LossStage, Vec<LossCounter>>,
) {
    let before = namespace.netdev_before(netdev);
    let subject = || namespace.subject(Subject::Netdev(netdev.name.clone()));
    // Of a device with a ring, these are packets that the driver refused to send. The event names
    // the stage more exactly.
    let sends = netdev.device_path.is_none() && !analysis.observation.attribution.counts_drops();
    let kind = SoftwareNetdev::from_netdev(netdev);
    for (counter, place, aside) in STATISTICS {
        let of_kind = kind.filter(|_| *counter == "rx_dropped").map(|kind| kind.rx_dropped());
        let (place, aside) = &of_kind.unwrap_or((*place, aside));
        if *place == LossStage::VirtualDevice && !sends {
            continue;
        }
        let Some(value) = netdev.statistics.get(*counter) else { continue };
        if is_unused(namespace, *value) {
            continue;
        }
        let old = before.and_then(|before| before.statistics.get(*counter));
        book.entry(*place).or_default().push(LossCounter {
            subject: subject(),
            netns: namespace.inode(),
            counter: (*counter).to_owned(),
            count: old.and_then(|old| value.checked_sub(*old)),
            since_boot: *value,
            aside: non_empty(aside),
            source: match namespace.other {
                Some(_) => "RTM_GETLINK".to_owned(),
                None => format!("/sys/class/net/{}/statistics", netdev.name),
            },
        });
    }
    let (old, new) = (before.map(driver_counters).unwrap_or_default(), driver_counters(netdev));
    for ((place, counter), (value, aside)) in new {
        let count = old.get(&(place, counter.clone())).and_then(|(old, _)| value.checked_sub(*old));
        book.entry(place).or_default().push(LossCounter {
            subject: subject(),
            netns: namespace.inode(),
            counter,
            count,
            since_boot: value,
            aside: non_empty(aside),
            source: "ethtool -S".to_owned(),
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
    let (driver, old) = (DriverName::of(netdev), stats(before));
    for (name, value) in stats(netdev) {
        let queue = counters::row(driver, &name).and_then(|row| row.queue(&name));
        let lost = old.get(&name).and_then(|old| value.checked_sub(*old));
        let (Some(queue), Some(lost)) = (queue, lost) else { continue };
        let most = drops.entry(queue).or_insert(0.0);
        *most = f64::max(*most, analysis.per_s(lost));
    }
    drops
}

/// Whether a counter needs no line: those of a thousand namespaces that never counted anything.
fn is_unused(namespace: &CountedNamespace<'_>, value: u64) -> bool {
    value == 0 && namespace.other.is_some()
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
                netns: None,
                counter: counter.to_owned(),
                count,
                since_boot: since_boot.into(),
                aside: non_empty(aside),
                source: "/proc/net/softnet_stat".to_owned(),
            });
        }
    }
}

fn protocol_lines(
    namespace: &CountedNamespace<'_>,
    book: &mut BTreeMap<LossStage, Vec<LossCounter>>,
) {
    for (counter, place, subject, aside) in PROTOCOLS {
        let Some(value) = namespace.protocols.get(*counter) else { continue };
        if is_unused(namespace, *value) {
            continue;
        }
        let file = match counter {
            name if name.starts_with("Xfrm") => "xfrm_stat",
            name if name.starts_with("Sctp") => "sctp/snmp",
            name if name.starts_with("TcpExt") || name.starts_with("IpExt") => "netstat",
            name if name.contains('6') => "snmp6",
            _ => "snmp",
        };
        book.entry(*place).or_default().push(LossCounter {
            subject: namespace.subject(Subject::Protocol(*subject)),
            netns: namespace.inode(),
            counter: (*counter).to_owned(),
            count: namespace.growth(counter),
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
            netns: None,
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
fn netfilter_lines(
    namespace: &CountedNamespace<'_>,
    book: &mut BTreeMap<LossStage, Vec<LossCounter>>,
) {
    let Some(after) = namespace.netfilter else { return };
    let line = |subject, counter: &str, old: Option<u64>, new: u64, source: &str| LossCounter {
        subject: namespace.subject(subject),
        netns: namespace.inode(),
        counter: counter.to_owned(),
        count: old.and_then(|old| new.checked_sub(old)),
        since_boot: new,
        aside: None,
        source: source.to_owned(),
    };
    if let Some(new) = &after.conntrack {
        let old = namespace.conntrack_before();
        let counters = [
            ("drop", old.map(|old| old.drop), new.drop),
            ("insert_failed", old.map(|old| old.insert_failed), new.insert_failed),
        ];
        book.entry(LossStage::Conntrack).or_default().extend(counters.map(|(name, old, new)| {
            line(Subject::Protocol(ProtocolPart::Conntrack), name, old, new, "ctnetlink")
        }));
    }
    for new in &after.queues {
        let (subject, source) = (Subject::NfQueue(new.number), "nfnetlink_queue");
        let (counter, old) = ("queue_dropped + user_dropped", namespace.queue_lost_before(new));
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
            netns: None,
            counter: format!("{kind} drops"),
            count: Some(count),
            since_boot,
            aside: on_purpose.then(|| "on purpose: it keeps to a rate or its queue short".into()),
            source: "tc -s qdisc".to_owned(),
        });
        book.entry(LossStage::Qdisc).or_default().extend(lines);
    }
}

fn socket_lines(
    namespace: &CountedNamespace<'_>,
    book: &mut BTreeMap<LossStage, Vec<LossCounter>>,
) {
    for socket in namespace.losing_sockets.into_iter().flatten() {
        let (place, source, within) = match socket.kind {
            SocketKind::Udp => (LossStage::Socket, "/proc/net/udp", "UdpRcvbufErrors"),
            SocketKind::TcpListen => (LossStage::Listen, "sock_diag", "TcpExtListenDrops"),
        };
        let is_part = namespace.protocols.contains_key(within);
        book.entry(place).or_default().push(LossCounter {
            subject: namespace.subject(socket.subject()),
            netns: namespace.inode(),
            counter: "sk_drops".to_owned(),
            count: namespace.dropped(socket),
            since_boot: socket.drops,
            aside: is_part.then(|| format!("part of {}", within.trim_start_matches("TcpExt"))),
            source: source.to_owned(),
        });
    }
}

#[cfg(test)]
mod tests;
