//! Phase five: which wanted changes are held, and which are released to be written now.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::demand::WINDOWS_WANTED;
use super::hold::Hold;
use super::knob_state::{Input, TrackedKnob};
use super::memory::Memory;
use super::planned::Planned;
use super::view::{self, Window};
use super::wanted_change::WantedChange;
use crate::plan::Plan;
use netsilo_model::change::{Change, Target, Value};
use netsilo_model::cost::problem::SECOND_NS;

impl Memory {
    /// Passes to each of these knobs its part of the plan.
    pub(super) fn track(
        &mut self,
        window: &Window<'_>,
        plan: &Plan,
        these: impl Fn(&Target) -> bool,
    ) {
        let changes = plan.changes.iter().filter(|change| these(&change.target));
        let wanted: BTreeMap<&Target, &Change> =
            changes.map(|change| (&change.target, change)).collect();
        for target in wanted.keys().copied() {
            if !self.knobs.contains_key(target) {
                let knob = TrackedKnob::new(window.now, self.is_new(target));
                self.knobs.insert(target.clone(), knob);
            }
        }
        let targets: Vec<Target> = self.knobs.keys().filter(|it| these(it)).cloned().collect();
        for target in targets {
            let planned = self.planned(window, &target, wanted.get(&target).copied());
            self.step(&target, Input::Planned(planned));
        }
    }

    fn planned<'p>(
        &self,
        window: &Window<'_>,
        target: &Target,
        change: Option<&'p Change>,
    ) -> Planned<'p> {
        let workload = self.workload.seen_from(window.subject(target).as_ref());
        let knob = self.knobs.get(target);
        let before = knob.and_then(TrackedKnob::wanted).zip(change);
        let same =
            before.is_some_and(|(before, now)| window.is_same_want(target, &before.new, &now.new));
        let cpu =
            knob.filter(|_| change.is_some()).and_then(TrackedKnob::ours).and_then(view::cpu_of);
        let read_there = cpu.and_then(|cpu| window.read_on_core_of(target, cpu));
        Planned { change, same, workload, read_there }
    }

    /// The wanted changes, each with the reason if it is held. Changes of one silo are held or
    /// released together.
    pub(super) fn wanted_changes<'p>(
        &self,
        window: &Window<'_>,
        plan: &'p Plan,
    ) -> Vec<WantedChange<'p>> {
        let hold = |change| WantedChange { change, hold: self.hold(window, plan, change, false) };
        let mut wanted_changes: Vec<WantedChange<'p>> = plan.changes.iter().map(hold).collect();
        hold_whole_silos(window, &mut wanted_changes);
        self.let_small_gains_go_along(window, plan, &mut wanted_changes);
        wait_for_interrupts(window, &mut wanted_changes);
        self.keep_to_budget(window, plan, &mut wanted_changes);
        wanted_changes
    }

    /// If a move that gains enough is written anyway, other moves need only a part of the minimum
    /// gain, as in the plan itself.
    fn let_small_gains_go_along(
        &self,
        window: &Window<'_>,
        plan: &Plan,
        wanted_changes: &mut [WantedChange<'_>],
    ) {
        let gains = |change| gain(window, plan, change).unwrap_or(0) as f64;
        let least = self.policy.min_gain * SECOND_NS;
        if !wanted_changes.iter().any(|it| it.hold.is_none() && gains(it.change) >= least) {
            return;
        }
        for WantedChange { change, hold } in wanted_changes.iter_mut() {
            if matches!(hold, Some(Hold::SmallGain(_))) {
                *hold = self.hold(window, plan, change, true);
            }
        }
        hold_whole_silos(window, wanted_changes);
    }

    fn hold(
        &self,
        window: &Window<'_>,
        plan: &Plan,
        change: &Change,
        goes_along: bool,
    ) -> Option<Hold> {
        let target = &change.target;
        if self.requests.contains_key(target) {
            return Some(Hold::Reverting);
        }
        let Some(knob) = self.knobs.get(target) else {
            return Some(Hold::TooShort(0, WINDOWS_WANTED));
        };
        let stays_on_llc = window.stays_on_llc(target, &change.new);
        let gain = gain(window, plan, change);
        knob.hold(window.now, stays_on_llc, gain, goes_along, &self.policy)
    }

    /// Holds changes that exceed the budget. The largest gains come first.
    fn keep_to_budget(
        &self,
        window: &Window<'_>,
        plan: &Plan,
        wanted_changes: &mut [WantedChange<'_>],
    ) {
        let most = self.policy.changes_per_minute;
        let mut left = self.budget.left(window.now, most);
        // By silo; a change without a silo is by position. Each group has its largest gain and its
        // members.
        let mut groups: BTreeMap<Result<usize, usize>, (i64, Vec<usize>)> = BTreeMap::new();
        for (at, WantedChange { change, .. }) in
            wanted_changes.iter().enumerate().filter(|(_, it)| it.hold.is_none())
        {
            let silo = window.silo_of(&change.target).ok_or(at);
            let (largest, members) = groups.entry(silo).or_default();
            *largest = (*largest).max(gain(window, plan, change).unwrap_or(0));
            members.push(at);
        }
        let mut groups: Vec<(i64, Vec<usize>)> = groups.into_values().collect();
        groups.sort_unstable_by_key(|(gain, members)| (Reverse(*gain), members.first().copied()));
        for (_, members) in groups {
            // A group that exceeds the whole budget is written in parts.
            let room = match members.len() {
                count if count > most as usize => left.min(count),
                count if count <= left => count,
                _ => 0,
            };
            left -= room;
            for at in members.into_iter().skip(room) {
                wanted_changes[at].hold = Some(Hold::Budget(most));
            }
        }
    }
}

/// If one change of a silo has a reason, holds all changes of that silo for the first reason.
fn hold_whole_silos(window: &Window<'_>, wanted_changes: &mut [WantedChange<'_>]) {
    let mut reasons: BTreeMap<usize, Hold> = BTreeMap::new();
    for WantedChange { change, hold } in wanted_changes.iter() {
        if let Some((silo, hold)) = window.silo_of(&change.target).zip(hold.clone()) {
            reasons.entry(silo).or_insert(hold);
        }
    }
    for WantedChange { change, hold } in wanted_changes {
        let reason = window.silo_of(&change.target).and_then(|silo| reasons.get(&silo));
        *hold = hold.take().or_else(|| reason.cloned());
    }
}

