//! Phase three: judges the verifications that have ended.

use std::mem::take;

use super::decision::{LogKind, MeasuredEffect, VerificationResult};
use super::memory::Memory;
use super::verification::Verification;
use super::view::Window;

impl Memory {
    /// Adds the window to the verifications, judges those that have ended, and marks changes that
    /// made things worse to be reverted.
    pub(super) fn judge_verifications(&mut self, window: &Window<'_>) -> Vec<VerificationResult> {
        self.ended.extend(self.verifications.sample(window, &self.policy));
        let ended = take(&mut self.ended);
        ended.into_iter().map(|verification| self.judge(&verification)).collect()
    }

    fn judge(&mut self, verification: &Verification) -> VerificationResult {
        let result = verification.result(&self.policy);
        let kind = match result.result {
            MeasuredEffect::Better => LogKind::Confirm,
            MeasuredEffect::NoDifference => LogKind::NoDifference,
            MeasuredEffect::Unknown => LogKind::NotVerified,
            MeasuredEffect::Worse => LogKind::Revert,
        };
        if result.result == MeasuredEffect::Worse {
            self.to_revert.extend(verification.changes.iter().rev().map(|change| {
                let reason = format!("reverted: {} ({})", result.words, change.reason);
                change.inverse().because(reason)
            }));
        }
        let target = match verification.changes.as_slice() {
            [change] => Some(&change.target),
            _ => None,
        };
        self.log(target, kind, result.words.clone());
        result
    }
}
