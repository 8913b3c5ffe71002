//! The placements that hints publish; they change only when the controller decides to move an
//! interrupt.

use std::collections::BTreeMap;

use netsilo_decide::plan::Placement;
use netsilo_model::change::{Change, Target};
use netsilo_model::machine::ids::Irq;
use netsilo_sys::daemon::hints::Hint;

/// The published placements, by interrupt.
#[derive(Debug, Default)]
pub(crate) struct Advice(BTreeMap<Irq, Placement>);

impl Advice {
    /// Takes placements of a window for interrupts that are new, that stay on their CPUs, or that
    /// move now.
    pub(crate) fn take(&mut self, placements: &[Placement], writes: &[Change]) {
        let moves_now = |irq: Irq| {
            writes.iter().any(
                |change| matches!(&change.target, Target::IrqAffinity(knob) if knob.irq == irq),
            )
        };
        let of = |irq: Irq| placements.iter().any(|placement| placement.irq == Some(irq));
        self.0.retain(|irq, _| of(*irq));
        for placement in placements {
            let Some(irq) = placement.irq else { continue };
            let known = self.0.get(&irq).filter(|known| known.action == placement.action);
            // Keep the reason of the decision; its numbers differ in each window.
            let as_before = known.is_some_and(|known| {
                let same = known.cpus == placement.cpus && known.algorithm == placement.algorithm;
                same || (placement.moves && !moves_now(irq))
            });
            if !as_before {
                self.0.insert(irq, placement.clone());
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
        self.0.iter().map(hint).collect()
    }
}

#[cfg(test)]
mod tests {
    use netsilo_decide::place::model::Parts;
    use netsilo_decide::plan::AlgorithmName;
    use netsilo_model::change::knobs;
    use netsilo_model::machine::cpuset::CpuSet;
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
    fn advice_changes_when_a_move_is_decided_and_not_when_it_is_only_planned() {
        let mut advice = Advice::default();
        let mut cpus_after = |placement: Placement, writes: &[Change]| {
            advice.take(&[placement], writes);
            advice.hints()[0].cpus.to_string()
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
        advice.take(&[basis("34% busy")], &[]);
        assert_eq!(advice.hints()[0].reason, "33% busy", "the basis of the decision");
        advice.take(&[], &[]);
        assert!(advice.hints().is_empty());
    }
}
