//! A report as text: netdevs with their rx queues, CPUs, readers of taps, totals and notes.
//!
//! A terminal also shows bars, and marks the cells that changed since the previous report.

mod cells;
pub(crate) mod cpus;
mod taps;
mod threads;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use netsilo_decide::report::totals::PolledElsewhere;
use netsilo_decide::report::{CaptureLine, NetdevLine, Report};
use netsilo_model::derive::forwarding::ForwardShare;
use netsilo_model::derive::locality::Locality;
use netsilo_model::derive::silo::{ConsumerShare, OutsideTraffic, Silo};
use netsilo_model::derive::transmit::TxLoad;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::words;
use netsilo_model::snapshot::attribution::{AttributionSource, ReaderKind};
use netsilo_model::snapshot::sockets::Holder;

use crate::tell::palette::{Meaning, Palette};
use crate::tell::presentation::Presentation;
use crate::tell::styled::Styled;
use crate::tell::words::plural;
use crate::views::show::cells::{BAR, cell, load, marked};
use crate::views::stages;
use crate::views::table::{narrowed, wrapped};
use crate::views::units::{bytes_per_s, count, or_dash, percent};

/// From which share on bytes are called approximate, whose queue is only probable.
const SHARE_NAMED: f64 = 0.01;
/// How many consumers of a queue are named. The others are added up.
const CONSUMERS_NAMED: usize = 3;

/// Columns of queues that a narrow terminal drops, in this order.
const QUEUE_DROPS: [&str; 6] =
    ["requested", "steering", "irq", "softirq", "effective", "packets/s"];

/// Renders the whole report.
///
/// On a machine with many CPUs, those without receive work are summarized by node. Cells that
/// differ from the previous report are marked, except rates and shares, which always differ.
pub(crate) fn render(report: &Report, before: Option<&Report>, on: Presentation) -> Styled {
    let mut text = Styled::default();
    text.push(Meaning::Title, wrapped(&title(report), on.width));
    let _ = writeln!(text);
    let mut shown = report.netdevs.iter().filter(|netdev| worth_showing(netdev)).peekable();
    if shown.peek().is_none() {
        let was_listed = !report.gaps.iter().any(|gap| gap.what == "netdevs");
        let unread = report.netdevs.iter().any(|it| it.rx_packets_per_s.is_none());
        let none = if was_listed && !unread { NO_QUEUES } else { NOT_READ };
        let _ = writeln!(text, "\n{none}");
    }
    for netdev in shown {
        let same = |old: &&NetdevLine| old.name == netdev.name;
        let old = before.and_then(|before| before.netdevs.iter().find(same));
        text.push(Meaning::Title, format_args!("\n{}\n", wrapped(&netdev_title(netdev), on.width)));
        text.append(&queue_table(netdev, old, on));
        let _ = writeln!(text);
        for line in sends(netdev).into_iter().chain(captured_by(netdev)) {
            let _ = writeln!(text, "{}", wrapped(&line, on.width));
        }
    }
    if !report.cpus.is_empty() {
        let _ = writeln!(text);
        text.append(&cpus::table(&report.cpus, before.map(|before| &before.cpus[..]), on));
        let _ = writeln!(text);
    }
    if let Some(threads) = threads::table(&report.net_threads, on) {
        let _ = writeln!(text);
        text.append(&threads);
        let _ = writeln!(text);
    }
    if !report.tap_readers.is_empty() {
        let _ = writeln!(text);
        text.append(&taps::table(&report.tap_readers, on));
        let _ = writeln!(text);
    }
    if let Some(stages) = &report.stages {
        let _ = writeln!(text);
        text.append(&stages::render(stages, on.width));
    }
    let _ = writeln!(text);
    text.append(&totals(report, on));
    for note in &report.notes {
        let note = wrapped(&format!("note: {note}"), on.width);
        text.push(Meaning::Quiet, format_args!("{note}\n"));
    }
    text
}

/// What to do where there is nothing to show.
const NO_QUEUES: &str = "no netdev received a packet, no rx queue has interrupts or steering\n  \
    --interval 10s sees rare traffic; netsilo doctor names what cannot be read here";

