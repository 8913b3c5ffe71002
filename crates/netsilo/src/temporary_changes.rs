//! Temporary changes for comparisons: one transaction at a time, undone before the next one.

use std::time::Duration;

use anyhow::Result;
use netsilo_model::change::Change;
use netsilo_sys::transaction::apply::{TransactionOptions, apply};
use netsilo_sys::transaction::kernel::Live;
use netsilo_sys::transaction::record::RestoredBy;
use netsilo_sys::transaction::undo::{UndoScope, Undone, undo};

use crate::args::state_dir::StateDir;
use crate::tell::exit::{Exit, ExitError};

/// Switches between sets of changes; restores everything when dropped.
pub(crate) struct TemporaryChanges<'a> {
    state: &'a StateDir,
    kernel: Live,
    transaction: Option<u64>,
}

impl<'a> TemporaryChanges<'a> {
    /// Starts with nothing changed.
    pub(crate) fn new(state: &'a StateDir) -> Result<Self> {
        Ok(Self { state, kernel: state.kernel()?, transaction: None })
    }

    /// Replaces the changes in force by others; returns whether anything was written.
    pub(crate) fn replace(&mut self, changes: &[Change]) -> Result<bool> {
        let taken_back = self.restore()?;
        if changes.is_empty() {
            return Ok(taken_back);
        }
        let dir = self.state.absolute()?;
        let mut no_guard = |_| Ok(());
        let mut options = TransactionOptions {
            confirm_within: None,
            start_guard: &mut no_guard,
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

    /// Restores everything; returns whether anything was written.
    pub(crate) fn restore(&mut self) -> Result<bool> {
        let Some(transaction) = self.transaction.take() else { return Ok(false) };
        let which = UndoScope::Only(transaction);
        let undone =
            undo(&self.kernel, self.state.path(), which, false, RestoredBy::Undo, &mut |_, _| {})?;
        complete(&undone)?;
        Ok(true)
    }
}

/// Checks that everything was restored; the error lists what was not.
pub(crate) fn complete(undone: &[Undone]) -> Result<()> {
    if undone.iter().all(Undone::is_complete) {
        return Ok(());
    }
    let words = crate::views::undone::report(undone);
    let todo = "run `netsilo undo` to try again";
    Err(ExitError(Exit::RestoreIncomplete, format!("{}\n{todo}", words.trim_end())).into())
}

impl Drop for TemporaryChanges<'_> {
    fn drop(&mut self) {
        // only after another error; the journal keeps what cannot be restored now
        let _ = self.restore();
    }
}
