//! Whether receive work is near those who read, by the cost model: what `plan` would move, as a
//! finding.

use std::collections::BTreeMap;

use super::{Evidence, Finding, FindingId, Gain, Measure, Remedy, Seen, Severity};
use crate::change::{Change, Target};
use crate::plan::{Goal, Placement, Plan, plan_of};
use crate::silo::Silo;
use crate::topology::Distance;

/// What is moved, by netdev; and that nothing is worth moving, where there is traffic.
pub(super) fn find(seen: &Seen<'_>) -> Vec<Finding> {
    // A finding is what is so; whether another program owns the knob is said when it is to be
    // written.
    let goal = Goal { costs: seen.costs.clone(), even_if_owned: true, ..Goal::default() };
    let plan = plan_of(seen.observation, seen.rates, seen.silos, &goal);
    let mut moved: BTreeMap<&str, Vec<&Placement>> = BTreeMap::new();
    for placement in plan.placements.iter().filter(|placement| placement.moves) {
        moved.entry(&placement.netdev.name).or_default().push(placement);
    }
    if moved.is_empty() && plan.refusals.is_empty() {
        return placed_well(seen).into_iter().collect();
    }
    moved.into_iter().map(|(netdev, placements)| far(seen, netdev, &placements, &plan)).collect()
}

fn far(seen: &Seen<'_>, netdev: &str, placements: &[&Placement], plan: &Plan) -> Finding {
    let silos: Vec<&Silo> = seen.silos.queues.iter().filter(|silo| silo.netdev.name == netdev).collect();
    let gain = placements.iter().map(|placement| placement.gain_ns_per_s.max(0) as f64).sum::<f64>() / 1e9;
    let queues: Vec<&str> = placements.iter().map(|placement| placement.label.as_str()).collect();
    let mut evidence: Vec<Evidence> = distances(&silos);
    evidence.extend(placements.iter().map(|placement| {
        Evidence::new(&placement.label, Measure::Text(placement.basis.clone()), "the cost model (docs/placing.md)")
    }));
    let distances = plan.predicted.as_ref().map_or("", |predicted| predicted.distances.as_str());
    Finding {
        id: FindingId::FarFromConsumers,
        severity: Severity::Warning,
        subject: netdev.to_owned(),
        title: format!("{} would cost less elsewhere", queues.join(", ")),
        evidence,
        remedies: vec![Remedy {
            what: "move their interrupts as netsilo plan says".into(),
            gain: Gain::AtMost {
                measure: Measure::Share(gain),
                of: "a cpu".into(),
                basis: format!("distance, wakeups and crowding by the cost model; {distances}"),
            },
            cost: None,
            not_when: Some("the readers move about faster than interrupts are placed, or another program places them".into()),
            changes: plan.changes.iter().filter(|change| belongs(change, placements, &silos)).cloned().collect(),
            interrupts_traffic: false,
        }],
    }
}

/// Whether a change moves one of these interrupts, or the kthread of one of these queues.
fn belongs(change: &Change, placements: &[&Placement], silos: &[&Silo]) -> bool {
    match &change.target {
        Target::IrqAffinity(knob) => placements.iter().any(|placement| placement.irq == Some(knob.irq)),
        Target::NapiThread(knob) => silos.iter().any(|silo| silo.kthread.as_ref().is_some_and(|it| it.pid == knob.pid)),
        _ => false,
    }
}

/// How far the data travels, over all queues, from the farthest on.
fn distances(silos: &[&Silo]) -> Vec<Evidence> {
    let bytes: f64 = silos.iter().map(|silo| silo.locality.bytes_per_s).sum();
    let mut by_distance: BTreeMap<Distance, f64> = BTreeMap::new();
    for silo in silos {
        for (distance, share) in &silo.locality.shares {
            *by_distance.entry(*distance).or_default() += share * silo.locality.bytes_per_s / bytes.max(1.0);
        }
    }
    let rows = by_distance.into_iter().rev().filter(|(_, share)| *share >= 0.01);
    rows.map(|(distance, share)| {
        Evidence::new(format!("bytes read at distance \"{}\"", distance.label()), Measure::Share(share), "eBPF")
    })
    .collect()
}

fn placed_well(seen: &Seen<'_>) -> Option<Finding> {
    let silos: Vec<&Silo> = seen.silos.queues.iter().filter(|silo| silo.has_traffic()).collect();
    (!silos.is_empty()).then(|| Finding {
        id: FindingId::PlacedWell,
        severity: Severity::Ok,
        subject: "machine".into(),
        title: "receive work is where the cost model wants it".into(),
        evidence: distances(&silos),
        remedies: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Costs;
    use crate::cpuset::{CpuId, CpuSet};
    use crate::diagnose::check;
    use crate::grid::Grid;
    use crate::scene::{Busy, Reader, Scene, SceneNetdev, SceneQueue};

    /// A queue on CPU 0 of core 0-1, read on `reader`, which is busy; the other cores of the cache
    /// idle.
    fn beside(reader: u32, load: f64, usr: f64) -> Vec<Finding> {
        let reader = Reader { comm: "server".into(), cpu: CpuId(reader), bytes_per_s: 1_000_000, ..Reader::default() };
        let busy = vec![Busy { cpus: CpuSet::of(reader.cpu), usr }];
        let (irq, cpus) = (Some(30), CpuSet::of(CpuId(0)));
        let readers = vec![reader];
        let queue = SceneQueue { irq, cpus, packets_per_s: (load * 300_000.0) as u64, load, readers, ..SceneQueue::default() };
        let netdev = SceneNetdev { name: "eth0".into(), driver: "igb".into(), queues: vec![queue], ..SceneNetdev::default() };
        let grid = Grid { l2s: 4, threads: 2, ..Grid::default() };
        let host = Scene { grid, busy, netdevs: vec![netdev], ..Scene::default() }.observation();
        let mut found = check(&host, &Costs::default()).findings;
        found.retain(|finding| matches!(finding.id, FindingId::FarFromConsumers | FindingId::PlacedWell));
        found
    }

    #[test]
    fn a_heavy_queue_and_its_busy_reader_on_one_core_are_parted_while_another_core_idles() {
        let found = beside(1, 0.6, 0.9);
        assert_eq!(found[0].id, FindingId::FarFromConsumers, "{found:#?}");
        assert_eq!(found[0].remedies[0].changes.len(), 1, "{found:#?}");
        let light = beside(1, 0.05, 0.1);
        assert_eq!(light[0].id, FindingId::PlacedWell, "{light:#?}");
        let parted = beside(2, 0.6, 0.9);
        assert_eq!(parted[0].id, FindingId::PlacedWell, "{parted:#?}");
    }
}
