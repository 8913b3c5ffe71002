//! The page of consumers: how much each reads, from which queues, on which CPUs, and how far away.

use std::collections::BTreeMap;

use netsilo_model::derive::silo::{ConsumerShare, Silo};
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::machine::topology::Topology;
use netsilo_model::snapshot::attribution::AttributionSource;

use crate::tell::palette::{Meaning, Palette};
use crate::tell::words::grouped;
use crate::top::listing::{Cell, Column, Listing, Row, left, number};
use crate::top::map::Mark;
use crate::top::window::Window;
use crate::views::units::{bytes_per_s, percent};

const COLUMNS: &[Column] = &[
    left("process", 0),
    number("pid", 3),
    number("bytes/s", 0),
    left("queues", 1),
    left("reads on", 0),
    number("near", 0),
    number("node", 4),
    number("other node", 2),
    left("cgroup", 5),
];

/// A consumer with everything that it reads.
#[derive(Default)]
struct Consumer<'a> {
    comm: &'a str,
    cgroup: Option<&'a str>,
    container: Option<&'a str>,
    bytes_per_s: f64,
    queues: Vec<String>,
    cpus: CpuSet,
    /// Bytes per second by where they are read: under the cache of the protocol, in its node, and
    /// on another node.
    by_distance: [f64; 3],
}

/// Lists the consumers; those that read most come first.
pub(super) fn listing(window: &Window, palette: Palette) -> Listing {
    let mut consumers: Vec<_> = consumers(window).into_iter().collect();
    consumers.sort_by(|(_, a), (_, b)| b.bytes_per_s.total_cmp(&a.bytes_per_s));
    Listing {
        columns: COLUMNS,
        rows: consumers.iter().map(|((tgid, _), consumer)| row(*tgid, consumer, palette)).collect(),
        empty: match window.report.attribution.source {
            AttributionSource::None => "consumers unknown: nothing was counted",
            AttributionSource::SockDiag => "no consumer of TCP was seen; others are not counted",
            AttributionSource::Bpf => {
                "no consumer matches; without a filter: none was seen to read in this window"
            }
        }
        .into(),
        notes: vec![
            "near, node, other node: relative to the nearest cpu that ran the protocol".into(),
        ],
    }
}

fn consumers(window: &Window) -> BTreeMap<(u32, &str), Consumer<'_>> {
    let mut all: BTreeMap<(u32, &str), Consumer<'_>> = BTreeMap::new();
    let report = &window.report;
    for silo in report.netdevs.iter().flat_map(|netdev| &netdev.queues) {
        for share in &silo.consumers {
            let consumer = add(&mut all, share, silo.label());
            for (sum, bytes) in
                consumer.by_distance.iter_mut().zip(by_distance(silo, share, window.topology()))
            {
                *sum += bytes;
            }
        }
    }
    let totals = &report.totals;
    for (traffic, name) in [
        (&totals.local, "local"),
        (&totals.foreign, "other namespace"),
        (&totals.unresolved, "not found"),
    ] {
        traffic.consumers.iter().for_each(|share| {
            add(&mut all, share, name.to_owned());
        });
    }
    all
}

fn add<'a, 'b>(
    all: &'b mut BTreeMap<(u32, &'a str), Consumer<'a>>,
    share: &'a ConsumerShare,
    queue: String,
) -> &'b mut Consumer<'a> {
    let consumer = all.entry((share.tgid, &share.comm)).or_default();
    consumer.comm = &share.comm;
    consumer.cgroup = share.cgroup.as_deref();
    consumer.container = share.container.as_deref();
    consumer.bytes_per_s += share.bytes_per_s;
    consumer.queues.push(queue);
    share.cpus.keys().for_each(|cpu| consumer.cpus.insert(*cpu));
    consumer
}

fn by_distance(silo: &Silo, share: &ConsumerShare, topology: &Topology) -> [f64; 3] {
    let mut bytes = [0.0; 3];
    for (cpu, part) in &share.cpus {
        let Some(distance) = silo.distance_to_reader(*cpu, topology) else { continue };
        let at = match Mark::of_reader(distance) {
            Mark::SameNode => 1,
            Mark::Remote => 2,
            _ => 0,
        };
        bytes[at] += part * share.bytes_per_s;
    }
    bytes
}

fn row(tgid: u32, consumer: &Consumer<'_>, palette: Palette) -> Row {
    let known: f64 = consumer.by_distance.iter().sum();
    let glyphs = [Mark::Near, Mark::SameNode, Mark::Remote].map(|mark| mark.glyph(palette));
    let cell = |at: usize, meaning: Meaning| {
        let share = (known > 0.0).then(|| consumer.by_distance[at] / known);
        let there = share.is_some_and(|share| share > 0.0);
        let text = |share| {
            if there { format!("{} {}", glyphs[at], percent(share)) } else { percent(share) }
        };
        Cell::number(share, text).meaning(if there { meaning } else { Meaning::Quiet })
    };
    let cgroup = consumer.cgroup.map(|path| path.rsplit('/').next().unwrap_or(path));
    let cgroup = consumer.container.or(cgroup).unwrap_or("-");
    Row {
        key: format!("{} {tgid}", consumer.comm),
        cells: vec![
            Cell::text(consumer.comm),
            Cell::number((tgid != 0).then(|| f64::from(tgid)), |pid| pid.to_string()),
            Cell::number(Some(consumer.bytes_per_s), bytes_per_s),
            Cell::text(grouped(&consumer.queues).join(" ")),
            Cell::text(consumer.cpus.to_string()),
            cell(0, Meaning::Good),
            cell(1, Meaning::Fair),
            cell(2, Meaning::Bad),
            Cell::text(cgroup),
        ],
    }
}