/// What is said where no netdev's packets were read.
const NOT_READ: &str = "what the netdevs received is not known: the notes say why";

/// Whether a netdev receives, or has queues with interrupts or steering.
pub(crate) fn worth_showing(netdev: &NetdevLine) -> bool {
    let has_place = |silo: &Silo| {
        silo.irq.is_some()
            || silo.has_traffic()
            || !["-", NOT_KNOWN].contains(&steering(silo).as_str())
    };
    netdev.rx_packets_per_s.is_some_and(|rate| rate > 0.0) || netdev.queues.iter().any(has_place)
}

fn title(report: &Report) -> String {
    let machine = &report.machine;
    let by = match report.attribution.source {
        AttributionSource::Bpf if report.attribution.windowed => "eBPF, a window",
        AttributionSource::Bpf => "eBPF",
        AttributionSource::SockDiag => "sock_diag, TCP only",
        AttributionSource::None => "counters only",
    };
    let mut parts = vec![
        format!("{} {}", machine.hostname, machine.release),
        format!("cpus {}", machine.online),
        plural(machine.cores, "core"),
        match machine.llcs.len() {
            0 => "llcs not known".to_owned(),
            count => plural(count, "llc"),
        },
        plural(machine.nodes.max(1), "node"),
        format!("{:.1} s by {by}", report.elapsed_s),
    ];
    for (what, cpus) in [
        ("offline", &machine.offline),
        ("isolated", &machine.isolated),
        ("nohz_full", &machine.nohz_full),
    ] {
        if !cpus.is_empty() {
            parts.insert(2, format!("{what} {cpus}"));
        }
    }
    parts.join(", ")
}

pub(crate) fn netdev_title(netdev: &NetdevLine) -> String {
    let mut parts = vec![netdev.name.clone()];
    parts.extend(netdev.driver.clone());
    parts.extend(netdev.bus.clone());
    parts.extend(netdev.node.map(|node| format!("node {node}")));
    parts.extend(netdev.speed_mbps.map(|speed| format!("{speed} Mbit/s")));
    parts.extend(netdev.master.as_ref().map(|master| format!("port of {master}")));
    if !netdev.up {
        parts.push("down".to_owned());
    } else if netdev.carrier == Some(false) {
        parts.push("no carrier".to_owned());
    }
    if netdev.threaded.is_some_and(|threaded| threaded > 0) {
        parts.push("threaded NAPI".to_owned());
    } else {
        parts.extend(netdev.processed.clone());
    }
    if netdev.queues.iter().any(|silo| silo.packets_per_s.is_none()) {
        let rate = netdev.rx_packets_per_s.filter(|rate| *rate > 0.0);
        parts.extend(rate.map(|rate| format!("{}/s received", count(rate))));
    }
    let losses = [
        ("rx_dropped", netdev.rx_dropped_per_s),
        ("rx_missed_errors", netdev.rx_missed_errors_per_s),
    ];
    for (name, rate) in losses {
        parts.extend(
            rate.filter(|rate| *rate > 0.0).map(|rate| format!("{name} {}/s", count(rate))),
        );
    }
    parts.join("  ")
}

/// `sends 400k/s by 1 of 8 tx queues: tx-1 100% (cpus 8-13, fq_codel drops 2.4k/s)`.
fn sends(netdev: &NetdevLine) -> Option<String> {
    let transmit = netdev.transmit.as_ref().filter(|transmit| transmit.of > 1)?;
    let queue = |load: &TxLoad| {
        let cpus: CpuSet = load.cpus.keys().copied().collect();
        let drops = load.drops_per_s.filter(|rate| *rate > 0.0).zip(load.discipline.as_ref());
        let mut more = Vec::new();
        more.extend((!cpus.is_empty()).then(|| words::cpus(&cpus)));
        more.extend(drops.map(|(rate, kind)| format!("{kind} drops {}/s", count(rate))));
        let more = if more.is_empty() { String::new() } else { format!(" ({})", more.join(", ")) };
        (format!("tx-{} {}{more}", load.queue, percent(load.share)), load.share)
    };
    let all: f64 = transmit.queues.iter().map(|load| load.packets_per_s).sum();
    Some(format!(
        "  sends {}/s by {} of {} tx queues: {}",
        count(all),
        transmit.queues.len(),
        transmit.of,
        heaviest(transmit.queues.iter().map(queue)).join(", ")
    ))
}

