//! The controller: window after window it compares what is wanted with what is, and decides what to
//! write now.
//!
//! Pure: it is told the time, what was observed, what became of its writes and what the kernel
//! announced, and answers with a [`Decision`]. `docs/controller.md` has the rules, why they are so,
//! and what is proved of them.

mod budget;
mod decision;
mod events;
mod knob_state;
mod pattern;
mod policy;
mod reconcile;
mod rest;

#[cfg(test)]
mod simulate;
#[cfg(test)]
mod tests;
mod trial;
mod view;
mod wanted;

use crate::control::events::{covers, in_words};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::control::budget::Budget;
pub use crate::control::decision::{
    Compared, Conflict, ControllerState, Decision, Entry, Held, Verdict, VerdictResult, What,
    Written,
};
use crate::control::events::{Events, GRACE};
use crate::control::knob_state::{Hold, Knob, Workload};
use crate::control::pattern::Pattern;
pub use crate::control::policy::{Policy, WINDOW};
use crate::control::rest::{Rest, Seen};
use crate::control::trial::{Trial, Trials};
use crate::control::view::View;
use crate::plan::{AlgorithmName, Goal, Plan};
use netsilo_model::change::{Change, Target, Value};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::ids::NapiId;
use netsilo_model::snapshot::event::Event;
use netsilo_model::snapshot::host::Writer;
use netsilo_model::snapshot::observation::Observation;

/// Readers that went elsewhere more often than this within a calm's time are never at rest.
const UNREST: usize = 6;

/// Decides, window after window.
#[derive(Debug, Clone)]
pub struct Controller {
    policy: Policy,
    knobs: BTreeMap<Target, Knob>,
    events: Events,
    trials: Trials,
    budget: Budget,
    /// What the last decision asked to be written.
    asked: BTreeMap<Target, Asked>,
    /// The workload since its last change; `None` when all is to be looked at anew.
    pattern: Option<Pattern>,
    /// Windows since that change.
    windows_since: u32,
    /// When the readers of a queue went elsewhere, within the time of a calm.
    readers_moved: BTreeMap<String, Vec<Duration>>,
    /// The rx queues whose interrupts were held in the last window.
    held: BTreeSet<(String, u32)>,
    /// Whether the last window found nothing to do, nor anything to wait for.
    rest: Option<Rest>,
    /// Judged since the last window.
    judged: Vec<(Trial, Verdict)>,
    /// To be taken back, as soon as the budget allows.
    to_revert: Vec<Change>,
    /// Other programs, by the last snapshot.
    writers: Vec<Writer>,
    /// Said since the last window.
    log: Vec<Entry>,
    /// When the last window ended.
    now: Duration,
}

/// A write that was asked for.
#[derive(Debug, Clone)]
struct Asked {
    change: Change,
    kind: Kind,
    read_there: Option<f64>,
    napis: BTreeSet<NapiId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Write,
    Reapply,
    Revert,
}

/// A change that is wanted, and why it is not made now.
type Verdicts<'p> = Vec<(&'p Change, Option<Hold>)>;

