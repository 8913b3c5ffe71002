//! One knob as a state machine: whose value it has, whether the plan wants another value, and the
//! history that decides how soon a wanted change may be written.
//!
//! [`TrackedKnob::step`] is pure: a knob and an input give the next knob and the controller's
//! actions. What several knobs share (the budget, the silo, the verifications) is not decided here.

use netsilo_model::change::{Change, Target, Value};
use std::mem::{discriminant, take};
use std::time::Duration;

use super::decision::{LogKind, WriteResult};
use super::demand::{Demand, WINDOWS_WANTED, Want};
use super::events::{GRACE, MEMORY, describe};
use super::history::History;
use super::hold::Hold;
use super::owner::likely_owner;
use super::planned::Planned;
use super::policy::Policy;
use crate::place::SUFFICES_FIXED;
use netsilo_model::cost::problem::SECOND_NS;
use netsilo_model::snapshot::event::Event;
use netsilo_model::snapshot::host::KnobOwner;

/// One knob.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct TrackedKnob {
    state: KnobState,
    demand: Demand,
    history: History,
}

/// Whose value the knob has.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) enum KnobState {
    /// The value is not ours, and the knob may be written.
    #[default]
    Free,
    /// The value that we wrote.
    Ours(Ours),
    /// A kernel event removed our value or created the knob. The next write is a re-application.
    Reset(Reset),
    /// The value of another program. It is not written until the knob is returned.
    Yielded(Yielded),
}

/// A value of ours.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ours {
    /// The value that the knob reported after the write.
    value: Value,
    /// The end of the last window that showed it.
    seen_at: Duration,
    /// The event that removed the previous value.
    reset: Option<PastReset>,
}

/// An event after which the value was written again.
#[derive(Debug, Clone, Copy, PartialEq)]
struct PastReset {
    announced_at: Duration,
    /// A window has shown our value since, so the event explains no further change.
    over: bool,
}

/// A knob after a kernel event.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Reset {
    noticed_at: Duration,
    /// `None` for a new knob.
    removal: Option<Removal>,
    /// The value since then, and the end of the last window that showed it.
    left: Option<(Value, Duration)>,
    /// A plan has kept that value.
    kept: bool,
}

/// A kernel event that removed our value.
#[derive(Debug, Clone, PartialEq)]
struct Removal {
    announced_at: Duration,
    /// The value; `None` if the removal was first mistaken for another program's write.
    lost: Option<Value>,
}

/// A knob that another program has written.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Yielded {
    pub(super) ours: Value,
    pub(super) theirs: Value,
    pub(super) owner: String,
    pub(super) since: Duration,
}

/// What a step depends on, in addition to the knob and the input.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) now: Duration,
    pub(super) target: &'a Target,
    pub(super) policy: &'a Policy,
    /// Other programs that write knobs.
    pub(super) owners: &'a [KnobOwner],
}

