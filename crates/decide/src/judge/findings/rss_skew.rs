//! Findings on uneven queue load: what another indirection table can fix, and what no table can.

use netsilo_model::change::{Change, Table, knobs};
use netsilo_model::rss::load::TableLoad;
use netsilo_model::rss::rebalance::{Balanced, balance};
use netsilo_model::snapshot::netdev::{Netdev, NetdevIdentity};
use netsilo_model::snapshot::subject::Subject;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;
use crate::judge::findings::judged::Judged;
use crate::judge::findings::rss::{SOURCE, relief, severity, silo_of};

/// Minimum number of packets in an interval to judge a table.
const ENOUGH_PACKETS: u64 = 1000;
/// A table is uneven if the heaviest queue has this many times the mean load. It is also the limit
/// for the load of one flow compared with a queue's fair share.
const SKEWED: f64 = 1.5;
/// Minimum share of the heaviest queue's load that another table must move.
const WORTH_IT: f64 = 0.2;

/// Judges the table of each netdev that has one, by the flows that arrived.
pub(super) fn find(judged: &Judged<'_>) -> Vec<Finding> {
    let analysis = judged.analysis;
    let netdevs = analysis.after().netdevs.iter().filter(|_| !judged.has_one_cpu());
    netdevs.flat_map(|netdev| of(judged, netdev)).collect()
}

fn of(judged: &Judged<'_>, netdev: &Netdev) -> Vec<Finding> {
    let analysis = judged.analysis;
    let Ok(load) = TableLoad::from_observation(analysis.observation, netdev) else {
        return Vec::new();
    };
    let skewed = load
        .skew()
        .filter(|skew| *skew >= SKEWED && load.is_complete() && load.packets >= ENOUGH_PACKETS);
    let Some(skew) = skewed else { return Vec::new() };
    let balanced = balance(&load.table, &load.load);
    let relieved = 1.0 - balanced.after as f64 / balanced.before.max(1) as f64;
    let mut found = Vec::new();
    if relieved >= WORTH_IT {
        found.push(table_skew(judged, netdev, &load, &balanced, skew));
    }
    found.extend(elephant(netdev, &load));
    found
}

fn evidence(load: &TableLoad, skew: f64) -> Vec<Evidence> {
    let times = |value: f64| Measure::Text(format!("{value:.1}"));
    let mut evidence = vec![
        Evidence::new("heaviest queue's packets, times the mean", times(skew), SOURCE),
        Evidence::new("packets", Measure::Count(load.packets), SOURCE),
        Evidence::new("flows", Measure::Count(load.flows as u64), SOURCE),
        Evidence::new(
            "entries in the table",
            Measure::Count(load.table.len() as u64),
            "ethtool -x DEV",
        ),
    ];
    if let Some(entries) = load.effective_entries() {
        evidence.push(Evidence::new(
            "effective number of entries",
            times(entries),
            "2^entropy of their packets",
        ));
    }
    if let Some((packets, _)) = load.heaviest {
        let share = packets as f64 / load.packets as f64;
        evidence.push(Evidence::new("packets of the heaviest flow", Measure::Share(share), SOURCE));
    }
    evidence
}

/// The queue with the most packets.
fn heaviest(load: &TableLoad) -> u32 {
    let most = load.queues().into_iter().max_by_key(|(_, packets)| *packets);
    most.map_or(0, |(queue, _)| queue)
}

fn table_skew(
    judged: &Judged<'_>,
    netdev: &Netdev,
    load: &TableLoad,
    balanced: &Balanced,
    skew: f64,
) -> Finding {
    let analysis = judged.analysis;
    let queue = heaviest(load);
    let silo = silo_of(analysis, netdev, queue);
    let moved = balanced.moved.len();
    let mean = load.packets as f64 / load.queues().len().max(1) as f64;
    let changes = vec![Change::new(
        knobs::RssTable { netdev: NetdevIdentity::from_netdev(netdev), context: 0 },
        Table(load.table.clone()),
        Table(balanced.table.clone()),
        format!(
            "{moved} entries moved: the heaviest queue gets {:.1} times the mean instead of \
             {skew:.1}",
            balanced.after as f64 / mean
        ),
    )];
    Finding {
        id: FindingId::RssTableSkew,
        severity: severity(analysis, silo),
        subject: Subject::Netdev(netdev.name.clone()),
        title: format!(
            "rx-{queue} receives {skew:.1} times the mean of the queues: the table does not suit \
             these flows"
        ),
        evidence: evidence(load, skew),
        remedies: vec![Remedy {
            what: format!("move {moved} entries of the indirection table"),
            gain: relief(judged, silo, &changes),
            cost: Some(
                "flows of the moved entries change their queue: their packets may be reordered \
                 once, and caches start cold"
                    .into(),
            ),
            not_when: Some(
                "flows last only seconds: the new table would suit flows that are already gone"
                    .into(),
            ),
            changes,
            interrupts_traffic: false,
        }],
    }
}

/// One flow that alone exceeds a queue's fair share.
fn elephant(netdev: &Netdev, load: &TableLoad) -> Option<Finding> {
    let (packets, entry) = load.heaviest?;
    let queues = load.queues().len();
    let parts = packets as f64 * queues as f64 / load.packets as f64;
    if parts < SKEWED || queues < 2 {
        return None;
    }
    let queue = load.table.get(entry).copied()?;
    let others = load.queues().get(&queue).copied().unwrap_or(0).saturating_sub(packets);
    let mut evidence = evidence(load, load.skew().unwrap_or_default());
    evidence.push(Evidence::new(
        format!("other packets on rx-{queue}"),
        Measure::Count(others),
        SOURCE,
    ));
    Some(Finding {
        id: FindingId::RssElephant,
        severity: Severity::Info,
        subject: Subject::Queue(netdev.name.clone(), queue),
        title: format!(
            "one flow is {parts:.1} times a queue's fair share: neither a table nor RPS can split \
             it"
        ),
        evidence,
        remedies: vec![Remedy {
            what: "leave the flow on its queue, and dedicate a CPU to it. RPS on this queue can \
                   only split the work into a pipeline of two CPUs: driver on one, protocol on the \
                   other. Several connections instead of one would spread"
                .into(),
            gain: Gain::Nothing("packets of one flow stay on one queue to keep their order".into()),
            cost: None,
            not_when: None,
            changes: Vec::new(),
            interrupts_traffic: false,
        }],
    })
}