impl Controller {
    /// One that knows nothing yet.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            knobs: BTreeMap::new(),
            events: Events::default(),
            trials: Trials::default(),
            budget: Budget::default(),
            asked: BTreeMap::new(),
            pattern: None,
            windows_since: 0,
            readers_moved: BTreeMap::new(),
            held: BTreeSet::new(),
            rest: None,
            judged: Vec::new(),
            to_revert: Vec::new(),
            writers: Vec::new(),
            log: Vec::new(),
            now: Duration::ZERO,
        }
    }

    /// Goes by another policy from now on; knobs that were left to others are ours to write again.
    pub fn reconfigure(&mut self, policy: Policy) {
        let now = self.now;
        (self.policy, self.pattern, self.rest) = (policy, None, None);
        let yielded: Vec<Target> = self
            .knobs
            .iter()
            .filter(|(_, knob)| knob.yielded.is_some())
            .map(|(target, _)| target.clone())
            .collect();
        for target in yielded {
            self.regain(now, &target, "there is a new configuration");
        }
    }

    /// Wants something else from now on, by the same policy: netdevs came or went that rules of the
    /// configuration fit.
    pub fn set_goal(&mut self, goal: Goal) {
        (self.policy.goal, self.pattern, self.rest) = (goal, None, None);
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The kernel announced something.
    pub fn note_event(&mut self, now: Duration, event: &Event) {
        // An event may come after its effect was taken for another writer's.
        let lately =
            |knob: &Knob| knob.yielded.as_ref().is_some_and(|yielded| yielded.since + GRACE >= now);
        for (target, knob) in
            self.knobs.iter_mut().filter(|(target, knob)| lately(knob) && covers(event, target))
        {
            knob.regain();
            knob.lose(now, now);
            let why = format!("not another writer: {}", in_words(event));
            self.log.push(Entry { at: now, target: Some(target.clone()), what: What::Reset, why });
        }
        // Containers come and go all the time.
        if self.knobs.keys().any(|target| covers(event, target)) {
            (self.pattern, self.rest) = (None, None);
        }
        self.events.note(now, event.clone());
    }

    /// One observation window has ended; `now` is the time since boot.
    pub fn tick(&mut self, now: Duration, observation: &Observation) -> Decision {
        let costs = self.policy.goal.costs.clone();
        let analysis = Analysis::new(observation, &costs);
        let Analysis { rates, silos, .. } = &analysis;
        let view = View::of(&observation.after, silos);
        self.now = now;
        self.writers.clone_from(&observation.after.writers);
        self.asked.clear();
        self.reconcile(now, &view);
        self.judged.extend(self.trials.sample(now, observation, rates, &self.policy));
        let verdicts = self.judge(now);
        let pattern = Pattern::of(&observation.after.topology.online, rates, silos);
        let rest = self.rest.take().filter(|_| self.to_revert.is_empty());
        let rest = rest.and_then(|rest| rest.goes_on(&pattern, &analysis));
        let mut wanted = match &rest {
            Some(rest) => rest.plan().clone(),
            None => self.wanted(&analysis, &view),
        };
        let seen = rest.is_none().then(|| Seen::of(pattern.clone(), &analysis));
        self.compare(now, pattern);
        self.notice(now, &wanted, &view, |target| !is_xps(target));
        let revert = self.revert(now, &view);
        if rest.is_none() {
            self.follow_interrupts(now, &mut wanted, &revert, &view);
        }
        self.notice(now, &wanted, &view, is_xps);
        let decided = self.decide(now, &wanted, &view);
        let state = self.state(&wanted, &decided, revert.is_empty());
        self.held = decided
            .iter()
            .filter(|(_, hold)| hold.as_ref().is_some_and(|hold| !hold.is_short()))
            .filter_map(|(change, _)| view.queue(&change.target))
            .collect();
        self.rest =
            rest.or_else(|| Rest::of(&wanted, &decided, seen?)).filter(|_| revert.is_empty());
        let (writes, held) = self.ask(now, &wanted, decided, &view);
        let (log, locality) = (std::mem::take(&mut self.log), silos.locality());
        Decision {
            plan: wanted,
            writes,
            revert,
            log,
            state,
            conflicts: self.conflicts(),
            held,
            verdicts,
            locality,
        }
    }

    /// What became of the last decision's writes and reverts; to be told before the next window is.
    pub fn wrote(&mut self, now: Duration, outcomes: &[(Target, Written)]) {
        let (mut batch, mut napis, mut since) = (Vec::new(), BTreeSet::new(), now);
        for (target, written) in outcomes {
            let Some(asked) = self.asked.remove(target) else { continue };
            let wanted_since =
                self.knobs.get(target).and_then(|knob| Some(knob.want.as_ref()?.since));
            self.outcome(now, target, &asked, written);
            if matches!(written, Written::InForce(_)) && asked.kind == Kind::Write {
                since = since.min(wanted_since.unwrap_or(now));
                napis.extend(&asked.napis);
                batch.push(asked.change);
            }
        }
        if !batch.is_empty() {
            self.judged.extend(self.trials.begin(now, since, batch, napis, &self.policy));
        }
    }

    fn outcome(&mut self, now: Duration, target: &Target, asked: &Asked, written: &Written) {
        let knob = self.knobs.entry(target.clone()).or_insert_with(|| Knob::new(now, false));
        let (what, why) = match written {
            Written::InForce(value) => {
                match asked.kind {
                    Kind::Revert => {
                        knob.reverted(now, &asked.change.old, value.clone(), &self.policy)
                    }
                    Kind::Write | Kind::Reapply => {
                        knob.moved(
                            now,
                            &asked.change.old,
                            value.clone(),
                            asked.read_there,
                            &self.policy,
                        );
                    }
                }
                (What::InForce, format!("{} -> {value}", asked.change.old))
            }
            Written::Refused(reason) => {
                let until = knob.was_refused(now, reason, &self.policy);
                (What::Refused, format!("{reason}; tried again at {} s", until.as_secs()))
            }
            Written::Overwritten(theirs) => {
                let ours = knob.ours.clone().unwrap_or_else(|| asked.change.old.clone());
                return self.yield_to_others(now, target, ours, theirs.clone());
            }
            Written::Gone => {
                self.knobs.remove(target);
                (What::Gone, "it was gone when it was to be written".to_owned())
            }
        };
        self.say(now, Some(target), what, why);
    }

    /// Logs what was judged, and takes note of what has to be taken back.
    fn judge(&mut self, now: Duration) -> Vec<Verdict> {
        let judged = std::mem::take(&mut self.judged);
        for (trial, verdict) in &judged {
            let what = match verdict.result {
                VerdictResult::Better => What::Confirm,
                VerdictResult::NoDifference => What::NoDifference,
                VerdictResult::Unknown => What::NotVerified,
                VerdictResult::Worse => What::Revert,
            };
            if what == What::Revert {
                let back = trial.changes.iter().rev().map(|change| Change {
                    reason: format!("taken back: {} ({})", verdict.words, change.reason),
                    ..change.inverse()
                });
                self.to_revert.extend(back);
            }
            let target = trial
                .changes
                .first()
                .filter(|_| trial.changes.len() == 1)
                .map(|change| &change.target);
            self.say(now, target, what, verdict.words.clone());
        }
        judged.into_iter().map(|(_, verdict)| verdict).collect()
    }

    /// Takes back what made it worse and is still ours.
    fn revert(&mut self, now: Duration, view: &View<'_>) -> Vec<Change> {
        let ours = |change: &Change| {
            let knob = self.knobs.get(&change.target);
            knob.is_some_and(|knob| knob.ours.as_ref() == Some(&change.old))
                && change.target.value_in(view.after).as_ref() == Some(&change.old)
        };
        let mut revert: Vec<Change> =
            std::mem::take(&mut self.to_revert).into_iter().filter(ours).collect();
        let room = self.budget.left(now, self.policy.changes_per_minute).min(revert.len());
        self.to_revert = revert.split_off(room);
        self.budget.spend(now, revert.len());
        for change in &revert {
            let napis = BTreeSet::new();
            let asked =
                Asked { change: change.clone(), kind: Kind::Revert, read_there: None, napis };
            self.asked.insert(change.target.clone(), asked);
        }
        revert
    }

    /// Is it another workload?
    fn compare(&mut self, now: Duration, pattern: Pattern) {
        let changed = self.pattern.as_ref().is_none_or(|before| pattern.differs(before));
        self.windows_since = if changed { 0 } else { self.windows_since.saturating_add(1) };
        for label in self
            .pattern
            .iter()
            .flat_map(|before| pattern.read_elsewhere(before))
            .filter(|_| changed)
        {
            self.readers_moved.entry(label.clone()).or_default().push(now);
        }
        self.readers_moved.retain(|_, at| {
            at.retain(|at| *at + self.policy.calm > now);
            !at.is_empty()
        });
        if changed {
            self.pattern = Some(pattern);
        }
    }

    /// What the workload does, as far as this knob is concerned.
    fn workload(&self, target: &Target, view: &View<'_>) -> Workload {
        let moved = view.label(target).and_then(|label| self.readers_moved.get(&label));
        match self.windows_since {
            _ if moved.is_some_and(|at| at.len() > UNREST) => Workload::Unrest,
            0 => Workload::Changed,
            1 => Workload::JustChanged,
            _ => Workload::Same,
        }
    }

    /// Tells each of these knobs whether it is wanted otherwise.
    fn notice(
        &mut self,
        now: Duration,
        plan: &Plan,
        view: &View<'_>,
        these: impl Fn(&Target) -> bool,
    ) {
        let wanted = plan.changes.iter().filter(|change| these(&change.target));
        let wanted: BTreeMap<&Target, &Change> =
            wanted.map(|change| (&change.target, change)).collect();
        let content = |target: &&Target| these(target) && !wanted.contains_key(*target);
        for target in self.knobs.keys().filter(content).cloned().collect::<Vec<_>>() {
            let workload = self.workload(&target, view);
            let Some(knob) = self.knobs.get_mut(&target) else { continue };
            knob.notice(now, None, workload, |a, b| view.same_wish(&target, a, b), &self.policy);
        }
        for (target, change) in wanted {
            let workload = self.workload(target, view);
            let reset = self.events.before(target, now).is_some();
            let knob = self.knobs.entry(target.clone()).or_insert_with(|| Knob::new(now, reset));
            knob.notice(
                now,
                Some(change),
                workload,
                |a, b| view.same_wish(target, a, b),
                &self.policy,
            );
            let at = knob.ours.as_ref().and_then(view::cpu_of);
            knob.follow(at.and_then(|cpu| view.read_on_core_of(target, cpu)));
        }
    }

    /// Which changes are made now: what belongs to one silo as one.
    fn decide<'p>(&self, now: Duration, plan: &'p Plan, view: &View<'_>) -> Verdicts<'p> {
        let mut silos: BTreeMap<usize, Hold> = BTreeMap::new();
        let mut decided: Verdicts<'p> = Vec::new();
        for change in &plan.changes {
            let hold = match self.asked.contains_key(&change.target) {
                true => Some(Hold::Reverting),
                false => self.may(now, plan, change, view).err(),
            };
            if let Some((silo, hold)) = view.unit(&change.target).zip(hold.clone()) {
                silos.entry(silo).or_insert(hold);
            }
            decided.push((change, hold));
        }
        for (change, hold) in &mut decided {
            let silo = view.unit(&change.target).and_then(|silo| silos.get(&silo));
            *hold = hold.take().or_else(|| silo.cloned());
        }
        wait_for_interrupts(&mut decided, view);
        self.within_budget(now, plan, &mut decided, view);
        decided
    }

    fn may(
        &self,
        now: Duration,
        plan: &Plan,
        change: &Change,
        view: &View<'_>,
    ) -> Result<(), Hold> {
        let knob =
            self.knobs.get(&change.target).ok_or(Hold::NotLong(0, knob_state::WINDOWS_WANTED))?;
        knob.may(
            now,
            view.stays_on_llc(&change.target, &change.new),
            gain(plan, change, view),
            &self.policy,
        )
    }

    /// Holds what the budget has no room for; those that gain most come first.
    fn within_budget(
        &self,
        now: Duration,
        plan: &Plan,
        decided: &mut Verdicts<'_>,
        view: &View<'_>,
    ) {
        let most = self.policy.changes_per_minute;
        let mut left = self.budget.left(now, most);
        let mut units: BTreeMap<Result<usize, usize>, (i64, Vec<usize>)> = BTreeMap::new();
        for (at, (change, _)) in decided.iter().enumerate().filter(|(_, (_, hold))| hold.is_none())
        {
            let (most, members) = units.entry(view.unit(&change.target).ok_or(at)).or_default();
            *most = (*most).max(gain(plan, change, view).unwrap_or(0));
            members.push(at);
        }
        let mut units: Vec<(i64, Vec<usize>)> = units.into_values().collect();
        units.sort_by_key(|(gain, members)| (std::cmp::Reverse(*gain), members.first().copied()));
        for (_, members) in units {
            // One that is larger than the whole budget is made in parts.
            let fits = if members.len() <= left { members.len() } else { 0 };
            let fits = if members.len() > most as usize { left.min(members.len()) } else { fits };
            left -= fits;
            for at in members.into_iter().skip(fits) {
                decided[at].1 = Some(Hold::Budget(most));
            }
        }
    }

    /// Asks for what was decided to be written; logs what is new in what is held.
    fn ask(
        &mut self,
        now: Duration,
        plan: &Plan,
        decided: Verdicts<'_>,
        view: &View<'_>,
    ) -> (Plan, Vec<Held>) {
        let (mut writes, mut held) =
            (Plan { even_if_owned: plan.even_if_owned, ..Plan::default() }, Vec::<Held>::new());
        for (change, hold) in decided {
            let target = &change.target;
            let Some(knob) = self.knobs.get_mut(target) else { continue };
            let (news, reset) = (knob.is_news(hold.as_ref()), knob.is_reset());
            if let Some(hold) = hold {
                if news {
                    self.say(now, Some(target), What::Hold, hold.to_string());
                }
                held.push(Held { target: target.clone(), why: hold.to_string() });
                continue;
            }
            let kind = if reset { Kind::Reapply } else { Kind::Write };
            let what = if reset { What::Reapply } else { What::Write };
            if !knob.is_asked_again(&change.new) {
                self.say(
                    now,
                    Some(target),
                    what,
                    format!("{} -> {}: {}", change.old, change.new, change.reason),
                );
            }
            let read_there =
                view::cpu_of(&change.new).and_then(|cpu| view.read_on_core_of(target, cpu));
            let asked =
                Asked { change: change.clone(), kind, read_there, napis: view.napis([target]) };
            self.asked.insert(target.clone(), asked);
            writes.changes.push(change.clone());
        }
        self.budget.spend(now, writes.changes.len());
        (writes, held)
    }

    fn state(
        &self,
        plan: &Plan,
        decided: &Verdicts<'_>,
        nothing_reverted: bool,
    ) -> ControllerState {
        let any = |is: fn(&Option<Hold>) -> bool| decided.iter().any(|(_, hold)| is(hold));
        if plan.placements.is_empty() && plan.changes.is_empty() {
            ControllerState::Observing
        } else if !nothing_reverted || any(|hold| hold.as_ref().is_none_or(Hold::is_short)) {
            ControllerState::Settling
        } else if any(|hold| hold.as_ref().is_some_and(Hold::ends)) {
            ControllerState::HoldOff
        } else if self.trials.is_open() {
            ControllerState::Verifying
        } else {
            ControllerState::Settled
        }
    }

    fn say(&mut self, at: Duration, target: Option<&Target>, what: What, why: String) {
        self.log.push(Entry { at, target: target.cloned(), what, why });
    }
}

