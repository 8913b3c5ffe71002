//! Phase two: compares the value of each knob with what we wrote.

use super::decision::Conflict;
use super::knob_state::{Input, Yielded};
use super::memory::Memory;
use super::view::Window;

impl Memory {
    /// Passes to each knob the value that the window shows. Forgets knobs without a history.
    pub(super) fn reconcile(&mut self, window: &Window<'_>) {
        for target in self.knobs.keys().cloned().collect::<Vec<_>>() {
            let event = self.events.newest(&target, &self.owners).cloned();
            match target.value_in(window.after()) {
                Some(value) => {
                    self.step(&target, Input::Shows { value: &value, event: event.as_ref() });
                }
                None => self.step(&target, Input::Gone),
            }
        }
        self.knobs.retain(|_, knob| !knob.is_blank());
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
                owner,
                since,
            })
            .collect()
    }
}
