//! A report as text: netdevs with their rx queues, CPUs, totals and notes.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use netsilo_decide::report::quiet::{QuietCpus, split_quiet};
use netsilo_decide::report::{CpuLine, NetdevLine, Report};
use netsilo_model::derive::forwarding::ForwardShare;
use netsilo_model::derive::locality::Locality;
use netsilo_model::derive::silo::{ConsumerShare, OutsideTraffic, Silo};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::snapshot::attribution::AttributionSource;

use crate::tell::words::plural;
use crate::views::stages;
use crate::views::table::{MEASURED, TICKS, narrowed};
use crate::views::units::{bytes_per_s, count, or_dash, percent};

/// How many consumers of a queue are named; the rest is added up.
const CONSUMERS_NAMED: usize = 3;

/// Columns of queues that a narrow terminal loses, the first one first.
const QUEUE_DROPS: [&str; 6] =
    ["requested", "steering", "irq", "softirq", "effective", "packets/s"];

/// Columns of CPUs that a narrow terminal loses, the first one first; the first column of a group
/// stays, because it carries the group's name.
const CPU_DROPS: [&str; 10] =
    ["core", "rps/s", "cal/s", "ipi/s", "net_rx/s", "node", "dropped/s", "sys", "irq", "ipi"];

/// Renders the whole report for a terminal of this width; `None`: no column is left out.
///
/// Of a machine with many CPUs, those without receive work are summed up by node.
pub(crate) fn render(report: &Report, width: Option<usize>) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}", title(report));
    for netdev in report.netdevs.iter().filter(|netdev| worth_showing(netdev)) {
        let _ = writeln!(text, "\n{}\n{}", netdev_title(netdev), queue_table(netdev, width));
    }
    let _ = writeln!(text, "\n{}", cpu_table(&report.cpus, width));
    if let Some(stages) = &report.stages {
        let _ = write!(text, "\n{}", stages::render(stages));
    }
    let _ = write!(text, "\n{}", totals(report));
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

