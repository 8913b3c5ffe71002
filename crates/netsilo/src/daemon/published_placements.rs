//! The placements that hints publish. They change only when the controller decides to move an
//! interrupt.

use std::collections::BTreeMap;
use std::mem::take;

use netsilo_decide::plan::Placement;
use netsilo_model::change::{Change, Target};
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::host::{IrqState, Snapshot};
use netsilo_sys::daemon::hints::Hint;

/// The published placements, by interrupt.
#[derive(Debug, Clone, Default)]
pub(crate) struct PublishedPlacements {
    placements: BTreeMap<Irq, Placement>,
    /// The configuration was loaded again, so netsilo may not place some interrupts any more.
    reloaded: bool,
}

impl PublishedPlacements {
    /// From the next window on, interrupts without a placement are no longer published.
    pub(crate) fn review(&mut self) {
        self.reloaded = true;
    }

    /// Takes placements of a window for interrupts that are new, stay on their CPUs, or move now.
    /// Removes interrupts that are gone, and CPUs that are offline. An interrupt without a
    /// placement stays published, because its queue only received nothing in this window.
    pub(crate) fn take(&mut self, placements: &[Placement], writes: &[Change], after: &Snapshot) {
        let moves_now = |irq: Irq| {
            writes.iter().any(
                |change| matches!(&change.target, Target::IrqAffinity(knob) if knob.irq == irq),
            )
        };
        let reloaded = take(&mut self.reloaded);
        let is_placed = |irq: Irq| placements.iter().any(|placement| placement.irq == Some(irq));
        self.placements.retain(|irq, known| {
            let same = |state: &IrqState| {
                state.actions.join(",") == known.action && (!reloaded || is_placed(*irq))
            };
            after.irqs.get(irq).is_some_and(same) && known.cpus.intersects(&after.topology.online)
        });
        for placement in placements {
            let Some(irq) = placement.irq else { continue };
            let known = self.placements.get(&irq).filter(|known| known.action == placement.action);
            // Keep the reason of the decision, because its numbers differ in each window.
            let as_before = known.is_some_and(|known| {
                let same = known.cpus == placement.cpus && known.algorithm == placement.algorithm;
                same || (placement.moves && !moves_now(irq))
            });
            if !as_before {
                self.placements.insert(irq, placement.clone());
            }
        }
    }

    /// The hints, by interrupt.
    pub(crate) fn hints(&self) -> Vec<Hint> {
        let hint = |(irq, placement): (&Irq, &Placement)| Hint {
            irq: *irq,
            cpus: placement.cpus.clone(),
            algorithm: placement.algorithm.as_str(),
            reason: placement.basis.clone(),
        };
        self.placements.iter().map(hint).collect()
    }
}

#[cfg(test)]
mod tests {
    use netsilo_decide::place::parts::Parts;
    use netsilo_decide::plan::AlgorithmName;
    use netsilo_model::change::knobs;
    use netsilo_model::machine::cpuset::CpuSet;
    use netsilo_model::machine::topology::Topology;
    use netsilo_model::snapshot::netdev::NetdevIdentity;
    use netsilo_model::snapshot::subject::Subject;

    use super::*;

    fn set(list: &str) -> CpuSet {
        CpuSet::parse_list(list).unwrap()
    }

    fn placement(cpus: &str, moves: bool) -> Placement {
        Placement {
            label: Subject::Queue("eth0".into(), 0),
            netdev: NetdevIdentity::default(),
            irq: Some(Irq(27)),
            action: "virtio0-input.0".into(),
            cpus: set(cpus),
            algorithm: AlgorithmName::default(),
            basis: String::new(),
            moves,
            gain_ns_per_s: 0,
            cost: Parts::default(),
            alternatives: Vec::new(),
        }
    }

    #[test]
    fn a_placement_changes_when_a_move_is_decided_and_not_when_it_is_only_planned() {
        let mut published = PublishedPlacements::default();
        let host = |actions: &[&str], online: &str| {
            let actions = actions.iter().map(|&action| action.to_owned()).collect();
            let irqs = BTreeMap::from([(Irq(27), IrqState { actions, ..IrqState::default() })]);
            let topology = Topology { online: set(online), ..Topology::default() }.into();
            Snapshot { irqs, topology, ..Snapshot::default() }
        };
        let mut cpus_after = |placement: Placement, writes: &[Change]| {
            let host = host(&[placement.action.as_str()], "0-7");
            published.take(&[placement], writes, &host);
            published.hints()[0].cpus.to_string()
        };
        let knob =
            knobs::IrqAffinity { irq: Irq(27), action: "virtio0-input.0".into(), netdev: None };
        let write = Change::new(knob, set("1"), set("3"), "");
        assert_eq!(cpus_after(placement("1", true), &[]), "1", "new");
        assert_eq!(cpus_after(placement("2", true), &[]), "1", "only planned");
        assert_eq!(cpus_after(placement("3", true), &[write]), "3", "decided");
        assert_eq!(cpus_after(placement("4", false), &[]), "4", "already in effect");
        assert_eq!(
            cpus_after(Placement { action: "eth0-rx".into(), ..placement("5", true) }, &[]),
            "5",
            "another interrupt"
        );
        let basis = |text: &str| Placement { basis: text.into(), ..placement("5", false) };
        assert_eq!(cpus_after(basis("33% busy"), &[]), "5");
        let same = host(&["virtio0-input.0"], "0-7");
        published.take(&[basis("34% busy")], &[], &same);
        assert_eq!(published.hints()[0].reason, "33% busy", "the basis of the decision");
        published.take(&[], &[], &same);
        assert_eq!(published.hints()[0].cpus, set("5"), "a window without traffic on the queue");
        let remains = |published: &PublishedPlacements, after: &Snapshot| {
            let mut published = published.clone();
            published.take(&[], &[], after);
            !published.hints().is_empty()
        };
        assert!(
            !remains(&published, &host(&["eth0-rx"], "0-7")),
            "another interrupt of that number"
        );
        assert!(!remains(&published, &Snapshot::default()), "gone");
        assert!(!remains(&published, &host(&["virtio0-input.0"], "0-4")), "its cpu is offline");
        published.review();
        assert!(!remains(&published, &same), "left alone by a new configuration");
        published.take(&[basis("35% busy")], &[], &same);
        assert_eq!(published.hints()[0].reason, "33% busy", "and placed as before");
    }

    #[test]
    fn the_placement_of_a_shared_interrupt_changes_no_sooner() {
        let mut published = PublishedPlacements::default();
        let actions = vec!["eth0-rx-0".to_owned(), "eth0-tx-0".to_owned()];
        let irqs = BTreeMap::from([(Irq(27), IrqState { actions, ..IrqState::default() })]);
        let topology = Topology { online: set("0-7"), ..Topology::default() }.into();
        let host = Snapshot { irqs, topology, ..Snapshot::default() };
        let shared =
            |cpus| Placement { action: "eth0-rx-0,eth0-tx-0".into(), ..placement(cpus, true) };
        for planned in ["1", "2"] {
            published.take(&[shared(planned)], &[], &host);
            assert_eq!(published.hints()[0].cpus, set("1"), "only planned");
        }
    }
}