/// XPS waits until the interrupts of its netdev are where it was worked out for.
fn wait_for_interrupts(decided: &mut Verdicts<'_>, view: &View<'_>) {
    let moves = decided.iter().filter(|(_, hold)| hold.as_ref().is_some_and(Hold::is_short));
    let moves = moves.filter_map(|(change, _)| view.queue(&change.target));
    let moving: BTreeSet<String> = moves.map(|(netdev, _)| netdev).collect();
    for (change, hold) in decided.iter_mut().filter(|(_, hold)| hold.is_none()) {
        if let Target::XpsCpus { netdev, .. } = &change.target {
            *hold = moving.contains(&netdev.name).then_some(Hold::Waits);
        }
    }
}

fn is_xps(target: &Target) -> bool {
    matches!(target, Target::XpsCpus { .. })
}

/// What a move gains by the cost model, in CPU-nanoseconds per second; `None` where another
/// algorithm than the one that goes by it was asked for.
fn gain(plan: &Plan, change: &Change, view: &View<'_>) -> Option<i64> {
    let irq = view.irq(&change.target)?;
    let placement = plan.placements.iter().find(|placement| placement.irq == Some(irq))?;
    let reckoned = placement.algorithm == AlgorithmName::Auto
        && change.new == Value::Cpus(placement.cpus.clone());
    reckoned.then_some(placement.gain_ns_per_s)
}
