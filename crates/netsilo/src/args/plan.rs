//! The source of a plan: a goal and an observation, or a file.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use netsilo_decide::plan::{Goal, Plan};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::parse::sanitize::is_control;
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::files::document::{self, DocumentError};
use serde_json::Value;

use crate::args::goal::GoalArgs;
use crate::args::{file, look};

/// The newest schema of plans that this netsilo reads; the one that it prints.
const SCHEMA: u32 = 1;

/// Reads a plan that `plan --json` printed or that a person wrote. The path `-` means standard
/// input.
pub(crate) fn load(path: &Path) -> Result<Plan> {
    let text = file::read_or_stdin(path, file::PLAN).context("cannot read the plan")?;
    let plan = document::parse(&text, SCHEMA).map_err(|error| match error {
        DocumentError::Schema(unknown) => anyhow!("{} has {unknown}", path.display()),
        DocumentError::Json(why) => {
            anyhow::Error::new(why).context(format!("{} is not a plan", path.display()))
        }
    })?;
    if let Some(wrong) = wrong_text(&serde_json::from_slice(&text)?) {
        anyhow::bail!("{} has {wrong}", path.display());
    }
    Ok(plan)
}

/// What is wrong with a text of a plan. A reason with a line break could look like lines of
/// netsilo's own.
fn wrong_text(value: &Value) -> Option<&'static str> {
    const LONGEST: usize = 4096;
    let of = |text: &str| {
        let control = text.contains(is_control);
        let control = control.then_some("a line break or another control character in a text");
        control.or_else(|| (text.len() > LONGEST).then_some("a text of more than 4096 bytes"))
    };
    match value {
        Value::String(text) => of(text),
        Value::Array(all) => all.iter().find_map(wrong_text),
        Value::Object(all) => all.iter().find_map(|(key, it)| of(key).or_else(|| wrong_text(it))),
        _ => None,
    }
}

/// What a plan is made from: a goal and an observation.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    goal: GoalArgs,
    #[command(flatten)]
    observe: look::ObserveArgs,
}

impl PlanArgs {
    /// What the user should know after a plan: where the remedies of findings are, or which command
    /// writes this plan.
    pub(crate) fn next(&self, plan: &Plan) -> Option<String> {
        match (plan.changes.is_empty(), self.goal.fix_options()) {
            (true, None) if !plan.refusals.is_empty() => None,
            (true, None) => Some(format!(
                "this plan only places work; to fix a finding of netsilo check: netsilo plan \
                     --fix ID{}",
                self.observe.given()
            )),
            (false, Some(fix)) if !self.observe.is_bundle() => {
                Some(format!("to write this plan: netsilo apply {fix}{}", self.observe.given()))
            }
            _ => None,
        }
    }

    /// Observes and plans.
    pub(crate) fn observe_and_plan(&self) -> Result<Plan> {
        self.goal.plan_for(&self.observe()?, self.observe.is_bundle())
    }

    /// Observes for as long as the goal needs, with the eBPF programs that the goal needs.
    pub(crate) fn observe(&self) -> Result<Observation> {
        let interval = self.goal.interval();
        self.observe.with_default_interval(interval).observe_with(self.goal.options())
    }

    /// Returns the goal, with the weights for this machine or the bundle's machine.
    pub(crate) fn goal(&self) -> Result<Goal> {
        self.goal.resolved(self.observe.is_bundle())
    }

    /// Returns the goal for other machines. Weights measured here do not apply to them.
    pub(crate) fn goal_elsewhere(&self) -> Result<Goal> {
        self.goal.resolved(true)
    }

    /// Plans the goal for this machine or the bundle's machine.
    pub(crate) fn plan(&self, analysis: &Analysis<'_>, goal: &Goal) -> Result<Plan> {
        self.goal.plan(analysis, goal, self.observe.is_bundle())
    }

    /// Plans the goal for another machine.
    pub(crate) fn plan_elsewhere(&self, analysis: &Analysis<'_>, goal: &Goal) -> Plan {
        self.goal.plan_by_model(analysis, goal)
    }
}