/// Whether a netdev has queues with traffic, interrupts or steering.
pub(crate) fn worth_showing(netdev: &NetdevLine) -> bool {
    netdev
        .queues
        .iter()
        .any(|silo| silo.irq.is_some() || silo.has_traffic() || steering(silo) != "-")
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

fn queue_table(netdev: &NetdevLine, width: Option<usize>) -> String {
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
    let rows: Vec<_> = netdev.queues.iter().map(queue_row).collect();
    let numeric = |name: &str| matches!(name, "irq" | "packets/s" | "softirq");
    narrowed(&header, &rows, numeric, &QUEUE_DROPS, width)
}

fn queue_row(silo: &Silo) -> Vec<String> {
    let softirq = silo.softirq.map(|softirq| {
        let sampled = if softirq.measured { "" } else { "~" };
        format!("{sampled}{}", percent(softirq.share))
    });
    vec![
        silo.queue.map_or_else(
            || or_dash(silo.napi.as_ref(), |napi| format!("  napi {}", napi.to)),
            |queue| format!("  {queue}"),
        ),
        or_dash(silo.irq.as_ref(), |edge| edge.to.to_string()),
        or_dash(silo.requested.as_ref(), CpuSet::to_string),
        or_dash(silo.effective.as_ref(), CpuSet::to_string),
        polled_on(silo),
        or_dash(silo.packets_per_s, count),
        or_dash(softirq, |softirq| softirq),
        steering(silo),
        locality(&silo.locality),
        consumers(&silo.consumers, &silo.forwards),
    ]
}

/// CPUs that polled a queue; with RPS also those that ran the protocol (`0 -> 2-3`).
pub(crate) fn polled_on(silo: &Silo) -> String {
    let polled: CpuSet = silo.polls.keys().copied().collect();
    let protocol: CpuSet = silo.protocol_cpus.keys().copied().collect();
    match (polled.is_empty(), protocol.is_empty() || protocol.is_subset(&polled)) {
        (true, true) => "-".to_owned(),
        (false, true) => polled.to_string(),
        (true, false) => format!("? -> {protocol}"),
        (false, false) => format!("{polled} -> {protocol}"),
    }
}

/// The RPS, RFS and XPS settings that are on.
pub(crate) fn steering(silo: &Silo) -> String {
    let on = |cpus: &Option<CpuSet>| cpus.clone().filter(|cpus| !cpus.is_empty());
    let mut parts = Vec::new();
    parts.extend(on(&silo.rps_cpus).map(|cpus| format!("rps {cpus}")));
    parts.extend(silo.rps_flow_cnt.filter(|count| *count > 0).map(|count| format!("rfs {count}")));
    parts.extend(on(&silo.xps_cpus).map(|cpus| format!("xps {cpus}")));
    parts.extend(silo.leased.clone());
    if parts.is_empty() { "-".to_owned() } else { parts.join(" ") }
}

pub(crate) fn locality(locality: &Locality) -> String {
    if locality.bytes_per_s == 0.0 {
        return "-".to_owned();
    }
    let known = locality.shares.iter().filter(|(_, share)| **share >= 0.005);
    let mut parts: Vec<_> = known
        .map(|(distance, share)| format!("{} {}", distance.label(), percent(*share)))
        .collect();
    if locality.unknown >= 0.005 {
        parts.push(format!("unknown {}", percent(locality.unknown)));
    }
    parts.join(" ")
}

/// Consumers, then forwarded packets as a share of the queue's packets:
/// `redis (cpu 3) 97%, sshd (cpu 0) 3%, -> eth1 tx-2 4.31k/s 60%`.
pub(crate) fn consumers(consumers: &[ConsumerShare], forwards: &[ForwardShare]) -> String {
    let reader = |consumer: &ConsumerShare| {
        let cpus: CpuSet = consumer.cpus.keys().copied().collect();
        let word = if cpus.len() == 1 { "cpu" } else { "cpus" };
        (format!("{} ({word} {cpus}) {}", consumer.comm, percent(consumer.share)), consumer.share)
    };
    let forward = |to: &ForwardShare| {
        (format!("-> {} {}/s {}", to.label(), count(to.packets_per_s), percent(to.share)), to.share)
    };
    let mut parts = heaviest(consumers.iter().map(reader));
    parts.extend(heaviest(forwards.iter().map(forward)));
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}

/// The first few by name, the others by their number and share.
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

fn cpu_table(cpus: &[CpuLine], width: Option<usize>) -> String {
    let measured = cpus.iter().any(|cpu| cpu.softirq_share.is_some());
    let nodes =
        cpus.iter().filter_map(|cpu| cpu.node).collect::<std::collections::BTreeSet<_>>().len() > 1;
    let mut header = vec!["\n  cpu", "\ncore"];
    header.extend(nodes.then_some("\nnode"));
    header.extend(TICKS);
    if measured {
        header.extend(MEASURED);
        header.push("\nipi/s");
    } else {
        header.push("\ncal/s");
    }
    header.extend(["\nnet_rx/s", "\nrps/s", "\ndropped/s", "\npolls", "\nreaders"]);
    let words = ["\n  cpu", "\ncore", "\npolls", "\nreaders"];
    let (named, quiet) = split_quiet(cpus);
    let rows: Vec<_> = named.iter().map(|cpu| cpu_row(cpu, measured, nodes)).collect();
    let mut text = narrowed(&header, &rows, |name| !words.contains(&name), &CPU_DROPS, width);
    for quiet in &quiet {
        let _ = write!(text, "\n  {}", summed_up(quiet));
    }
    text
}

/// The CPUs of a node that have nothing to tell, in one line.
pub(crate) fn summed_up(quiet: &QuietCpus) -> String {
    let node = or_dash(quiet.node, |node| node.to_string());
    let busy = or_dash(quiet.busy, percent);
    let cpus = plural(quiet.cpus.len(), "cpu");
    format!("node {node}: {cpus} without receive work, {busy} busy on average")
}

fn cpu_row(cpu: &CpuLine, measured: bool, nodes: bool) -> Vec<String> {
    let mut row = vec![format!("  {}", cpu.cpu), cpu.core.to_string()];
    row.extend(nodes.then(|| or_dash(cpu.node, |node| node.to_string())));
    let shares = cpu.shares.map(|s| [s.usr + s.nice, s.sys, s.irq, s.softirq, s.idle + s.iowait]);
    row.extend((0..5).map(|i| or_dash(shares, |shares| percent(shares[i]))));
    if measured {
        row.extend(
            [cpu.hardirq_share, cpu.softirq_share, cpu.ipi_share]
                .map(|share| or_dash(share, percent)),
        );
        row.push(or_dash(cpu.ipis_per_s, count));
    } else {
        row.push(or_dash(cpu.cal_per_s, count));
    }
    let rates = [cpu.net_rx_per_s, cpu.received_rps_per_s, cpu.dropped_per_s];
    row.extend(rates.map(|rate| or_dash(rate, count)));
    row.push(or_dash(Some(&cpu.polls).filter(|polls| !polls.is_empty()), |polls| {
        group_queues(polls)
    }));
    row.push(or_dash(Some(&cpu.readers).filter(|readers| !readers.is_empty()), |readers| {
        readers.join(" ")
    }));
    row
}

/// Groups the queues of a netdev: `eth0 rx-0, eth0 rx-1` as `eth0 rx-0-1`.
pub(crate) fn group_queues(labels: &[String]) -> String {
    let mut by_stem: BTreeMap<&str, Vec<CpuId>> = BTreeMap::new();
    let mut others = Vec::new();
    for label in labels {
        match label.rsplit_once('-').and_then(|(stem, number)| Some((stem, number.parse().ok()?))) {
            Some((stem, number)) => by_stem.entry(stem).or_default().push(CpuId(number)),
            None => others.push(label.clone()),
        }
    }
    let grouped = by_stem.into_iter().map(|(stem, numbers)| {
        let numbers: CpuSet = numbers.into_iter().collect();
        format!("{stem}-{numbers}")
    });
    grouped.chain(others).collect::<Vec<_>>().join(" ")
}

fn totals(report: &Report) -> String {
    let totals = &report.totals;
    let mut text = String::new();
    if totals.locality.bytes_per_s > 0.0 {
        let read = bytes_per_s(totals.locality.bytes_per_s);
        let _ =
            writeln!(text, "locality of {read} read from queues: {}", locality(&totals.locality));
    }
    let elsewhere = [
        ("through no rx queue (loopback, or between namespaces)", &totals.local),
        ("through a NIC of another network namespace", &totals.foreign),
        ("through a queue that was not found", &totals.unresolved),
    ];
    for (what, OutsideTraffic { bytes_per_s: rate, consumers: who }) in elsewhere {
        if *rate > 0.0 {
            let _ = writeln!(text, "{} read {what}: {}", bytes_per_s(*rate), consumers(who, &[]));
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
                ", some of them through no rx queue seen here: {}",
                consumers(&[], &forwarded.from_no_queue)
            );
        }
        let _ = writeln!(text);
    }
    text
}