/// `captured by: tcpdump (pid 812) takes 14.9k packets/s, loses 3.1k/s`.
fn captured_by(netdev: &NetdevLine) -> Option<String> {
    let program = |line: &CaptureLine| {
        let Holder { tgid, comm } = &line.holder;
        let lost = (line.lost_per_s > 0.0).then(|| format!(", loses {}/s", count(line.lost_per_s)));
        let of = if line.of_all_netdevs { " of all netdevs" } else { "" };
        let rate = count(line.packets_per_s);
        let text = format!("{comm} (pid {tgid}) takes {rate} packets/s{of}");
        text + &lost.unwrap_or_default()
    };
    let all = &netdev.captured_by;
    let (named, rest) = all.split_at(all.len().min(CONSUMERS_NAMED));
    let mut programs: Vec<String> = named.iter().map(program).collect();
    programs.extend((!rest.is_empty()).then(|| format!("{} more", rest.len())));
    (!programs.is_empty()).then(|| format!("  captured by: {}", programs.join("; ")))
}

fn queue_table(netdev: &NetdevLine, before: Option<&NetdevLine>, on: Presentation) -> Styled {
    let header = [
        "  rx",
        "irq",
        "requested",
        "effective",
        "polled on",
        "packets/s",
        "softirq",
        "steering",
        "locality",
        "consumers",
    ];
    let row = |silo: &Silo| {
        let old = before.and_then(|old| old.queues.iter().find(|it| it.label() == silo.label()));
        match old {
            None => queue_row(silo),
            Some(old) => {
                marked(queue_row(silo), &queue_row(old), &QUEUE_STATE, is_read_elsewhere(silo, old))
            }
        }
    };
    let rows: Vec<_> = netdev.queues.iter().map(row).collect();
    let numeric = |name: &str| matches!(name, "irq" | "packets/s" | "softirq");
    narrowed(&header, &rows, numeric, &QUEUE_DROPS, on.width)
}

/// Columns of queues whose cells are neither a rate nor a share.
const QUEUE_STATE: [usize; 5] = [1, 2, 3, 4, 7];

/// Whether a queue's readers, or their CPUs, have changed.
fn is_read_elsewhere(silo: &Silo, before: &Silo) -> bool {
    let places = |silo: &Silo| -> BTreeSet<(String, CpuSet)> {
        let place = |it: &ConsumerShare| (it.comm.to_string(), it.cpus.keys().copied().collect());
        silo.consumers.iter().map(place).collect()
    };
    places(silo) != places(before)
}

fn queue_row(silo: &Silo) -> Vec<Styled> {
    // The queue's own part: all softirq time of its CPU is in the other table.
    let softirq = silo.softirq.filter(|_| !silo.own_share.is_empty()).map(|softirq| {
        let (sampled, own) =
            (if softirq.measured { "" } else { "~" }, silo.own_share.values().sum());
        load(own, format!("{sampled}{}", percent(own)))
    });
    let cpus = |cpus: &Option<CpuSet>| cell(or_dash(cpus.as_ref(), CpuSet::to_string));
    vec![
        cell(silo.queue.map_or_else(
            || or_dash(silo.napi.as_ref(), |napi| format!("  napi {}", napi.to)),
            |queue| format!("  {queue}"),
        )),
        cell(or_dash(silo.irq.as_ref(), |edge| {
            // a guess has a question mark
            edge.known().map_or_else(|| format!("{}?", edge.to), ToString::to_string)
        })),
        cpus(&silo.requested),
        cpus(&silo.effective),
        cell(polled_on(silo)),
        cell(packets(silo)),
        softirq.unwrap_or_else(|| cell("-".into())),
        cell(steering(silo)),
        near_and_far(&silo.locality, None),
        cell(takers(silo)),
    ]
}

/// Packets per second of a queue; of one whose netdev received some, whether they are known.
fn packets(silo: &Silo) -> String {
    match silo.received_per_s() {
        None if silo.not_counted.is_some() => "not known".to_owned(),
        rate => or_dash(rate, count),
    }
}

