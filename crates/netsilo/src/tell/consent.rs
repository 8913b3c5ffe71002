//! Consent before a write: the user's, and that of other programs that own the same knobs.

use std::io::{self, BufRead as _, IsTerminal as _};

use anyhow::{Context as _, Result};
use netsilo_decide::plan::Plan;
use netsilo_sys::files::root::Root;

use crate::tell::exit::{Exit, ExitError};
use crate::tell::out::eprint;

/// Refuses a plan if another program now owns one of its settings; a saved plan may be old.
pub(crate) fn refuse_owned(plan: &Plan, root: &Root) -> Result<()> {
    let writers = netsilo_sys::read::knob_owners::running(root)
        .context("cannot look for other programs that write these settings")?;
    let owners = plan.knob_owners(&writers);
    let names: Vec<String> =
        owners.iter().map(|owner| format!("{} (pid {})", owner.name, owner.pid)).collect();
    if names.is_empty() {
        return Ok(());
    }
    let todo = "stop it first, or make the plan with --even-if-owned; nothing was written";
    Err(ExitError(
        Exit::OtherOwner,
        format!("{} writes these settings too: {todo}", names.join(", ")),
    )
    .into())
}

/// Asks on the terminal; an error if standard input is none.
pub(crate) fn confirmed_by_user(to: &str) -> Result<bool> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        let message =
            "cannot ask: standard input is not a terminal; use --yes to apply without asking";
        return Err(ExitError(Exit::Usage, message.into()).into());
    }
    eprint(format_args!("{to}? [y/N] "));
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer).context("cannot read the answer")?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
