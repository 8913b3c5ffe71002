//! Where a plan comes from: a goal and an observation, or a file.

use std::path::Path;

use anyhow::{Context as _, Result};
use netsilo_decide::plan::Plan;

use crate::args::goal::GoalArgs;
use crate::args::{file, look};

/// Reads a plan from a file that `plan --json` printed or a person wrote.
pub(crate) fn load(path: &Path) -> Result<Plan> {
    let text = file::read(path, file::PLAN).context("cannot read the plan")?;
    serde_json::from_slice(&text).with_context(|| format!("{} is not a plan", path.display()))
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
    /// Observes and plans.
    pub(crate) fn plan(&self) -> Result<Plan> {
        let observation = self
            .observe
            .with_default_interval(self.goal.interval())
            .observe_with(self.goal.options())?;
        self.goal.plan(&observation, self.observe.is_bundle())
    }
}