/// Below this share of a queue's packets, a CPU polled a few stray ones.
const STRAY: f64 = 0.01;

/// CPUs that polled a queue, but for stray packets. With RPS, also those that ran the protocol
/// (`0 -> 2-3`).
pub(crate) fn polled_on(silo: &Silo) -> String {
    let all = silo.packets_per_s.unwrap_or(0.0);
    let polls = silo.polls.iter().filter(|(_, rate)| rate.packets_per_s >= STRAY * all);
    let polled: CpuSet = polls.map(|(cpu, _)| *cpu).collect();
    let protocol: CpuSet = silo.protocol_cpus.keys().copied().collect();
    match (polled.is_empty(), protocol.is_empty() || protocol.is_subset(&polled)) {
        (true, true) => "-".to_owned(),
        (false, true) => polled.to_string(),
        (true, false) => format!("? -> {protocol}"),
        (false, false) => format!("{polled} -> {protocol}"),
    }
}

/// The steering of a queue whose masks were not read.
const NOT_KNOWN: &str = "not known";

/// The RPS, RFS and XPS settings that are on.
pub(crate) fn steering(silo: &Silo) -> String {
    let on = |cpus: &Option<CpuSet>| cpus.clone().filter(|cpus| !cpus.is_empty());
    let mut parts = Vec::new();
    parts.extend(on(&silo.rps_cpus).map(|cpus| format!("rps {cpus}")));
    parts.extend(silo.rps_flow_cnt.filter(|count| *count > 0).map(|count| format!("rfs {count}")));
    parts.extend(on(&silo.xps_cpus).map(|cpus| format!("xps {cpus}")));
    parts.extend(silo.leased.clone());
    if parts.is_empty() && silo.queue.is_some() && silo.rps_cpus.is_none() {
        return NOT_KNOWN.to_owned();
    }
    if parts.is_empty() { "-".to_owned() } else { parts.join(" ") }
}

pub(crate) fn locality(locality: &Locality) -> String {
    near_and_far(locality, None).to_string()
}

/// Each distance with its share of the bytes, and a bar of it.
fn near_and_far(locality: &Locality, palette: Option<Palette>) -> Styled {
    if locality.bytes_per_s == 0.0 {
        return cell("-".to_owned());
    }
    let known = locality
        .shares
        .iter()
        .map(|(distance, share)| (distance.label(), *share, Meaning::of_distance(*distance)));
    let mut text = Styled::default();
    for (name, share, meaning) in known.chain([("unknown", locality.unknown, Meaning::Quiet)]) {
        if share < 0.005 {
            continue;
        }
        text.push(Meaning::Plain, if text.width() > 0 { " " } else { "" });
        let bar = palette.map_or_else(String::new, |it| format!("{} ", it.bar(share, BAR)));
        text.push(meaning, format_args!("{name} {bar}{}", percent(share)));
    }
    text
}

/// What happens to a queue's packets: readers, forwarding, and data without a known reader.
pub(crate) fn takers(silo: &Silo) -> String {
    let mut known = consumers(&silo.consumers, &silo.forwards);
    if silo.approximate_share >= SHARE_NAMED {
        known = format!("{known}, approximate {}", percent(silo.approximate_share));
    }
    match silo.unknown_share {
        0.0 => known,
        1.0 => "not known".to_owned(),
        share => format!("{known}, unknown {}", percent(share)),
    }
}

/// Processes with one name, container and CPUs.
#[derive(Default)]
struct Alike {
    processes: usize,
    /// Whether one of them stands for many others.
    and_more: bool,
    share: f64,
}

impl Alike {
    fn are_many(&self) -> bool {
        self.and_more || self.processes > CONSUMERS_NAMED
    }

    fn in_words(&self) -> String {
        match self.processes - usize::from(self.and_more) {
            0 => "processes not told apart, ".to_owned(),
            known if self.and_more => format!("more than {known} processes, "),
            known => format!("{known} processes, "),
        }
    }
}