#[cfg(test)]
mod tests {
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::derive::analysis::Analysis;
    use netsilo_model::snapshot::observation::Observation;
    use netsilo_model::synthetic::scene::Scene;

    use super::*;

    fn report(observation: &Observation) -> Report {
        Report::of(&Analysis::new(observation, &Costs::default()))
    }

    #[test]
    fn one_screen_shows_queues_cpus_and_readers() {
        let scene: Scene =
            serde_json::from_str(include_str!("../../../../cases/virtio-all-on-cpu0/before.json"))
                .unwrap();
        insta::assert_snapshot!(render(&report(&scene.observation()), None));
    }

    #[test]
    fn eighty_columns_keep_what_is_polled_and_read_where() {
        let scene: Scene =
            serde_json::from_str(include_str!("../../../../cases/virtio-all-on-cpu0/before.json"))
                .unwrap();
        let text = render(&report(&scene.observation()), Some(80));
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
        insta::assert_snapshot!(render(&report(&scene.observation()), None));
    }

    #[test]
    fn queues_polled_on_a_cpu_are_grouped_by_netdev() {
        let labels = ["eth0 rx-0", "eth0 rx-1", "eth1 rx-3", "eth0 rx-4", "eth0 napi 8197"]
            .map(str::to_owned);
        assert_eq!(group_queues(&labels), "eth0 rx-0-1,4 eth1 rx-3 eth0 napi 8197");
    }
}