/// Holds XPS until the interrupts of its netdev are on the CPUs for which it was planned.
fn wait_for_interrupts(window: &Window<'_>, wanted_changes: &mut [WantedChange<'_>]) {
    let moving = wanted_changes.iter().filter(|it| it.hold.as_ref().is_some_and(Hold::is_short));
    let queues = moving.filter_map(|it| window.queue(&it.change.target));
    let netdevs: BTreeSet<String> = queues.map(|(netdev, _)| netdev).collect();
    for WantedChange { change, hold } in wanted_changes.iter_mut().filter(|it| it.hold.is_none()) {
        if let Target::XpsCpus(knob) = &change.target {
            *hold = netdevs.contains(&knob.netdev.name).then_some(Hold::WaitsForInterrupts);
        }
    }
}

/// The gain of a move by the cost model, in CPU-nanoseconds per second. `None` if a measured
/// outcome, or an algorithm without the cost model, chose the CPU.
fn gain(window: &Window<'_>, plan: &Plan, change: &Change) -> Option<i64> {
    let irq = window.irq(&change.target)?;
    let placement = plan.placements.iter().find(|placement| placement.irq == Some(irq))?;
    let estimated = plan.measured.is_none()
        && placement.algorithm.algorithm().moves_for_estimated_gain
        && !placement.is_of_completions()
        && change.new == Value::Cpus(placement.cpus.clone());
    estimated.then_some(placement.gain_ns_per_s)
}
