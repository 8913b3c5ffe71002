//! What the hints say: where each vector should be, changed only when the controller decides to
//! move it.

use std::collections::BTreeMap;

use netsilo_core::change::{Change, Target};
use netsilo_core::host::Irq;
use netsilo_core::plan::Placement;

/// The advice that is in force.
#[derive(Debug, Default)]
pub(crate) struct Advice(BTreeMap<Irq, Placement>);

impl Advice {
    /// Takes a window's placements: of interrupts that are new, that stay where they are, and that
    /// are to move now.
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
            // The reason given stays that of the decision: its numbers are others in each window.
            let as_before = known.is_some_and(|known| {
                let same = known.cpus == placement.cpus && known.algorithm == placement.algorithm;
                same || (placement.moves && !moves_now(irq))
            });
            if !as_before {
                self.0.insert(irq, placement.clone());
            }
        }
    }

    /// The placements, by interrupt.
    pub(crate) fn placements(&self) -> Vec<Placement> {
        self.0.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use netsilo_core::change::{NetdevIdentity, knobs};
    use netsilo_core::cpuset::CpuSet;
    use netsilo_core::plan::AlgorithmName;

    use super::*;

    fn set(list: &str) -> CpuSet {
        CpuSet::parse_list(list).unwrap()
    }

    fn placement(cpus: &str, moves: bool) -> Placement {
        Placement {
            label: "eth0 rx-0".into(),
            netdev: NetdevIdentity::default(),
            irq: Some(Irq(27)),
            action: "virtio0-input.0".into(),
            cpus: set(cpus),
            algorithm: AlgorithmName::default(),
            basis: String::new(),
            moves,
            gain_ns_per_s: 0,
        }
    }

    #[test]
    fn advice_changes_when_a_move_is_decided_and_not_when_it_is_only_wanted() {
        let mut advice = Advice::default();
        let mut cpus_after = |placement: Placement, writes: &[Change]| {
            advice.take(&[placement], writes);
            advice.placements()[0].cpus.to_string()
        };
        let knob =
            knobs::IrqAffinity { irq: Irq(27), action: "virtio0-input.0".into(), netdev: None };
        let write = Change::new(knob, set("1"), set("3"), "");
        assert_eq!(cpus_after(placement("1", true), &[]), "1", "new");
        assert_eq!(cpus_after(placement("2", true), &[]), "1", "wanted only");
        assert_eq!(cpus_after(placement("3", true), &[write]), "3", "decided");
        assert_eq!(cpus_after(placement("4", false), &[]), "4", "it is there already");
        assert_eq!(
            cpus_after(Placement { action: "eth0-rx".into(), ..placement("5", true) }, &[]),
            "5",
            "another one"
        );
        let basis = |text: &str| Placement { basis: text.into(), ..placement("5", false) };
        assert_eq!(cpus_after(basis("33% busy"), &[]), "5");
        advice.take(&[basis("34% busy")], &[]);
        assert_eq!(advice.placements()[0].basis, "33% busy", "as it was decided");
        advice.take(&[], &[]);
        assert!(advice.placements().is_empty());
    }
}
