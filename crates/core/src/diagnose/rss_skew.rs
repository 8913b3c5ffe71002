//! How unevenly a NIC's indirection table loads its queues: what another table mends, and what none
//! can.

use super::rss::{SOURCE, relief, severity, silo_of};
use super::{Evidence, Finding, FindingId, Gain, Measure, Remedy, Seen, Severity};
use crate::change::{Change, NetdevIdentity, Table, knobs};
use crate::host::Netdev;
use crate::rss_load::TableLoad;
use crate::rss_table::{Balanced, balance};

/// Fewer packets in an interval say nothing of a table.
const ENOUGH_PACKETS: u64 = 1000;
/// The heaviest queue carries so many times the mean.
const SKEWED: f64 = 1.5;
/// Another table takes at least this part off the heaviest queue.
const WORTH_IT: f64 = 0.2;

/// The table of each netdev that has one, by the flows that arrived.
pub(super) fn find(seen: &Seen<'_>) -> Vec<Finding> {
    seen.observation.after.netdevs.iter().flat_map(|netdev| of(seen, netdev)).collect()
}

fn of(seen: &Seen<'_>, netdev: &Netdev) -> Vec<Finding> {
    let Ok(load) = TableLoad::of(seen.observation, netdev) else { return Vec::new() };
    let skewed = load.skew().filter(|skew| *skew >= SKEWED && load.is_whole() && load.packets >= ENOUGH_PACKETS);
    let Some(skew) = skewed else { return Vec::new() };
    let balanced = balance(&load.table, &load.load);
    let relieved = 1.0 - balanced.after as f64 / balanced.before.max(1) as f64;
    let mut found = Vec::new();
    if relieved >= WORTH_IT {
        found.push(table_skew(seen, netdev, &load, &balanced, skew));
    }
    found.extend(elephant(netdev, &load));
    found
}

fn evidence(load: &TableLoad, skew: f64) -> Vec<Evidence> {
    let times = |value: f64| Measure::Text(format!("{value:.1}"));
    let mut evidence = vec![
        Evidence::new("the heaviest queue's packets, in means", times(skew), SOURCE),
        Evidence::new("packets", Measure::Count(load.packets), SOURCE),
        Evidence::new("flows", Measure::Count(load.flows as u64), SOURCE),
        Evidence::new("entries of the table", Measure::Count(load.table.len() as u64), "ethtool -x DEV"),
    ];
    if let Some(entries) = load.entries_in_effect() {
        evidence.push(Evidence::new("equal entries that would be as uneven", times(entries), "2^entropy of their packets"));
    }
    if let Some((packets, _)) = load.heaviest {
        let share = packets as f64 / load.packets as f64;
        evidence.push(Evidence::new("packets of the heaviest flow", Measure::Share(share), SOURCE));
    }
    evidence
}

/// The queue that carries most, and its packets.
fn heaviest(load: &TableLoad) -> (u32, u64) {
    load.queues().into_iter().max_by_key(|(_, packets)| *packets).unwrap_or_default()
}

fn table_skew(seen: &Seen<'_>, netdev: &Netdev, load: &TableLoad, balanced: &Balanced, skew: f64) -> Finding {
    let (queue, _) = heaviest(load);
    let silo = silo_of(seen, netdev, queue);
    let moved = balanced.moved.len();
    let relieved = 1.0 - balanced.after as f64 / balanced.before.max(1) as f64;
    let basis = format!(
        "{moved} of {} entries moved take {:.0}% of its packets off rx-{queue}, by the packets of each entry",
        load.table.len(),
        relieved * 100.0
    );
    let mean = load.packets as f64 / load.queues().len().max(1) as f64;
    let change = Change::new(
        knobs::RssTable { netdev: NetdevIdentity::of(netdev), context: 0 },
        Table(load.table.clone()),
        Table(balanced.table.clone()),
        format!(
            "{moved} entries moved: the heaviest queue gets {:.1} times the mean instead of {skew:.1}",
            balanced.after as f64 / mean
        ),
    );
    Finding {
        id: FindingId::RssTableSkew,
        severity: severity(seen, silo),
        subject: netdev.name.clone(),
        title: format!("rx-{queue} takes {skew:.1} times the mean of the queues: the table fits these flows badly"),
        evidence: evidence(load, skew),
        remedies: vec![Remedy {
            what: format!("move {moved} entries of the indirection table"),
            gain: relief(silo, relieved, &basis),
            cost: Some("flows of the moved entries change their queue: once, packets may overtake; caches start cold".into()),
            not_when: Some("flows come and go within seconds: the table would fit those of a moment ago".into()),
            changes: vec![change],
            interrupts_traffic: false,
        }],
    }
}

/// One flow that alone is more than a queue's fair part.
fn elephant(netdev: &Netdev, load: &TableLoad) -> Option<Finding> {
    let (packets, entry) = load.heaviest?;
    let queues = load.queues().len();
    let parts = packets as f64 * queues as f64 / load.packets as f64;
    if parts < SKEWED || queues < 2 {
        return None;
    }
    let queue = load.table.get(entry).copied()?;
    let company = load.queues().get(&queue).copied().unwrap_or(0).saturating_sub(packets);
    let mut evidence = evidence(load, load.skew().unwrap_or_default());
    evidence.push(Evidence::new(format!("other packets on rx-{queue}"), Measure::Count(company), SOURCE));
    Some(Finding {
        id: FindingId::RssElephant,
        severity: Severity::Info,
        subject: format!("{} rx-{queue}", netdev.name),
        title: format!("one flow is {parts:.1} times a queue's fair part: no table and no RPS splits it"),
        evidence,
        remedies: vec![Remedy {
            what: "leave it its queue, and give it a CPU that has nothing else to do; at best RPS on this queue makes a pipeline of \
                   two CPUs, driver here and protocol there; several connections instead of one would spread"
                .into(),
            gain: Gain::Nothing("packets of one flow stay in order on one queue".into()),
            cost: None,
            not_when: None,
            changes: Vec::new(),
            interrupts_traffic: false,
        }],
    })
}
