//! Findings on placement: the interrupts and kthreads that `plan` would move, by the cost model.

use std::collections::BTreeMap;

use netsilo_model::change::{Change, Target};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::silo::Silo;
use netsilo_model::machine::topology::Distance;
use netsilo_model::snapshot::subject::Subject;

use crate::judge::evidence::{Evidence, Measure, Remedy};
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;
use crate::judge::findings::judged::Judged;
use crate::judge::verdict::percent;
use crate::plan::Placement;

/// From this share of a CPU a cost is a warning; a smaller one is an opportunity.
const WARNS: f64 = 0.01;

/// Number of queues that a title and its remedy name.
const QUEUES_NAMED: usize = 4;

/// One finding per netdev whose queues `plan` would move; `placed-well` if it would move none.
pub(super) fn find(judged: &Judged<'_>) -> Vec<Finding> {
    let analysis = judged.analysis;
    let plan = &judged.plan;
    let mut moved: BTreeMap<&str, Vec<&Placement>> = BTreeMap::new();
    for placement in plan.placements.iter().filter(|it| it.moves && !it.is_of_completions()) {
        moved.entry(&placement.netdev.name).or_default().push(placement);
    }
    if moved.is_empty() && plan.refusals.is_empty() {
        return placed_well(analysis).into_iter().collect();
    }
    let far = |(netdev, placements): (&str, Vec<_>)| far(judged, netdev, &placements);
    moved.into_iter().filter_map(far).collect()
}

/// Returns `None` if the plan writes nothing for these placements, because their requested affinity
/// is right.
fn far(judged: &Judged<'_>, netdev: &str, placements: &[&Placement]) -> Option<Finding> {
    let Judged { analysis, plan, .. } = judged;
    let silos: Vec<&Silo> = analysis.silos_of(netdev).collect();
    let cost =
        placements.iter().map(|placement| placement.gain_ns_per_s.max(0) as f64).sum::<f64>() / 1e9;
    let target = |placement: &Placement| {
        let Subject::Queue(_, queue) = &placement.label else { return placement.label.to_string() };
        format!("rx-{queue} to cpu {}", placement.cpus)
    };
    let of_queue = |placement: &&Placement| {
        Evidence::new(
            placement.label.to_string(),
            Measure::Text(placement.basis.clone()),
            "the cost model (docs/judging.md)",
        )
    };
    // The farthest distances first, then what is to be moved.
    let mut distances = distances(&silos).into_iter();
    let farthest = distances.next();
    let queues_first = placements.iter().map(of_queue).chain(distances);
    let distances = plan.predicted.as_ref().map_or("", |predicted| predicted.distances.as_str());
    let saved = Evidence::new(
        "cost of distance, wakeups and shared cores",
        Measure::Share(cost),
        format!("the cost model; {distances}"),
    );
    let evidence = farthest.into_iter().chain(queues_first).chain([saved]).collect();
    let changes = plan.changes.iter().filter(|change| belongs(change, placements, &silos));
    let changes: Vec<Change> = changes.cloned().collect();
    (!changes.is_empty()).then(|| Finding {
        id: FindingId::FarFromConsumers,
        severity: if cost >= WARNS { Severity::Warning } else { Severity::Info },
        subject: Subject::Netdev(netdev.to_owned()),
        title: match placements.len() {
            0..=QUEUES_NAMED => {
                let queues = first_few(placements, |it| it.label.to_string());
                format!("{queues} would cost less on other cpus")
            }
            many => format!("{many} queues would cost less on other cpus"),
        },
        evidence,
        remedies: vec![Remedy {
            what: format!("move {}", first_few(placements, target)),
            gain: judged
                .look
                .gain(&changes, &format!("they cost {} of a cpu where they are", percent(cost))),
            cost: None,
            not_when: Some(
                "the readers change cpus all the time, or another program places interrupts".into(),
            ),
            changes,
            interrupts_traffic: false,
        }],
    })
}

/// Words for the first few placements, and how many more there are.
fn first_few(placements: &[&Placement], words: impl Fn(&Placement) -> String) -> String {
    let named = placements.iter().take(QUEUES_NAMED).map(|it| words(it));
    let more = placements.len().saturating_sub(QUEUES_NAMED);
    named.chain((more > 0).then(|| format!("{more} more"))).collect::<Vec<_>>().join(", ")
}