/// `wl in web/nginx (12 processes, cpu 3) 97%`, and the share.
fn reader(
    comm: &str,
    container: &Option<String>,
    cpus: &CpuSet,
    processes: &str,
    share: f64,
) -> (String, f64) {
    let word = if cpus.len() == 1 { "cpu" } else { "cpus" };
    let container = container.as_ref().map_or(String::new(), |it| format!(" in {it}"));
    (format!("{comm}{container} ({processes}{word} {cpus}) {}", percent(share)), share)
}

/// Consumers, then forwarded packets as a share of the queue's packets: `redis (cpu 3) 97%, sshd
/// (cpu 0) 3%, -> eth1 tx-2 4.31k/s 60%`.
pub(crate) fn consumers(consumers: &[ConsumerShare], forwards: &[ForwardShare]) -> String {
    let mut alike: BTreeMap<(&str, &Option<String>, Vec<CpuId>), Alike> = BTreeMap::new();
    for consumer in consumers {
        let cpus = consumer.cpus.keys().copied().collect();
        let all = alike.entry((&consumer.comm, &consumer.container, cpus)).or_default();
        all.processes += 1;
        all.and_more |= consumer.kind == ReaderKind::Processes;
        all.share += consumer.share;
    }
    // With few of them, each has its share.
    let is_one_by_one = |it: &&ConsumerShare| {
        let cpus = it.cpus.keys().copied().collect();
        !alike[&(it.comm.as_str(), &it.container, cpus)].are_many()
    };
    let one = |it: &ConsumerShare| {
        let cpus = it.cpus.keys().copied().collect();
        let kind = if it.kind == ReaderKind::Kernel { "kernel, " } else { "" };
        reader(&it.comm, &it.container, &cpus, kind, it.share)
    };
    let many =
        alike.iter().filter(|(_, all)| all.are_many()).map(|((comm, container, cpus), all)| {
            let cpus = cpus.iter().copied().collect();
            reader(comm, container, &cpus, &all.in_words(), all.share)
        });
    let mut readers: Vec<_> = consumers.iter().filter(is_one_by_one).map(one).chain(many).collect();
    readers.sort_by(|a, b| b.1.total_cmp(&a.1));
    let forward = |to: &ForwardShare| {
        (format!("-> {} {}/s {}", to.label(), count(to.packets_per_s), percent(to.share)), to.share)
    };
    let mut parts = heaviest(readers.into_iter());
    parts.extend(heaviest(forwards.iter().map(forward)));
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}

/// The first few by name, the others as their number and share.
fn heaviest(all: impl Iterator<Item = (String, f64)>) -> Vec<String> {
    let all: Vec<_> = all.collect();
    let (named, rest) = all.split_at(all.len().min(CONSUMERS_NAMED));
    let mut parts: Vec<_> = named.iter().map(|(text, _)| text.clone()).collect();
    if !rest.is_empty() {
        parts.push(format!(
            "{} more {}",
            rest.len(),
            percent(rest.iter().map(|(_, share)| share).sum())
        ));
    }
    parts
}

fn totals(report: &Report, on: Presentation) -> Styled {
    let totals = &report.totals;
    let mut text = Styled::default();
    if totals.locality.bytes_per_s > 0.0 {
        let read = bytes_per_s(totals.locality.bytes_per_s);
        let _ = write!(text, "locality of {read} read from queues: ");
        text.append(&near_and_far(&totals.locality, on.palette));
        let _ = writeln!(text);
    }
    let elsewhere = [
        ("through no rx queue (loopback, or between namespaces)", &totals.local),
        ("through a NIC of another network namespace", &totals.foreign),
        ("through a queue that was not found", &totals.unresolved),
    ];
    for (what, OutsideTraffic { bytes_per_s: rate, consumers: who }) in elsewhere {
        if *rate > 0.0 {
            let line = format!("{} read {what}: {}", bytes_per_s(*rate), consumers(who, &[]));
            let _ = writeln!(text, "{}", wrapped(&line, on.width));
        }
    }
    let forwarded = &totals.forwarded;
    if forwarded.packets_per_s > 0.0 {
        let packets = count(forwarded.packets_per_s);
        let _ =
            write!(text, "{packets} packets/s ({}) forwarded", bytes_per_s(forwarded.bytes_per_s));
        if !forwarded.from_no_queue.is_empty() {
            let _ = write!(
                text,
                ", some of them through rx queues that are not visible here: {}",
                consumers(&[], &forwarded.from_no_queue)
            );
        }
        let _ = writeln!(text);
    }
    if !totals.polled_elsewhere.is_empty() {
        let line = polled_elsewhere(&totals.polled_elsewhere);
        let _ = writeln!(text, "{}", wrapped(&line, on.width));
    }
    text
}

