//! Phase three: judges the trials that have ended.

use std::mem::take;

use super::decision::{Effect, LogKind, TrialResult};
use super::memory::Memory;
use super::trial::Trial;
use super::view::Window;

impl Memory {
    /// Adds the window to the trials, judges those that have ended, and marks what made it worse to
    /// be reverted.
    pub(super) fn judge_trials(&mut self, window: &Window<'_>) -> Vec<TrialResult> {
        self.ended.extend(self.trials.sample(window, &self.policy));
        let ended = take(&mut self.ended);
        ended.into_iter().map(|trial| self.judge(&trial)).collect()
    }

    fn judge(&mut self, trial: &Trial) -> TrialResult {
        let result = trial.result(&self.policy);
        let kind = match result.result {
            Effect::Better => LogKind::Confirm,
            Effect::NoDifference => LogKind::NoDifference,
            Effect::Unknown => LogKind::NotVerified,
            Effect::Worse => LogKind::Revert,
        };
        if result.result == Effect::Worse {
            self.to_revert.extend(trial.changes.iter().rev().map(|change| {
                let reason = format!("reverted: {} ({})", result.words, change.reason);
                change.inverse().because(reason)
            }));
        }
        let target = match trial.changes.as_slice() {
            [change] => Some(&change.target),
            _ => None,
        };
        self.log(target, kind, result.words.clone());
        result
    }
}
