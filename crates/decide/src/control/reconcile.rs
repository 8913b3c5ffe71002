//! Phase two: compares what each knob shows with what we wrote.

use std::mem::take;

use super::Controller;
use super::decision::Conflict;
use super::knob_state::{Action, Context, Input, Yielded};
use super::view::Window;
use netsilo_model::change::Target;
use netsilo_model::snapshot::host::{KnobOwner, OwnedKnob};

impl Controller {
    /// Gives each knob the value that the window shows, and forgets knobs without a history.
    pub(super) fn reconcile(&mut self, window: &Window<'_>) {
        for target in self.knobs.keys().cloned().collect::<Vec<_>>() {
            let event = self.events.newest(&target).cloned();
            match target.value_in(window.after()) {
                Some(value) => {
                    self.step(&target, Input::Shows { value: &value, event: event.as_ref() });
                }
                None => self.step(&target, Input::Gone),
            }
        }
        self.knobs.retain(|_, knob| !knob.is_blank());
    }

    /// Gives a knob an input and executes its actions.
    pub(super) fn step(&mut self, target: &Target, input: Input<'_>) {
        let Some(knob) = self.knobs.get_mut(target) else { return };
        let context = Context { now: self.now, target, policy: &self.policy, owners: &self.owners };
        let (next, actions) = take(knob).step(&context, input);
        *knob = next;
        for action in actions {
            match action {
                Action::Log(kind, why) => self.log(Some(target), kind, why),
                Action::EndTrials => self.ended.extend(self.trials.end_of(target)),
                Action::Replan => self.rest = None,
                Action::Forget => drop(self.knobs.remove(target)),
            }
        }
    }

    /// The knobs that are left to other programs.
    pub(super) fn conflicts(&self) -> Vec<Conflict> {
        let knobs = self.knobs.iter();
        let yielded = knobs.filter_map(|(target, knob)| Some((target, knob.as_yielded()?.clone())));
        yielded
            .map(|(target, Yielded { ours, theirs, owner, since })| Conflict {
                target: target.clone(),
                ours,
                theirs,
                writer: owner,
                since,
            })
            .collect()
    }
}

/// The program on this machine that likely wrote such a knob.
pub(super) fn likely_owner(owners: &[KnobOwner], target: &Target) -> String {
    let kind = match target {
        Target::IrqAffinity(_) | Target::DefaultSmpAffinity(_) => Some(OwnedKnob::IrqAffinity),
        Target::RpsCpus(_) | Target::RpsFlowCnt(_) => Some(OwnedKnob::Rps),
        Target::RpsSockFlowEntries(_) | Target::RpsDefaultMask(_) => Some(OwnedKnob::Rps),
        Target::XpsCpus(_) => Some(OwnedKnob::Xps),
        Target::Sysctl(_) => Some(OwnedKnob::Sysctls),
        _ => None,
    };
    let owners =
        owners.iter().filter(|owner| kind.is_some_and(|kind| owner.writes.contains(&kind)));
    let names: Vec<&str> = owners.map(|owner| owner.name.as_str()).collect();
    if names.is_empty() { "unknown".into() } else { names.join(", ") }
}
