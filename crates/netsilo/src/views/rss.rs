//! RSS as text.

use std::fmt::Write as _;

use netsilo_decide::report::rss::{FlowQueue, FlowReport, NetdevRss, TableLoadReport};
use netsilo_model::rss::model::{Fit, KeySource};

use crate::views::units;

/// Renders the predicted queue of a flow, one paragraph per netdev.
pub(crate) fn places(places: &[FlowQueue]) -> String {
    let mut text = String::new();
    for place in places {
        let _ = match (&place.predicted, &place.refused) {
            (Some(at), _) => {
                let hash = at.hash.map_or("not hashed".to_owned(), |hash| {
                    format!("hash {hash:#010x} of {}", at.fields)
                });
                writeln!(
                    text,
                    "{}: {} arrives on rx-{} ({hash}, entry {})",
                    place.netdev, place.flow, at.queue, at.entry
                )
            }
            (None, why) => {
                let why = why.as_deref().unwrap_or("no reason is known");
                writeln!(
                    text,
                    "{}: cannot predict the queue of {}: {why}",
                    place.netdev, place.flow
                )
            }
        };
        if let Some(queue) = place.seen_on {
            let _ = writeln!(text, "  seen on rx-{queue}");
        }
        if let Some(cpus) = &place.cpus {
            let _ = writeln!(text, "  its interrupt goes to cpu {cpus}");
        }
        if place.predicted.is_some() {
            let _ = writeln!(text, "  {}", fit(&place.fit));
        }
    }
    text
}

fn fit(fit: &Fit) -> String {
    match fit.flows {
        0 => "no flow was seen that could confirm it".to_owned(),
        _ => fit.to_string(),
    }
}

/// Renders RSS of each netdev, with its flows if `flows` is set.
pub(crate) fn shown(netdevs: &[NetdevRss], flows: bool) -> String {
    let paragraphs = netdevs.iter().map(|netdev| one(netdev, flows));
    paragraphs.collect::<Vec<_>>().join("\n")
}

fn one(netdev: &NetdevRss, flows: bool) -> String {
    let driver = netdev.driver.as_deref().unwrap_or("unknown driver");
    let mut text = format!("{} ({driver})\n", netdev.netdev);
    let function = netdev.function.as_deref().unwrap_or("not known");
    let key = match netdev.key {
        Some(KeySource::Driver) => "shown by the driver",
        Some(KeySource::NetdevRssKey) => {
            "net.core.netdev_rss_key, which this driver uses and does not show"
        }
        None => "not known",
    };
    let fields: Vec<String> =
        netdev.fields.iter().map(|(flow, fields)| format!("{flow} {}", or_none(fields))).collect();
    let fields = if fields.is_empty() { "not known".to_owned() } else { fields.join(", ") };
    let model = match &netdev.no_model {
        Some(why) => format!("queues cannot be predicted: {why}"),
        None => match netdev.fit.likely_cause() {
            Some(cause) => format!("{}; for the others: {cause}", netdev.fit),
            None => fit(&netdev.fit),
        },
    };
    let load = match (&netdev.load, &netdev.no_load) {
        (Some(load), _) => crate::views::rss::load(load),
        (None, why) => why.clone().unwrap_or_default(),
    };
    for (what, value) in
        [("hash", function), ("key", key), ("fields", &fields), ("model", &model), ("load", &load)]
    {
        let _ = writeln!(text, "  {what:<7} {value}");
    }
    let _ = writeln!(text, "  {:<7} {:>8} {:>8} {:>8}", "queue", "entries", "flows", "packets");
    for (queue, taken) in &netdev.queues {
        let packets = units::or_dash(taken.packets, |packets| units::count(packets as f64));
        let flows = units::or_dash(taken.flows, |flows| flows.to_string());
        let (queue, entries) = (format!("rx-{queue}"), taken.entries);
        let _ = writeln!(text, "  {queue:<7} {entries:>8} {flows:>8} {packets:>8}");
    }
    if flows {
        netdev.flows.iter().for_each(|seen| flow(&mut text, seen));
    }
    text
}

fn or_none(fields: &netsilo_model::snapshot::ethtool::HashFields) -> String {
    if fields.is_empty() { "nothing".to_owned() } else { fields.to_string() }
}

fn load(load: &TableLoadReport) -> String {
    let Some(((entries, skew), heaviest)) =
        load.effective_entries.zip(load.skew).zip(load.heaviest_flow)
    else {
        return "no packet was steered by the table".to_owned();
    };
    let packets = units::count(load.packets as f64);
    let mut text = format!(
        "{packets} packets of {} flows, as uneven as {entries:.1} equal entries; the heaviest \
         queue has {skew:.1} times the mean, the heaviest flow {}",
        load.flows,
        units::percent(heaviest)
    );
    for (count, what) in [
        (load.outside, "not steered by the table"),
        (load.missed, "not counted by flow (map full)"),
    ] {
        if count > 0 {
            let _ = write!(text, "; {} {what}", units::count(count as f64));
        }
    }
    text
}

fn flow(text: &mut String, seen: &FlowReport) {
    let flow = &seen.flow;
    let name = flow
        .ends
        .map_or_else(|| format!("connection {}", flow.connection), |ends| ends.to_string());
    let queue = units::or_dash(flow.queue, |queue| format!("rx-{queue}"));
    let hash = units::or_dash(flow.hash, |hash| format!("{hash:#010x}"));
    let packets = units::count(flow.packets as f64);
    let other = match seen.predicted {
        Some(at) if Some(at.queue) != flow.queue => format!(", predicted rx-{}", at.queue),
        _ => String::new(),
    };
    let pieces = if flow.fragments { " in fragments" } else { "" };
    let _ =
        writeln!(text, "  {queue:<7} {packets:>8}  {hash}  {}{pieces} {name}{other}", flow.outer);
}
