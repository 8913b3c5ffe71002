//! The two settings of a comparison, and switching between them.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context as _, Result};
use netsilo_decide::judge::annotate::plan_with_verdicts;
use netsilo_decide::plan::{AlgorithmName, Goal, Plan};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::snapshot::observation::Observation;
use serde::Serialize;

use crate::temporary_changes::Switch;
use crate::verbs::apply::{Place, load};
use crate::verbs::plan::GoalArgs;

/// A setting as the user writes it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Setting {
    /// Nothing is written.
    None,
    /// netsilo's own plan, by the named algorithm or the goal's.
    Plan(Option<AlgorithmName>),
    /// A plan read from a file.
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

    /// Returns the plan of this setting; `None` if it writes nothing.
    pub(super) fn plan(&self, seen: Option<&Observation>, goal: &GoalArgs) -> Result<Option<Plan>> {
        match self {
            Self::None => Ok(None),
            Self::File(path) => load(path).map(Some),
            Self::Plan(algorithm) => {
                let observation = seen.context("the machine was not observed")?;
                let Some(algorithm) = *algorithm else {
                    return goal.plan(observation, false).map(Some);
                };
                anyhow::ensure!(
                    !goal.mends(),
                    "{algorithm} places queues and --fix does not: with --fix write plan, not \
                     plan:ALGORITHM"
                );
                let goal = Goal { algorithm, ..goal.goal_here()? };
                let analysis = Analysis::new(observation, &goal.costs);
                Ok(Some(plan_with_verdicts(&analysis, &goal)))
            }
        }
    }
}

/// The state that is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// The values found at the start.
    Nothing,
    A,
    B,
}

/// Both plans, and which of them is in force.
pub(super) struct Sides<'a> {
    plans: [Option<Plan>; 2],
    switch: Switch<'a>,
    now: Side,
}

impl<'a> Sides<'a> {
    pub(crate) fn new(plans: [Option<Plan>; 2], place: &'a Place) -> Result<Self> {
        Ok(Self { plans, switch: Switch::new(place)?, now: Side::Nothing })
    }

    /// Puts a side in force; returns whether anything was written.
    pub(super) fn to(&mut self, side: Side) -> Result<bool> {
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
    fn settings_parse_and_print_the_same() {
        for text in ["none", "plan", "plan:spread", "some/plan.json"] {
            assert_eq!(text.parse::<Setting>().unwrap().to_string(), text);
        }
        assert!("plan:magic".parse::<Setting>().unwrap_err().to_string().starts_with("known are "));
    }
}
