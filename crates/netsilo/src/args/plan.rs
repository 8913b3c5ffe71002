//! Where a plan comes from: a goal and an observation, or a file.

use std::path::Path;

use anyhow::{Context as _, Result};
use netsilo_decide::plan::Plan;
use netsilo_model::cost::weights::Costs;
use netsilo_model::snapshot::observation::Observation;

use crate::args::goal::GoalArgs;
use crate::args::{file, look};

/// The schema of plans that this netsilo prints and reads.
const SCHEMA: u32 = 1;

/// The number of a plan's schema, which a plan that a person wrote need not have.
#[derive(serde::Deserialize)]
struct Versioned {
    #[serde(default = "newest")]
    schema: u32,
}

fn newest() -> u32 {
    SCHEMA
}

/// Reads a plan that `plan --json` printed or a person wrote, from a file; with `-` from standard
/// input.
pub(crate) fn load(path: &Path) -> Result<Plan> {
    let text = file::read_or_stdin(path, file::PLAN).context("cannot read the plan")?;
    let not_a_plan = || format!("{} is not a plan", path.display());
    let Versioned { schema } = serde_json::from_slice(&text).with_context(not_a_plan)?;
    anyhow::ensure!(
        schema == SCHEMA,
        "{} has schema {schema}: this netsilo reads schema {SCHEMA}",
        path.display()
    );
    serde_json::from_slice(&text).with_context(not_a_plan)
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
    /// What the user should know after a plan: where the remedies of findings are, or what writes
    /// this one.
    pub(crate) fn next(&self, plan: &Plan) -> Option<String> {
        match (plan.changes.is_empty(), self.goal.fix_options()) {
            (true, None) => Some(
                "this is about places only; for what netsilo check finds: netsilo plan --fix ID"
                    .into(),
            ),
            (false, Some(fix)) if !self.observe.is_bundle() => {
                Some(format!("to write it: netsilo apply {fix}"))
            }
            _ => None,
        }
    }

    /// Observes and plans.
    pub(crate) fn plan(&self) -> Result<Plan> {
        Ok(self.observe_and_plan()?.1)
    }

    /// Observes and plans; also returns what was observed.
    pub(crate) fn observe_and_plan(&self) -> Result<(Observation, Plan)> {
        let observation = self
            .observe
            .with_default_interval(self.goal.interval())
            .observe_with(self.goal.options())?;
        let plan = self.goal.plan(&observation, self.observe.is_bundle())?;
        Ok((observation, plan))
    }

    /// Returns the weights that the plan is made with.
    pub(crate) fn costs(&self) -> Result<Costs> {
        self.goal.costs(self.observe.is_bundle())
    }

    /// Returns how observations of other machines are planned.
    pub(crate) fn planner(&self) -> Result<impl Fn(&Observation) -> Plan> {
        self.goal.planner()
    }
}
