//! Temporary changes for comparisons: one transaction at a time, undone before the next one.

use std::time::Duration;

use anyhow::{Result, ensure};
use netsilo_model::change::Change;
use netsilo_sys::transaction::apply::{TransactionOptions, apply};
use netsilo_sys::transaction::guard::{self, ConfirmResult};
use netsilo_sys::transaction::kernel::Live;
use netsilo_sys::transaction::record::RestoredBy;
use netsilo_sys::transaction::undo::{UndoScope, Undone, undo};

use crate::args::state_dir::StateDir;
use crate::tell::exit::{Exit, ExitError};

/// What [`TemporaryChanges::restore`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restored {
    /// Nothing was in effect.
    Nothing,
    /// It restored the changes.
    Now,
    /// The guard or `netsilo undo` had already restored them, so they were not in effect all the
    /// time.
    Earlier,
}

impl Restored {
    /// Fails if the changes were not in effect until now.
    pub fn only_now(self) -> Result<()> {
        ensure!(
            self != Self::Earlier,
            "the changes were restored during the measurement, by `netsilo undo` or by their \
             guard, because it took longer than expected"
        );
        Ok(())
    }
}

/// Switches between sets of changes. Restores everything when dropped. While changes are in effect,
/// a guard process restores them if this process ends in any way.
pub struct TemporaryChanges<'a> {
    state: &'a StateDir,
    kernel: Live,
    transaction: Option<u64>,
    /// Maximum time that changes stay in effect.
    within: Duration,
}

impl<'a> TemporaryChanges<'a> {
    /// Starts with nothing changed. The guard restores each set of changes after `within` at the
    /// latest.
    pub fn new(state: &'a StateDir, within: Duration) -> Result<Self> {
        Ok(Self { state, kernel: state.kernel()?, transaction: None, within })
    }

    /// Replaces the changes in effect by others. Returns whether anything was written.
    pub fn replace(&mut self, changes: &[Change]) -> Result<bool> {
        let restored = self.restore()?;
        restored.only_now()?;
        if changes.is_empty() {
            return Ok(restored == Restored::Now);
        }
        let dir = self.state.absolute()?;
        let mut start_guard = |transaction: u64| {
            let mut command = self.state.guard_command(&dir, transaction);
            guard::start(command.arg("--with-parent"), &dir)
        };
        let mut options = TransactionOptions {
            confirm_within: Some(self.within),
            start_guard: &mut start_guard,
            wait: Duration::ZERO,
        };
        let applied = apply(&self.kernel, &dir, changes, &mut options, &mut |_| {})?;
        self.transaction = applied.transaction;
        if let Some((target, now)) = applied.overwritten.first() {
            let message = format!(
                "{target} is already {now} again: another program writes it; find and stop it"
            );
            return Err(ExitError(Exit::OtherOwner, message).into());
        }
        Ok(true)
    }

    /// Keeps the changes in effect, as one transaction that `netsilo undo` restores. Returns its
    /// number, or `None` if nothing is in effect or the guard has restored it.
    pub(crate) fn keep(&mut self) -> Result<Option<u64>> {
        let Some(transaction) = self.transaction.take() else { return Ok(None) };
        let kept = guard::confirm(&self.kernel, self.state.path())?;
        Ok(matches!(kept, ConfirmResult::Kept(id) if id == transaction).then_some(transaction))
    }

    /// Restores everything.
    pub fn restore(&mut self) -> Result<Restored> {
        let Some(transaction) = self.transaction.take() else { return Ok(Restored::Nothing) };
        let which = UndoScope::Only(transaction);
        let undone =
            undo(&self.kernel, self.state.path(), which, false, RestoredBy::Undo, &mut |_, _| {})?;
        complete(&undone, self.state)?;
        Ok(if undone.is_empty() { Restored::Earlier } else { Restored::Now })
    }
}

/// Checks that everything was restored. The error lists what was not.
pub fn complete(undone: &[Undone], state: &StateDir) -> Result<()> {
    if undone.iter().all(Undone::is_complete) {
        return Ok(());
    }
    let words = crate::views::undone::report(undone, true);
    let todo = format!("run `{}` to try again", state.command("undo"));
    Err(ExitError(Exit::RestoreIncomplete, format!("{}\n{todo}", words.trim_end())).into())
}

impl Drop for TemporaryChanges<'_> {
    fn drop(&mut self) {
        // only after another error; the journal keeps what cannot be restored now
        let _ = self.restore();
    }
}
