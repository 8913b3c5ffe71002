//! The two settings, and which of them is in force.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context as _, Result};
use netsilo_decide::plan::{AlgorithmName, Goal, Plan, plan};
use netsilo_model::snapshot::observation::Observation;
use serde::Serialize;

use crate::temporary_changes::Switch;
use crate::verbs::apply::{Place, load};
use crate::verbs::plan::GoalArgs;

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
                Some(name) => Self::Plan(Some(crate::verbs::plan::algorithm(name)?)),
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
    pub(crate) fn needs_a_look(&self) -> bool {
        matches!(self, Self::Plan(_))
    }

    /// What it writes, given what was seen and is wanted.
    pub(crate) fn plan(&self, seen: Option<&Observation>, goal: &GoalArgs) -> Result<Option<Plan>> {
        match self {
            Self::None => Ok(None),
            Self::File(path) => load(path).map(Some),
            Self::Plan(algorithm) => {
                let observation = seen.context("nothing was looked at")?;
                let Some(algorithm) = *algorithm else {
                    return goal.plan(observation, false).map(Some);
                };
                anyhow::ensure!(
                    !goal.mends(),
                    "{algorithm} places, --fix does not: write plan alone beside --fix"
                );
                Ok(Some(plan(observation, &Goal { algorithm, ..goal.goal_here()? })))
            }
        }
    }
}

/// Which of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// As it was found.
    Nothing,
    A,
    B,
}

/// Which of the two is in force.
pub(crate) struct Sides<'a> {
    plans: [Option<Plan>; 2],
    switch: Switch<'a>,
    now: Side,
}

impl<'a> Sides<'a> {
    pub(crate) fn new(plans: [Option<Plan>; 2], place: &'a Place) -> Result<Self> {
        Ok(Self { plans, switch: Switch::new(place)?, now: Side::Nothing })
    }

    /// Puts a side in force; whether anything was written.
    pub(crate) fn to(&mut self, side: Side) -> Result<bool> {
        if side == self.now {
            return Ok(false);
        }
        self.now = side;
        let plan = match side {
            Side::Nothing => None,
            Side::A => self.plans[0].as_ref(),
            Side::B => self.plans[1].as_ref(),
        };
        self.switch.put(plan.map_or(&[], |plan| &plan.changes))
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
