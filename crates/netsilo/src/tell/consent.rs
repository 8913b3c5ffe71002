//! Consent before a write: from the user, and in place of other programs that own the same knobs.

use std::io::{self, BufRead as _, IsTerminal as _};

use anyhow::{Context as _, Result};
use netsilo_decide::plan::{Plan, Refusal, RefusalCause};
use netsilo_sys::files::root::Root;

use crate::tell::exit::{Exit, ExitError};
use crate::tell::out::{self, eprint};

/// Refuses plans if planning would refuse their changes on the machine as it is now. The plans may
/// be old, or come from elsewhere.
pub fn refuse(plans: &[Plan], root: &Root) -> Result<()> {
    let refused = refused(plans, root)?;
    if refused.is_empty() {
        return Ok(());
    }
    let is_owner = |it: &&Refusal| it.cause == RefusalCause::OtherOwner;
    let owners: Vec<&str> = refused.iter().filter(is_owner).map(|it| it.subject.as_str()).collect();
    if owners.len() == refused.len() {
        let todo = "make a new plan, which says what to do; nothing was written";
        let message = format!("{} writes these settings too: {todo}", owners.join(", "));
        return Err(ExitError(Exit::OtherOwner, message).into());
    }
    let mut message = "refused, and nothing was written:".to_owned();
    for Refusal { subject, reason, .. } in &refused {
        message.push_str(&format!("\n  {subject}: {reason}"));
    }
    Err(ExitError(Exit::Refused, message).into())
}

/// The reasons for which planning would refuse these changes now, each once.
pub(crate) fn refused(plans: &[Plan], root: &Root) -> Result<Vec<Refusal>> {
    let now = netsilo_sys::uncounted(root).context("cannot read what would be changed")?;
    let mut refused: Vec<Refusal> = Vec::new();
    for refusal in plans.iter().flat_map(|plan| plan.refused_on(&now)) {
        if !refused.contains(&refusal) {
            refused.push(refusal);
        }
    }
    Ok(refused)
}

/// Asks on the terminal. Fails if standard input is not a terminal, or if the user could not see
/// the changes printed before.
pub fn confirmed_by_user(to: &str) -> Result<bool> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        let message =
            "cannot ask: standard input is not a terminal; use --yes to apply without asking";
        return Err(ExitError(Exit::Usage, message.into()).into());
    }
    if let Some(why) = out::unseen() {
        let message = format!("{why}: you cannot see what would be written; nothing was written");
        return Err(ExitError(Exit::Refused, message).into());
    }
    eprint(format_args!("{to}? [y/N] "));
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer).context("cannot read the answer")?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
