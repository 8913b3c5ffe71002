//! A setting that `netsilo ab` compares, as `--a` and `--b` name it.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, Result};
use netsilo_decide::judge::annotate::plan_with_verdicts;
use netsilo_decide::plan::{AlgorithmName, Goal, Plan};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::snapshot::observation::Observation;
use serde::Serialize;

use crate::args::goal::GoalArgs;
use crate::args::named::{algorithm, algorithm_names};
use crate::args::plan::load;
use crate::tell::exit::{Exit, ExitError};

/// A setting as the user writes it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum AbSetting {
    /// Nothing is written.
    None,
    /// netsilo's own plan, by the named algorithm or by the goal's.
    Plan(Option<AlgorithmName>),
    /// A plan read from a file.
    File(PathBuf),
}

impl FromStr for AbSetting {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "none" => Self::None,
            "plan" => Self::Plan(None),
            _ => match text.strip_prefix("plan:") {
                Some(name) => {
                    let known = || format!("known are {}", algorithm_names().join(", "));
                    Self::Plan(Some(algorithm(name).with_context(known)?))
                }
                None => Self::File(text.into()),
            },
        })
    }
}

impl std::fmt::Display for AbSetting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Plan(None) => f.write_str("plan"),
            Self::Plan(Some(name)) => write!(f, "plan:{}", name.as_str()),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

impl AbSetting {
    pub(crate) fn needs_observation(&self) -> bool {
        matches!(self, Self::Plan(_))
    }

    /// Returns the plan of this setting, or `None` if the setting writes nothing.
    pub(crate) fn plan(&self, seen: Option<&Observation>, goal: &GoalArgs) -> Result<Option<Plan>> {
        match self {
            Self::None => Ok(None),
            Self::File(path) => {
                refuse_missing(path)?;
                load(path).map(Some)
            }
            Self::Plan(algorithm) => {
                let observation = seen.context("the machine was not observed")?;
                let Some(algorithm) = *algorithm else {
                    return goal.plan_for(observation, false).map(Some);
                };
                anyhow::ensure!(
                    !goal.fixes_findings(),
                    "--fix does not place queues, so {algorithm} does not apply: with --fix write \
                     plan, not plan:ALGORITHM"
                );
                let goal = Goal { algorithm, ..goal.resolved(false)? };
                let analysis = Analysis::new(observation, &goal.costs);
                Ok(Some(plan_with_verdicts(&analysis, &goal)))
            }
        }
    }
}

/// Refuses a name that is neither a setting nor a file.
fn refuse_missing(path: &Path) -> Result<()> {
    if path == Path::new("-") || path.exists() {
        return Ok(());
    }
    let names = "write none, plan, plan:ALGORITHM, or the file of a plan";
    let words = format!("no setting or file is called {}: {names}", path.display());
    Err(ExitError(Exit::Usage, words).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_there_is_a_wrong_name() {
        let error = refuse_missing("pln".as_ref()).unwrap_err().to_string();
        assert!(error.starts_with("no setting or file is called pln: write none, "), "{error}");
        assert!(refuse_missing("-".as_ref()).is_ok());
    }

    #[test]
    fn settings_parse_and_print_the_same() {
        for text in ["none", "plan", "plan:spread", "some/plan.json"] {
            assert_eq!(text.parse::<AbSetting>().unwrap().to_string(), text);
        }
        assert!(
            "plan:magic".parse::<AbSetting>().unwrap_err().to_string().starts_with("known are ")
        );
    }
}
