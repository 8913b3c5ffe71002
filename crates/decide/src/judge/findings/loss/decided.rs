//! Packets that were dropped on purpose: no finding, but said where nothing was lost.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use netsilo_model::derive::drop_class::DropClass;
use netsilo_model::drivers::loss_stage::LossStage;

use crate::judge::dropped::DropRow;
use crate::judge::ledger::Ledger;

/// At most this many places are named.
const NAMED: usize = 3;

/// What was dropped on purpose, and where most of it: `2300 packets were dropped on purpose (2000
/// at eth0 by NETFILTER_DROP, 300 at eth1 by XDP)`. `None` if nothing was.
pub(super) fn on_purpose(ledger: &Ledger) -> Option<String> {
    let mut places: BTreeMap<String, u64> = BTreeMap::new();
    let mut add = |place: String, packets: u64| {
        let sum = places.entry(place).or_default();
        *sum = sum.saturating_add(packets);
    };
    let decided = || ledger.dropped.iter().flatten().filter(|row| row.class == DropClass::Decided);
    decided().for_each(|row| add(place(row), row.packets));
    // A driver counts what its XDP program drops. The event sees that only of veths.
    let seen = |netdev: &str| {
        let rows = decided().filter(|row| row.netdev == netdev && row.function.contains("xdp"));
        rows.fold(0, |sum: u64, row| sum.saturating_add(row.packets))
    };
    let aside =
        ledger.stages.iter().flat_map(|stage| stage.lines.iter().map(move |it| (stage, it)));
    for (stage, line) in aside {
        let netdev = line.subject.to_string();
        let count = line.count.unwrap_or(0);
        match stage.stage {
            LossStage::Xdp => add(format!("{netdev} by XDP"), count.saturating_sub(seen(&netdev))),
            LossStage::Qdisc if line.aside.is_some() && ledger.dropped.is_none() => {
                add(format!("{netdev} by {}", line.counter.trim_end_matches(" drops")), count);
            }
            _ => {}
        }
    }
    places.retain(|_, packets| *packets > 0);
    let all = places.values().fold(0, |sum: u64, packets| sum.saturating_add(*packets));
    let mut sorted: Vec<_> = places.iter().collect();
    sorted.sort_by_key(|(place, packets)| (Reverse(**packets), *place));
    let more = if sorted.len() > NAMED { ", ..." } else { "" };
    let named = sorted.iter().take(NAMED).map(|(place, packets)| format!("{packets} at {place}"));
    let named: Vec<String> = named.collect();
    (all > 0).then(|| format!("{all} packets were dropped on purpose ({}{more})", named.join(", ")))
}

/// The netdev or namespace, and the reason or function.
fn place(row: &DropRow) -> String {
    let at = match row.elsewhere() {
        Some(netns) => format!("netns {netns}"),
        None if row.netdev.is_empty() => "this machine".to_owned(),
        None => row.netdev.clone(),
    };
    let by = match row.reason.as_str() {
        "" | "NOT_SPECIFIED" => &row.function,
        reason => reason,
    };
    format!("{at} by {by}")
}

#[cfg(test)]
mod tests {
    use netsilo_model::snapshot::subject::Subject;

    use super::*;
    use crate::judge::ledger::{LossCounter, StageLosses};

    #[test]
    fn what_was_dropped_on_purpose_is_said_once_with_the_place_of_most() {
        assert_eq!(on_purpose(&Ledger::default()), None);
        let row = |netdev: &str, reason: &str, function: &str, packets| DropRow {
            class: DropClass::Decided,
            netdev: netdev.into(),
            reason: reason.into(),
            function: function.into(),
            packets,
            ..DropRow::default()
        };
        let xdp = |netdev: &str, count| LossCounter {
            subject: Subject::Netdev(netdev.into()),
            netns: None,
            counter: "rx_xdp_drops".into(),
            count: Some(count),
            since_boot: count,
            aside: None,
            source: String::new(),
        };
        let lost = DropRow { class: DropClass::Lost, ..row("eth0", "NOMEM", "", 7) };
        let ledger = Ledger {
            // The event has the packets of the veth, too.
            stages: vec![StageLosses {
                stage: LossStage::Xdp,
                count: 35,
                by_event: Some(0),
                elsewhere: 0,
                per_s: 35.0,
                since_boot: 35,
                lines: vec![xdp("veth0", 5), xdp("eth0", 30)],
            }],
            dropped: Some(vec![
                row("veth0", "NOT_SPECIFIED", "veth_xdp_rcv_skb", 5),
                row("eth0", "NETFILTER_DROP", "nf_hook_slow", 900),
                lost,
            ]),
            ..Ledger::default()
        };
        assert_eq!(
            on_purpose(&ledger).unwrap(),
            "935 packets were dropped on purpose (900 at eth0 by NETFILTER_DROP, 30 at eth0 by \
             XDP, 5 at veth0 by veth_xdp_rcv_skb)"
        );
    }
}