/// The busiest netdevs of other network namespaces, and the command that shows them.
fn polled_elsewhere(all: &[PolledElsewhere]) -> String {
    let named = all.iter().take(CONSUMERS_NAMED);
    let mut names: Vec<String> = named
        .map(|it| format!("{} of {} ({})", it.netdev, it.netns, words::cpus(&it.cpus)))
        .collect();
    if all.len() > names.len() {
        names.push(format!("{} more", all.len() - names.len()));
    }
    format!(
        "{} packets/s polled for other network namespaces: {}; look there: netsilo --netns {} show",
        count(all.iter().map(|it| it.packets_per_s).sum()),
        names.join(", "),
        all.first().map(|it| it.netns).unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::derive::analysis::Analysis;
    use netsilo_model::machine::cpuset::CpuId;
    use netsilo_model::snapshot::observation::Observation;
    use netsilo_model::synthetic::scene::Scene;

    use super::*;
    use crate::tell::palette::Depth;

    fn report(observation: &Observation) -> Report {
        Report::of(&Analysis::new(observation, &Costs::default()))
    }

    #[test]
    fn processes_that_are_alike_are_one_consumer_with_their_number() {
        let reader = |tgid, comm: &str, cpu, share| ConsumerShare {
            tgid,
            comm: comm.into(),
            cpus: [(CpuId(cpu), 1.0)].into(),
            share,
            ..ConsumerShare::default()
        };
        let two = [reader(7, "nginx", 1, 0.6), reader(8, "nginx", 1, 0.4)];
        assert_eq!(consumers(&two, &[]), "nginx (cpu 1) 60%, nginx (cpu 1) 40%");
        let mut many: Vec<_> = (10..20).map(|tgid| reader(tgid, "wl", 1, 0.05)).collect();
        many.push(reader(7, "redis", 0, 0.1));
        assert_eq!(consumers(&many, &[]), "wl (10 processes, cpu 1) 50%, redis (cpu 0) 10%");
        let apart = |of| ConsumerShare { kind: ReaderKind::Processes, ..of };
        many.push(apart(reader(0, "wl", 1, 0.2)));
        many.push(apart(reader(0, "socat", 1, 0.2)));
        assert_eq!(
            consumers(&many, &[]),
            "wl (more than 10 processes, cpu 1) 70%, socat (processes not told apart, cpu 1) 20%, \
             redis (cpu 0) 10%"
        );
        let work = |cpu| {
            let of = reader(0, "nvme_tcp_io_work [nvme_tcp]", cpu, 0.5);
            ConsumerShare { kind: ReaderKind::Kernel, ..of }
        };
        assert_eq!(consumers(&[work(2)], &[]), "nvme_tcp_io_work [nvme_tcp] (kernel, cpu 2) 50%");
    }

    #[test]
    fn one_screen_shows_queues_cpus_and_readers() {
        let scene: Scene =
            serde_json::from_str(include_str!("../../../../cases/virtio-all-on-cpu0/before.json"))
                .unwrap();
        insta::assert_snapshot!(render(
            &report(&scene.observation()),
            None,
            Presentation::default()
        ));
    }

    /// A terminal that shows colours.
    fn terminal(width: usize) -> Presentation {
        let palette = Palette { depth: Depth::Ansi, unicode: true };
        Presentation { width: Some(width), palette: Some(palette) }
    }

    #[test]
    fn a_terminal_has_bars_and_colours_by_meaning() {
        let scene: Scene =
            serde_json::from_str(include_str!("../../../../cases/virtio-all-on-cpu0/before.json"))
                .unwrap();
        let text = render(&report(&scene.observation()), None, terminal(100));
        insta::assert_snapshot!(text.with_meanings());
        assert!(text.as_str().lines().all(|line| line.chars().count() <= 100), "{text}");
    }

    #[test]
    fn what_changed_since_the_last_report_is_marked_but_no_rate() {
        let scene: Scene =
            serde_json::from_str(include_str!("../../../../cases/virtio-all-on-cpu0/before.json"))
                .unwrap();
        let before = report(&scene.observation());
        let mut now = before.clone();
        let queue = &mut now.netdevs[0].queues[1];
        queue.packets_per_s = Some(7.0);
        queue.effective = Some(CpuSet::parse_list("6").unwrap());
        let readers = &mut now.netdevs[0].queues[3].consumers[0];
        let (_, share) = readers.cpus.pop_first().unwrap();
        readers.cpus.insert(CpuId(1), share);
        now.cpus[5].consumers.push("nginx".into());
        let marked = |before: &Report| -> Vec<String> {
            let text = render(&now, Some(before), Presentation::default());
            let changed = text.parts().filter(|(_, meaning)| *meaning == Meaning::Changed);
            changed.map(|(part, _)| part.to_owned()).collect()
        };
        assert_eq!(marked(&before), ["6", "nginx (cpu 1) 100%", "nginx"]);
        assert_eq!(marked(&now.clone()), [""; 0]);
    }

    #[test]
    fn a_machine_of_512_cpus_fits_into_eighty_columns_and_names_those_that_matter() {
        let scene = r#"{ "grid": { "nodes": 4, "llcs": 32, "l2s": 2, "threads": 2 }, "netdevs": [
            { "name": "eth0", "driver": "mlx5_core", "queues": [
                { "irq": 41, "cpus": "0", "packets_per_s": 9000, "load": 0.1,
                  "readers": [{ "comm": "redis", "cpu": 300, "bytes_per_s": 3000 }] }] }] }"#;
        let scene: Scene = serde_json::from_str(scene).unwrap();
        let report = report(&scene.observation());
        assert_eq!(report.cpus.len(), 512);
        let text = render(&report, None, terminal(80));
        assert!(text.as_str().lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.as_str().lines().count() < 24, "{text}");
        assert!(text.as_str().contains("127 cpus without receive work"), "{text}");
    }

    #[test]
    fn a_machine_without_receive_work_is_told_what_to_do_next() {
        let scene: Scene = serde_json::from_str(r#"{ "grid": { "l2s": 1 } }"#).unwrap();
        let text = render(&report(&scene.observation()), None, Presentation::default());
        assert!(text.as_str().contains(NO_QUEUES), "{text}");
    }

    #[test]
    fn eighty_columns_keep_what_is_polled_and_read_where() {
        let scene: Scene =
            serde_json::from_str(include_str!("../../../../cases/virtio-all-on-cpu0/before.json"))
                .unwrap();
        let on = Presentation { width: Some(80), palette: None };
        let text = render(&report(&scene.observation()), None, on);
        insta::assert_snapshot!(text);
    }

    #[test]
    fn what_leaves_again_is_shown_like_a_consumer() {
        let scene = r#"{ "grid": { "l2s": 2 }, "netdevs": [
            { "name": "eth0", "driver": "igb", "queues": [
                { "irq": 41, "cpus": "0", "packets_per_s": 9000, "load": 0.1, "forwards": [
                    { "to": "eth1", "queue": 2, "packets_per_s": 6000, "bytes_per_s": 900000 },
                    { "to": "eth1", "queue": 0, "packets_per_s": 2990, "bytes_per_s": 448500 }] },
                { "irq": 42, "cpus": "1", "packets_per_s": 400, "load": 0.01,
                  "readers": [{ "comm": "sshd", "cpu": 0, "bytes_per_s": 3000 }],
                  "forwards": [{
                      "to": "tap7", "queue": 0, "packets_per_s": 100, "bytes_per_s": 15000 }] }] },
            { "name": "eth1", "driver": "igb", "queues": [{ "irq": 51, "cpus": "1" }] }] }"#;
        let scene: Scene = serde_json::from_str(scene).unwrap();
        insta::assert_snapshot!(render(
            &report(&scene.observation()),
            None,
            Presentation::default()
        ));
    }
}
