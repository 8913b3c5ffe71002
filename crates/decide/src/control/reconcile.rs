//! What knobs say, compared with what we wrote: ours still, set up anew by an event, gone, or
//! someone else's now.

use crate::control::events::in_words;
use std::time::Duration;

use netsilo_model::change::{Target, Value};
use netsilo_model::snapshot::host::{KnobOwner, OwnedKnob};

use crate::control::Controller;
use crate::control::decision::{Conflict, What};
use crate::control::knob_state::{Knob, Yielded};
use crate::control::view::View;

impl Controller {
    /// Compares what knobs say with what we wrote.
    pub(super) fn reconcile(&mut self, now: Duration, view: &View<'_>) {
        let targets: Vec<Target> = self.knobs.keys().cloned().collect();
        for target in targets {
            let Some(knob) = self.knobs.get_mut(&target) else { continue };
            let Some(value) = target.value_in(view.after) else {
                let was_ours = knob.ours.is_some();
                self.knobs.remove(&target);
                self.judged.extend(self.trials.end_of(&target, &self.policy));
                if was_ours {
                    self.say(now, Some(&target), What::Gone, "the knob is no more".into());
                }
                continue;
            };
            let over = knob
                .yielded
                .as_ref()
                .zip(self.policy.yield_for)
                .is_some_and(|(y, most)| y.since + most <= now);
            match &knob.ours {
                _ if over => self.regain(now, &target, "it was left to them for long enough"),
                Some(ours) if *ours == value => knob.is_ours(now),
                Some(ours) => {
                    let ours = ours.clone();
                    self.judged.extend(self.trials.end_of(&target, &self.policy));
                    self.differs(now, &target, ours, value);
                }
                None => {}
            }
        }
        self.knobs.retain(|_, knob| !knob.is_blank());
    }

    /// A knob no longer has our value: an event's doing, or someone's.
    fn differs(&mut self, now: Duration, target: &Target, ours: Value, value: Value) {
        let Some(knob) = self.knobs.get_mut(target) else { return };
        let behind =
            self.events.behind(target, knob.seen_ours).filter(|(at, _)| !knob.is_past(*at));
        let Some((at, event)) = behind else {
            return self.yield_to_others(now, target, ours, value);
        };
        let why = format!("{value} instead of {ours}: {}", in_words(event));
        knob.lose(now, *at);
        self.say(now, Some(target), What::Reset, why);
    }

    pub(super) fn yield_to_others(
        &mut self,
        now: Duration,
        target: &Target,
        ours: Value,
        theirs: Value,
    ) {
        let writer = likely_writer(&self.writers, target);
        let why =
            format!("{ours} -> {theirs}, written by someone else (likely {writer}): left to them");
        let knob = self.knobs.entry(target.clone()).or_insert_with(|| Knob::new(now, false));
        knob.regain();
        knob.yielded = Some(Yielded { ours, theirs, writer, since: now });
        self.say(now, Some(target), What::Yield, why);
    }

    pub(super) fn regain(&mut self, now: Duration, target: &Target, why: &str) {
        if let Some(knob) = self.knobs.get_mut(target) {
            knob.regain();
            self.rest = None;
            self.say(now, Some(target), What::Regain, why.to_owned());
        }
    }

    /// The knobs that are left to others.
    pub(super) fn conflicts(&self) -> Vec<Conflict> {
        let conflict = |(target, knob): (&Target, &Knob)| {
            let Yielded { ours, theirs, writer, since } = knob.yielded.clone()?;
            Some(Conflict { target: target.clone(), ours, theirs, writer, since })
        };
        self.knobs.iter().filter_map(conflict).collect()
    }
}

/// Who writes such knobs on this machine.
fn likely_writer(writers: &[KnobOwner], target: &Target) -> String {
    let kind = match target {
        Target::IrqAffinity { .. } | Target::DefaultSmpAffinity => Some(OwnedKnob::IrqAffinity),
        Target::RpsCpus { .. } | Target::RpsFlowCnt { .. } => Some(OwnedKnob::Rps),
        Target::RpsSockFlowEntries | Target::RpsDefaultMask => Some(OwnedKnob::Rps),
        Target::XpsCpus { .. } => Some(OwnedKnob::Xps),
        Target::Sysctl { .. } => Some(OwnedKnob::Sysctls),
        _ => None,
    };
    let names =
        writers.iter().filter(|writer| kind.is_some_and(|kind| writer.writes.contains(&kind)));
    let names: Vec<&str> = names.map(|writer| writer.name.as_str()).collect();
    if names.is_empty() { "unknown".into() } else { names.join(", ") }
}
