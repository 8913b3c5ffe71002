//! The placements that hints publish; they change only when the controller decides to move an
//! interrupt.

use std::collections::BTreeMap;

use netsilo_decide::plan::Placement;
use netsilo_model::change::{Change, Target};
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::host::IrqState;
use netsilo_sys::daemon::hints::Hint;

/// The published placements, by interrupt.
#[derive(Debug, Default)]
pub(crate) struct Advice(BTreeMap<Irq, Placement>);

impl Advice {
    /// Takes placements of a window for interrupts that are new, that stay on their CPUs, or that
    /// move now; forgets interrupts that are gone. An interrupt without a placement keeps its
    /// advice: its queue received nothing in this window.
    pub(crate) fn take(
        &mut self,
        placements: &[Placement],
        writes: &[Change],
        irqs: &BTreeMap<Irq, IrqState>,
    ) {
        let moves_now = |irq: Irq| {
            writes.iter().any(
                |change| matches!(&change.target, Target::IrqAffinity(knob) if knob.irq == irq),
            )
        };
        self.0.retain(|irq, known| {
            irqs.get(irq).is_some_and(|state| state.actions.contains(&known.action))
        });
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
        let irqs = |action: &str| {
            let state = IrqState { actions: vec![action.to_owned()], ..IrqState::default() };
            BTreeMap::from([(Irq(27), state)])
        };
        let mut cpus_after = |placement: Placement, writes: &[Change]| {
            let irqs = irqs(&placement.action);
            advice.take(&[placement], writes, &irqs);
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
        let same = irqs("virtio0-input.0");
        advice.take(&[basis("34% busy")], &[], &same);
        assert_eq!(advice.hints()[0].reason, "33% busy", "the basis of the decision");
        advice.take(&[], &[], &same);
        assert_eq!(advice.hints()[0].cpus, set("5"), "a window without traffic on the queue");
        for gone in [irqs("eth0-rx"), BTreeMap::new()] {
            let mut advice = Advice(advice.0.clone());
            advice.take(&[], &[], &gone);
            assert!(advice.hints().is_empty());
        }
    }
}
