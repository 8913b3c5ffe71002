//! Changes that are in force for a while: one transaction at a time, taken back before the next one
//! is made.

use std::time::Duration;

use anyhow::{Context as _, Result};
use netsilo_model::change::Change;
use netsilo_sys::transaction::apply::{Options, apply};
use netsilo_sys::transaction::kernel::Live;
use netsilo_sys::transaction::record::By;
use netsilo_sys::transaction::undo::{Undone, Which, undo};

use crate::tell::exit::{Exit, Stop};
use crate::verbs::apply::Place;

/// Switches; when it goes, all is as it was found.
pub(crate) struct Switch<'a> {
    place: &'a Place,
    kernel: Live,
    transaction: Option<u64>,
}

impl<'a> Switch<'a> {
    /// Nothing is in force yet.
    pub(crate) fn new(place: &'a Place) -> Result<Self> {
        Ok(Self { place, kernel: place.kernel()?, transaction: None })
    }

    /// Puts changes in force in place of those that are; whether anything was written.
    pub(crate) fn put(&mut self, changes: &[Change]) -> Result<bool> {
        let taken_back = self.take_back()?;
        if changes.is_empty() {
            return Ok(taken_back);
        }
        let dir =
            std::path::absolute(self.place.state_dir()).context("resolving the state folder")?;
        let mut no_guard = |_| Ok(());
        let mut options =
            Options { confirm_within: None, start_guard: &mut no_guard, wait: Duration::ZERO };
        let applied = apply(&self.kernel, &dir, changes, &mut options, &mut |_| {})?;
        self.transaction = applied.transaction;
        if let Some((target, now)) = applied.overwritten.first() {
            let message = format!(
                "{target} says {now} already: another program writes it too, find it and stop it"
            );
            return Err(Stop(Exit::OtherOwner, message).into());
        }
        Ok(true)
    }

    /// All as it was found; whether anything was written.
    pub(crate) fn take_back(&mut self) -> Result<bool> {
        let Some(transaction) = self.transaction.take() else { return Ok(false) };
        let which = Which::Only(transaction);
        let undone =
            undo(&self.kernel, self.place.state_dir(), which, false, By::Undo, &mut |_, _| {})?;
        complete(&undone)?;
        Ok(true)
    }
}

/// Whether nothing of it is left; else says what, and what to do.
pub(crate) fn complete(undone: &[Undone]) -> Result<()> {
    if undone.iter().all(Undone::is_complete) {
        return Ok(());
    }
    let words = crate::verbs::undo::report(undone);
    let todo = "run `netsilo undo` to try again";
    Err(Stop(Exit::RestoreIncomplete, format!("{}\n{todo}", words.trim_end())).into())
}

impl Drop for Switch<'_> {
    fn drop(&mut self) {
        // only after an error, which is told; the journal keeps what cannot be restored now
        let _ = self.take_back();
    }
}
