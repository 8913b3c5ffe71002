//! Phase six: requests reverts and writes, and takes their results.

use std::collections::BTreeSet;
use std::mem::take;
use std::time::Duration;

use super::decision::{Held, WriteResult};
use super::expected::Moved;
use super::knob_state::{Input, TrackedKnob, WriteKind};
use super::memory::{Memory, Request};
use super::verification::Batch;
use super::view::{self, Window};
use super::wanted_change::WantedChange;
use crate::plan::Plan;
use netsilo_model::change::{Change, Target};

impl Memory {
    /// Requests the reverts of values that are still ours, as far as the budget allows.
    pub(super) fn revert(&mut self, window: &Window<'_>) -> Vec<Change> {
        let ours = |change: &Change| {
            let knob = self.knobs.get(&change.target);
            knob.is_some_and(|knob| knob.ours() == Some(&change.old))
                && change.target.value_in(window.after()).as_ref() == Some(&change.old)
        };
        let mut revert: Vec<Change> = take(&mut self.to_revert).into_iter().filter(ours).collect();
        let room = self.budget.left(window.now, self.policy.changes_per_minute).min(revert.len());
        self.to_revert = revert.split_off(room);
        self.budget.spend(window.now, revert.len());
        for change in &revert {
            let (kind, napis) = (WriteKind::Revert, BTreeSet::new());
            let change = change.clone();
            let target = change.target.clone();
            let request = Request { kind, change, read_there: None, napis, moved: None };
            self.requests.insert(target, request);
        }
        revert
    }

    /// Requests the released changes, and reports the held ones.
    pub(super) fn write(
        &mut self,
        window: &Window<'_>,
        plan: &Plan,
        wanted_changes: &[WantedChange<'_>],
    ) -> (Plan, Vec<Held>) {
        let mut writes = Plan { even_if_owned: plan.even_if_owned, ..Plan::default() };
        let mut held = Vec::new();
        for WantedChange { change, hold } in wanted_changes {
            let target = &change.target;
            if let Some(hold) = hold {
                self.step(target, Input::Held(hold));
                held.push(Held {
                    target: target.clone(),
                    why: hold.to_string(),
                    lasting: hold.is_lasting(),
                });
                continue;
            }
            self.step(target, Input::Requested(change));
            let reset = self.knobs.get(target).is_some_and(TrackedKnob::is_reset);
            let request = Request {
                kind: if reset { WriteKind::Reapply } else { WriteKind::Write },
                change: (*change).clone(),
                read_there: view::cpu_of(&change.new)
                    .and_then(|cpu| window.read_on_core_of(target, cpu)),
                napis: window.napis([target]),
                moved: Moved::new(window, change),
            };
            self.requests.insert(target.clone(), request);
            writes.changes.push((*change).clone());
        }
        self.budget.spend(window.now, writes.changes.len());
        self.ban(window, plan, &mut writes);
        (writes, held)
    }

    /// The results of the last decision's writes and reverts.
    pub(super) fn wrote(&mut self, now: Duration, results: &[(Target, WriteResult)]) {
        self.now = now;
        self.banned(results);
        let (mut batch, mut since) = (Batch::default(), now);
        for (target, result) in results {
            let Some(request) = self.requests.remove(target) else { continue };
            let Request { kind, change, read_there, napis, moved } = request;
            let wanted_since = self.knobs.get(target).and_then(TrackedKnob::wanted_since);
            self.knobs.entry(target.clone()).or_insert_with(|| TrackedKnob::new(now, false));
            self.step(
                target,
                Input::Written { request: kind, change: &change, read_there, result },
            );
            if matches!(result, WriteResult::InEffect(_)) && kind == WriteKind::Write {
                since = since.min(wanted_since.unwrap_or(now));
                batch.napis.extend(napis);
                batch.moves.add(&change, moved);
                batch.changes.push(change);
            }
        }
        if !batch.changes.is_empty() {
            self.ended.extend(self.verifications.begin(now, since, batch, &self.policy));
        }
    }
}