/// What happens to a knob.
#[derive(Debug)]
pub(super) enum Input<'a> {
    /// A window shows this value. `event` is the newest event that covers the knob, with its time.
    Shows { value: &'a Value, event: Option<&'a (Duration, Event)> },
    /// A window shows that the knob no longer exists.
    Gone,
    /// The kernel just announced this event, which covers the knob.
    Announced(&'a Event),
    /// netsilo may write a knob again that was left to another program.
    Return { why: &'static str },
    /// A window was planned.
    Planned(Planned<'a>),
    /// A wanted change is held.
    Held(&'a Hold),
    /// The write of a wanted change is requested.
    Requested(&'a Change),
    /// The result of a request.
    Written {
        request: WriteKind,
        change: &'a Change,
        read_there: Option<f64>,
        result: &'a WriteResult,
    },
}

/// The purpose of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteKind {
    Write,
    Reapply,
    Revert,
}

/// What the controller has to do after a step.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    Log(LogKind, String),
    /// End the verifications of this knob, because its value has changed.
    EndVerifications,
    /// Make a new plan in the next window.
    Replan,
    /// Remove the knob, because it no longer exists.
    Forget,
}

type Step = (TrackedKnob, Vec<Action>);

impl TrackedKnob {
    /// A knob that is seen for the first time now. `reset`: a kernel event may have created it.
    pub(super) fn new(now: Duration, reset: bool) -> Self {
        let state = if reset { KnobState::Reset(Reset::new(now, None)) } else { KnobState::Free };
        let history = History::new(now);
        Self { state, history, ..Self::default() }
    }

    /// The next state, and the resulting actions. Every input is allowed in every state.
    pub(super) fn step(self, context: &Context<'_>, input: Input<'_>) -> Step {
        match input {
            Input::Shows { value, event } => self.shows(context, value, event),
            Input::Gone => self.gone(),
            Input::Announced(event) => self.announced(context, event),
            Input::Return { why } => self.returned(why),
            Input::Planned(planned) => (self.planned(context, &planned), Vec::new()),
            Input::Held(hold) => self.held(hold),
            Input::Requested(change) => self.requested(change),
            Input::Written { request, change, read_there, result } => match result {
                WriteResult::InEffect(value) => {
                    self.in_effect(context, request, change, value, read_there)
                }
                WriteResult::Refused(why) => self.refused(context, why),
                WriteResult::Overwritten(theirs) => {
                    let ours = self.ours().unwrap_or(&change.old).clone();
                    self.yielded(context, ours, theirs)
                }
                WriteResult::Gone => {
                    let why = "it no longer existed when it was to be written".to_owned();
                    (Self::default(), vec![Action::Forget, Action::Log(LogKind::Gone, why)])
                }
            },
        }
    }

    fn shows(
        mut self,
        context: &Context<'_>,
        value: &Value,
        event: Option<&(Duration, Event)>,
    ) -> Step {
        match &mut self.state {
            KnobState::Ours(ours) if ours.value == *value => {
                ours.seen_at = context.now;
                ours.reset.iter_mut().for_each(|reset| reset.over = true);
                (self, Vec::new())
            }
            KnobState::Ours(ours) => {
                let cause = event.filter(|(at, _)| ours.is_explained_by(*at));
                let ours = ours.value.clone();
                let (knob, mut actions) = match cause {
                    Some((at, event)) => {
                        let why = format!("{value} instead of {ours}: {}", describe(event));
                        let removal = Removal { announced_at: *at, lost: Some(ours) };
                        self.reset(context.now, removal, Some(value), why)
                    }
                    None => self.yielded(context, ours, value),
                };
                actions.insert(0, Action::EndVerifications);
                (knob, actions)
            }
            KnobState::Reset(reset) => {
                let explained = event.is_some_and(|(at, _)| reset.is_explained_by(*at));
                match &mut reset.left {
                    Some((left, _)) if left != value && !explained => {
                        let left = left.clone();
                        let lost = reset.removal.as_ref().and_then(|it| it.lost.clone());
                        self.yielded(context, lost.unwrap_or(left), value)
                    }
                    left => {
                        *left = Some((value.clone(), context.now));
                        (self, Vec::new())
                    }
                }
            }
            KnobState::Yielded(yielded)
                if context
                    .policy
                    .yield_for
                    .is_some_and(|most| yielded.until(most) <= context.now) =>
            {
                self.returned("the time for which it was left to the other program is over")
            }
            KnobState::Free | KnobState::Yielded(_) => (self, Vec::new()),
        }
    }

    fn gone(self) -> Step {
        let mut actions = vec![Action::Forget, Action::EndVerifications];
        if self.ours().is_some() {
            actions.push(Action::Log(LogKind::Gone, "the knob no longer exists".to_owned()));
        }
        (Self::default(), actions)
    }

    /// An event may be announced only after its effect was mistaken for another program's write.
    fn announced(self, context: &Context<'_>, event: &Event) -> Step {
        match &self.state {
            KnobState::Yielded(yielded) if yielded.until(GRACE) >= context.now => {
                let why = format!("not another program: {}", describe(event));
                let removal = Removal { announced_at: context.now, lost: None };
                let left = yielded.theirs.clone();
                self.reset(context.now, removal, Some(&left), why)
            }
            _ => (self, Vec::new()),
        }
    }

    fn reset(mut self, now: Duration, removal: Removal, left: Option<&Value>, why: String) -> Step {
        let left = left.map(|value| (value.clone(), now));
        self.state = KnobState::Reset(Reset { left, ..Reset::new(now, Some(removal)) });
        self.demand = Demand::Unjudged;
        (self, vec![Action::Log(LogKind::Reset, why)])
    }

    fn yielded(mut self, context: &Context<'_>, ours: Value, theirs: &Value) -> Step {
        let owner = likely_owner(context.owners, context.target);
        let why =
            format!("{ours} -> {theirs}, written by another program (likely {owner}): left alone");
        let theirs = theirs.clone();
        self.state = KnobState::Yielded(Yielded { ours, theirs, owner, since: context.now });
        self.demand = Demand::Unjudged;
        (self, vec![Action::Log(LogKind::Yield, why)])
    }

    fn returned(mut self, why: &str) -> Step {
        if !matches!(self.state, KnobState::Yielded(_)) {
            return (self, Vec::new());
        }
        (self.state, self.demand) = (KnobState::Free, Demand::Unjudged);
        (self, vec![Action::Replan, Action::Log(LogKind::Regain, why.to_owned())])
    }

    fn planned(mut self, context: &Context<'_>, planned: &Planned<'_>) -> Self {
        let now = context.now;
        let is_over = |since: Duration| since.saturating_add(MEMORY) <= now;
        if let KnobState::Reset(reset) = &mut self.state {
            match planned.change {
                _ if is_over(reset.noticed_at) => self.state = KnobState::Free,
                None => reset.kept = true,
                Some(change) if reset.is_settled(&change.new) => self.state = KnobState::Free,
                Some(_) => {}
            }
        }
        let (demand, gave_up) = self.demand.planned(now, planned, self.history.abandoned);
        self.demand = demand;
        self.history.planned(now, planned, gave_up, context.policy);
        self
    }

    /// If a want is held as noise together with its silo, it is noise itself: a later plan may, by
    /// noise, leave out the change for which it was held.
    fn held(mut self, hold: &Hold) -> Step {
        if let Demand::Wanted(want) = &mut self.demand {
            match hold {
                Hold::Noise => want.noise = true,
                Hold::SmallGain(_) => want.note_small_gain(self.history.abandoned),
                _ => {}
            }
        }
        if !hold.is_logged() {
            return (self, Vec::new());
        }
        let is_new = self.history.logged.replace(discriminant(hold)) != Some(discriminant(hold));
        let log = is_new.then(|| Action::Log(LogKind::Hold, hold.to_string()));
        (self, log.into_iter().collect())
    }

    /// Logged once while nobody writes it.
    fn requested(mut self, change: &Change) -> Step {
        let kind = if self.is_reset() { LogKind::Reapply } else { LogKind::Write };
        let before = match &mut self.demand {
            Demand::Wanted(want) => want.requested.replace(change.new.clone()),
            Demand::Unjudged | Demand::Content => None,
        };
        let log = (before.as_ref() != Some(&change.new)).then(|| {
            Action::Log(kind, format!("{} -> {}: {}", change.old, change.new, change.reason))
        });
        (self, log.into_iter().collect())
    }

    /// A re-application is no change.
    fn in_effect(
        mut self,
        context: &Context<'_>,
        request: WriteKind,
        change: &Change,
        value: &Value,
        read_there: Option<f64>,
    ) -> Step {
        let now = context.now;
        let (again, lost, reset) = match take(&mut self.state) {
            KnobState::Reset(Reset { removal: Some(it), .. }) => {
                let Removal { announced_at, lost } = it;
                (true, lost, Some(PastReset { announced_at, over: false }))
            }
            KnobState::Reset(Reset { removal: None, .. }) => (true, None, None),
            KnobState::Ours(ours) => (false, None, ours.reset),
            KnobState::Free | KnobState::Yielded(_) => (false, None, None),
        };
        if !again {
            self.history.moved(now, &change.old, value);
        }
        if request == WriteKind::Revert {
            self.history.reverted();
        }
        if !again || lost.as_ref() != Some(value) {
            self.history.followers.moved(read_there);
        }
        self.history.written(now);
        self.state = KnobState::Ours(Ours { value: value.clone(), seen_at: now, reset });
        self.demand = match request {
            WriteKind::Write | WriteKind::Reapply => Demand::Content,
            WriteKind::Revert => Demand::Unjudged,
        };
        (self, vec![Action::Log(LogKind::InEffect, format!("{} -> {value}", change.old))])
    }

    fn refused(mut self, context: &Context<'_>, why: &str) -> Step {
        let until = self.history.refused(context.now, why, context.policy);
        if let Demand::Wanted(want) = &mut self.demand {
            want.requested = None;
        }
        let words = format!("{why}; next attempt at {} s", until.as_secs());
        (self, vec![Action::Log(LogKind::Refused, words)])
    }

    /// Why the wanted change is not written now; `None` if this knob allows it. `stays_on_llc`: the
    /// change stays under its last-level cache. `gain`: its gain by the cost model. `goes_along`:
    /// another change is written anyway, so the threshold is lower.
    pub(super) fn hold(
        &self,
        now: Duration,
        stays_on_llc: bool,
        gain: Option<i64>,
        goes_along: bool,
        policy: &Policy,
    ) -> Option<Hold> {
        let Some(want) = self.want() else { return Some(Hold::TooShort(0, WINDOWS_WANTED)) };
        let history = &self.history;
        if let KnobState::Yielded(yielded) = &self.state {
            return Some(Hold::Yielded(yielded.owner.clone()));
        }
        if let Some(refusal) = history.refusal.as_ref().filter(|refusal| refusal.until > now) {
            return Some(Hold::Refused(refusal.until, refusal.why.clone()));
        }
        if self.is_reset() {
            return None;
        }
        let least = policy.min_gain * SECOND_NS * if goes_along { SUFFICES_FIXED } else { 1.0 };
        let too_little = gain.is_some_and(|gain| (gain as f64) < least);
        if too_little || want.gained_too_little && !goes_along {
            return Some(Hold::SmallGain(gain.unwrap_or(0)));
        }
        if want.noise {
            return Some(Hold::Noise);
        }
        if stays_on_llc && history.is_followed(now) {
            return Some(Hold::Followed);
        }
        let hold_off_ends = want.since.saturating_add(history.hold_off(gain, policy));
        if history.moves > 1 && hold_off_ends > now {
            return Some(Hold::Restless(hold_off_ends));
        }
        let needed = want.windows_needed(history.abandoned);
        if want.windows < needed {
            return Some(Hold::TooShort(want.windows, needed));
        }
        let dwell_ends = history.moved_at.map(|moved_at| moved_at.saturating_add(policy.dwell));
        dwell_ends
            .filter(|until| *until > now && history.had.contains(&want.change.new))
            .map(Hold::Dwell)
    }

    /// Our value.
    pub(super) fn ours(&self) -> Option<&Value> {
        match &self.state {
            KnobState::Ours(ours) => Some(&ours.value),
            KnobState::Free | KnobState::Reset(_) | KnobState::Yielded(_) => None,
        }
    }

    /// The program to which it is left.
    pub(super) fn as_yielded(&self) -> Option<&Yielded> {
        match &self.state {
            KnobState::Yielded(yielded) => Some(yielded),
            KnobState::Free | KnobState::Reset(_) | KnobState::Ours(_) => None,
        }
    }

    /// Whether the next write is a re-application.
    pub(super) fn is_reset(&self) -> bool {
        matches!(self.state, KnobState::Reset(_))
    }

    /// Why it keeps its value for an unknown time: a measured state needs another value, but cannot
    /// be reached.
    pub(super) fn obstacle(&self) -> Option<String> {
        match (&self.state, &self.history.refusal) {
            (KnobState::Yielded(it), _) => {
                Some(format!("is left to another program ({})", it.owner))
            }
            (_, Some(refusal)) => Some(format!("was refused: {}", refusal.why)),
            (KnobState::Free | KnobState::Ours(_) | KnobState::Reset(_), None) => None,
        }
    }

    fn want(&self) -> Option<&Want> {
        match &self.demand {
            Demand::Wanted(want) => Some(want),
            Demand::Unjudged | Demand::Content => None,
        }
    }

    /// The change that the last window wanted.
    pub(super) fn wanted(&self) -> Option<&Change> {
        self.want().map(|want| &want.change)
    }

    /// The end of the first window that wanted it.
    pub(super) fn wanted_since(&self) -> Option<Duration> {
        self.want().map(|want| want.since)
    }

    /// The earlier want for a knob that has this value: what the last window wanted, or what an
    /// event removed.
    pub(super) fn wanted_before(&self, target: &Target, old: Value) -> Option<Change> {
        if let KnobState::Reset(Reset { removal: Some(Removal { lost: Some(lost), .. }), .. }) =
            &self.state
            && *lost != old
        {
            let reason = "it had this value before".to_owned();
            return Change::untyped(target.clone(), old, lost.clone(), reason).ok();
        }
        self.wanted().filter(|change| change.old == old).cloned()
    }

    /// Whether nothing about it must be remembered.
    pub(super) fn is_blank(&self) -> bool {
        self.state == KnobState::Free && self.want().is_none() && self.history.is_blank()
    }
}

impl Reset {
    fn new(now: Duration, removal: Option<Removal>) -> Self {
        Self { noticed_at: now, removal, left: None, kept: false }
    }

    /// Whether an event announced at that time explains why the value has changed since. A driver
    /// may take more than one step.
    fn is_explained_by(&self, announced_at: Duration) -> bool {
        let shown_at = self.left.as_ref().map(|(_, shown_at)| *shown_at);
        shown_at.is_none_or(|shown_at| announced_at.saturating_add(GRACE) >= shown_at)
    }

    /// Whether a want for another value than the lost one is a change and not a re-application. It
    /// is if a plan has kept what the event left.
    fn is_settled(&self, wanted: &Value) -> bool {
        let lost = self.removal.as_ref().and_then(|it| it.lost.as_ref());
        self.kept && lost != Some(wanted)
    }
}

impl Ours {
    /// Whether an event announced at that time explains why the knob now has another value.
    fn is_explained_by(&self, announced_at: Duration) -> bool {
        let past = self.reset.is_some_and(|it| it.over && announced_at <= it.announced_at);
        announced_at.saturating_add(GRACE) >= self.seen_at && !past
    }
}

impl Yielded {
    fn until(&self, most: Duration) -> Duration {
        self.since.saturating_add(most)
    }
}

#[cfg(test)]
mod tests;