/// Whether a change moves an interrupt of these placements, or the kthread of one of these queues.
fn belongs(change: &Change, placements: &[&Placement], silos: &[&Silo]) -> bool {
    match &change.target {
        Target::IrqAffinity(knob) => {
            placements.iter().any(|placement| placement.irq == Some(knob.irq))
        }
        Target::NapiThread(knob) => {
            silos.iter().any(|silo| silo.kthread.as_ref().is_some_and(|it| it.pid == knob.pid))
        }
        _ => false,
    }
}

/// Share of the bytes read at each distance, over all queues, farthest first.
fn distances(silos: &[&Silo]) -> Vec<Evidence> {
    let bytes: f64 = silos.iter().map(|silo| silo.locality.bytes_per_s).sum();
    let mut by_distance: BTreeMap<Distance, f64> = BTreeMap::new();
    for silo in silos {
        for (distance, share) in &silo.locality.shares {
            *by_distance.entry(*distance).or_default() +=
                share * silo.locality.bytes_per_s / bytes.max(1.0);
        }
    }
    let rows = by_distance.into_iter().rev().filter(|(_, share)| *share >= 0.01);
    rows.map(|(distance, share)| {
        Evidence::new(
            format!("bytes read at distance \"{}\"", distance.label()),
            Measure::Share(share),
            "eBPF",
        )
    })
    .collect()
}

fn placed_well(analysis: &Analysis<'_>) -> Option<Finding> {
    let silos: Vec<&Silo> =
        analysis.silos.queues.iter().filter(|silo| silo.has_traffic()).collect();
    // averages since boot do not show where packets arrive now
    (!silos.is_empty() && !analysis.after().is_since_boot()).then(|| Finding {
        id: FindingId::PlacedWell,
        severity: Severity::Ok,
        subject: Subject::Machine,
        title: "the cost model finds no better cpus for receive work".into(),
        evidence: distances(&silos),
        remedies: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::findings::check;
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::machine::cpuset::CpuId;
    use netsilo_model::machine::cpuset::CpuSet;
    use netsilo_model::synthetic::grid::Grid;
    use netsilo_model::synthetic::scene::CpuLoad;
    use netsilo_model::synthetic::scene::Reader;
    use netsilo_model::synthetic::scene::Scene;
    use netsilo_model::synthetic::scene::SceneNetdev;
    use netsilo_model::synthetic::scene::SceneQueue;

    /// Findings for a queue polled on CPU 0 (core 0-1) and read on CPU `reader`. `load` and `usr`
    /// are shares of CPU time. The other cores of the cache are idle.
    fn findings_with_reader_on(reader: u32, load: f64, usr: f64) -> Vec<Finding> {
        let reader = Reader {
            comm: "server".into(),
            cpu: CpuId(reader),
            bytes_per_s: 1_000_000,
            ..Reader::default()
        };
        let busy = vec![CpuLoad { cpus: CpuSet::from_cpu(reader.cpu), usr }];
        let (irq, cpus) = (Some(30), CpuSet::from_cpu(CpuId(0)));
        let readers = vec![reader];
        let queue = SceneQueue {
            irq,
            cpus,
            packets_per_s: (load * 300_000.0) as u64,
            load,
            readers,
            ..SceneQueue::default()
        };
        let netdev = SceneNetdev {
            name: "eth0".into(),
            driver: "igb".into(),
            queues: vec![queue],
            ..SceneNetdev::default()
        };
        let grid = Grid { l2s: 4, threads: 2, ..Grid::default() };
        let host = Scene { grid, busy, netdevs: vec![netdev], ..Scene::default() }.observation();
        let mut found = check(&Analysis::new(&host, &Costs::default())).findings;
        found.retain(|finding| {
            matches!(finding.id, FindingId::FarFromConsumers | FindingId::PlacedWell)
        });
        found
    }

    #[test]
    fn a_heavy_queue_is_moved_off_its_busy_readers_core_to_an_idle_core() {
        let found = findings_with_reader_on(1, 0.6, 0.9);
        assert_eq!(found[0].id, FindingId::FarFromConsumers, "{found:#?}");
        assert_eq!(found[0].severity, Severity::Warning, "{found:#?}");
        assert_eq!(found[0].remedies[0].changes.len(), 1, "{found:#?}");
        let light = findings_with_reader_on(1, 0.05, 0.1);
        assert_eq!(light[0].severity, Severity::Info, "{light:#?}");
        assert!(light[0].title.starts_with("eth0 rx-0 would cost less"), "{light:#?}");
        let parted = findings_with_reader_on(2, 0.6, 0.9);
        assert_eq!(parted[0].id, FindingId::PlacedWell, "{parted:#?}");
    }
}
