//! What the keys for plans do: make a plan, write it with a guard, confirm it, undo it.

use std::sync::mpsc::Sender;
use std::time::Duration;

use anyhow::{Result, bail};
use netsilo_decide::judge::fix::FixRequest;
use netsilo_decide::plan::Plan;
use netsilo_sys::transaction::guard::{self, ConfirmResult};
use netsilo_sys::transaction::journal;
use netsilo_sys::transaction::record::{RestoredBy, State};
use netsilo_sys::transaction::undo::{UndoScope, undo};

use crate::args::goal::GoalArgs;
use crate::args::state_dir::StateDir;
use crate::top::state::Pending;
use crate::top::update::Event;
use crate::top::window::Window;
use crate::verbs::apply::{self, Phases};
use crate::views::undone::report;

/// The plan of `netsilo plan`, or of `netsilo plan --fix`.
pub(super) fn plan(
    window: &Window,
    goal: &GoalArgs,
    fix: Option<FixRequest>,
    is_bundle: bool,
) -> Result<Plan> {
    match fix {
        Some(fix) => goal.fixing(fix).plan_for(&window.observation, is_bundle),
        None => goal.plan_for(&window.observation, is_bundle),
    }
}

/// Writes a plan. Its guard restores it after `within` unless it is confirmed.
pub(super) fn apply(
    plan: &Plan,
    state: &StateDir,
    within: Duration,
    send: &Sender<Event>,
) -> Result<Pending> {
    apply::refuse(plan, state, false)?;
    let applied = apply::write(plan, state, Some(within), Phases::only_writes(), &mut |line| {
        let _ = send.send(Event::Step(line));
    })?;
    let changes = applied.settled.len();
    match (applied.transaction, applied.confirm_by) {
        (Some(transaction), Some(deadline)) => {
            Ok(Pending { transaction, changes, deadline, within })
        }
        _ => bail!("nothing to write: every value is as planned"),
    }
}

/// Keeps a transaction, or reports how it ended before. After its deadline it is restored.
///
/// By now another transaction may await confirmation. This program must not confirm it.
pub(super) fn confirm(state: &StateDir, id: u64) -> Result<String> {
    let (kernel, dir) = (state.kernel()?, state.path());
    let result = match journal::state_of(&kernel, dir, id)? {
        Some(State::Confirmed) => ConfirmResult::KeptBefore(id),
        Some(State::Undone(by)) => ConfirmResult::Restored(id, by),
        Some(_) => guard::confirm(&kernel, dir)?,
        None => bail!("the journal no longer has transaction {id}"),
    };
    Ok(match result {
        ConfirmResult::Kept(id) | ConfirmResult::KeptBefore(id) => {
            format!("transaction {id} is kept; u or `netsilo undo` still restores the old values")
        }
        ConfirmResult::Restored(id, by) => format!("transaction {id} was undone by {by}"),
        ConfirmResult::RestoredNow(undone) => report(std::slice::from_ref(&undone), true),
        ConfirmResult::Nothing => "no transaction awaits confirmation".into(),
    })
}

/// Undoes the newest transaction. Reports the result for each setting.
pub(super) fn undo_newest(state: &StateDir) -> Result<String> {
    let (kernel, dir) = (state.kernel()?, state.path());
    let undone = undo(&kernel, dir, UndoScope::Last, false, RestoredBy::Undo, &mut |_, _| {})?;
    Ok(if undone.is_empty() { "nothing to undo".into() } else { report(&undone, true) })
}
