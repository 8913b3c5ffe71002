//! The two settings, and the switch between them: each is one transaction, which is taken back before the other is made.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use netsilo_core::host::Observation;
use netsilo_core::plan::{AlgorithmName, Goal, Plan, plan};
use netsilo_sys::apply::{Options, apply};
use netsilo_sys::kernel::Live;
use netsilo_sys::transaction::By;
use netsilo_sys::undo::{Undone, Which, undo};
use serde::Serialize;

use crate::apply::{Place, load};
use crate::exit::{Exit, Stop};

/// What is in force, in the operator's words.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Setting {
    /// Nothing is written.
    None,
    /// netsilo's own plan, by this algorithm or the goal's.
    Plan(Option<AlgorithmName>),
    /// A plan from a file.
    File(PathBuf),
}

impl FromStr for Setting {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "none" => Self::None,
            "plan" => Self::Plan(None),
            _ => match text.strip_prefix("plan:") {
                Some(name) => Self::Plan(Some(crate::plan::algorithm(name)?)),
                None => Self::File(text.into()),
            },
        })
    }
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Plan(None) => f.write_str("plan"),
            Self::Plan(Some(name)) => write!(f, "plan:{}", name.as_str()),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

impl Setting {
    pub(super) fn needs_a_look(&self) -> bool {
        matches!(self, Self::Plan(_))
    }

    /// What it writes, given what was seen and is wanted.
    pub(super) fn plan(&self, seen: Option<&(Observation, Goal)>) -> Result<Option<Plan>> {
        match self {
            Self::None => Ok(None),
            Self::File(path) => load(path).map(Some),
            Self::Plan(algorithm) => {
                let (observation, goal) = seen.context("nothing was looked at")?;
                let algorithm = algorithm.unwrap_or(goal.algorithm);
                Ok(Some(plan(observation, &Goal { algorithm, ..goal.clone() })))
            }
        }
    }
}

/// Which of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// As it was found.
    Nothing,
    A,
    B,
}

/// Switches; when it goes, all is as it was found.
pub(super) struct Switch<'a> {
    plans: [Option<Plan>; 2],
    place: &'a Place,
    kernel: Live,
    now: Side,
    transaction: Option<u64>,
}

impl<'a> Switch<'a> {
    pub(super) fn new(plans: [Option<Plan>; 2], place: &'a Place) -> Result<Self> {
        Ok(Self { plans, place, kernel: place.kernel()?, now: Side::Nothing, transaction: None })
    }

    /// Puts a side in force; whether anything was written.
    pub(super) fn to(&mut self, side: Side) -> Result<bool> {
        if side == self.now {
            return Ok(false);
        }
        let taken_back = self.take_back()?;
        self.now = side;
        let plan = match side {
            Side::Nothing => None,
            Side::A => self.plans[0].as_ref(),
            Side::B => self.plans[1].as_ref(),
        };
        let Some(plan) = plan else { return Ok(taken_back) };
        let dir = std::path::absolute(self.place.state_dir()).context("resolving the state folder")?;
        let mut no_guard = |_| Ok(());
        let mut options = Options { confirm_within: None, start_guard: &mut no_guard, wait: Duration::ZERO };
        let applied = apply(&self.kernel, &dir, &plan.changes, &mut options, &mut |_| {})?;
        self.transaction = applied.transaction;
        if let Some((target, now)) = applied.overwritten.first() {
            let message = format!("{target} says {now} already: another program writes it too, find it and stop it");
            return Err(Stop(Exit::OtherOwner, message).into());
        }
        Ok(true)
    }

    fn take_back(&mut self) -> Result<bool> {
        let Some(transaction) = self.transaction.take() else { return Ok(false) };
        let which = Which::Only(transaction);
        let undone = undo(&self.kernel, self.place.state_dir(), which, false, By::Undo, &mut |_, _| {})?;
        if undone.iter().all(Undone::is_complete) {
            return Ok(true);
        }
        let words = crate::undo::report(&undone);
        let todo = "run `netsilo undo` to try again";
        Err(Stop(Exit::RestoreIncomplete, format!("{}\n{todo}", words.trim_end())).into())
    }
}

impl Drop for Switch<'_> {
    fn drop(&mut self) {
        // only after an error, which is told; the journal keeps what cannot be restored now
        let _ = self.take_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_they_are_told() {
        for text in ["none", "plan", "plan:spread", "some/plan.json"] {
            assert_eq!(text.parse::<Setting>().unwrap().to_string(), text);
        }
        assert!("plan:magic".parse::<Setting>().unwrap_err().to_string().starts_with("known are "));
    }
}
