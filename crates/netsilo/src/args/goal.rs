//! The goal of a plan, as the command line describes it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use netsilo_decide::judge::annotate::{plan_by_outcome, plan_with_verdicts};
use netsilo_decide::judge::findings::check;
use netsilo_decide::judge::fix::{FixRequest, fix};
use netsilo_decide::plan::{Goal, Plan};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::bpf::tracer::Options;
use netsilo_sys::cost::store::COSTS_DIR;
use netsilo_sys::files::root::Root;

use crate::args::costs::{measured, read_costs};
use crate::args::goal_keys::GoalKeys;
use crate::args::look;
use crate::args::outcomes::OutcomesDir;
use crate::tell::out;

/// Arguments that describe the goal of a plan.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct GoalArgs {
    #[command(flatten)]
    keys: GoalKeys,
    /// Plan only what fixes these findings of netsilo check; write a space in a subject as /
    /// (nic-drops:eth0, rps-to-itself:eth0/rx-3)
    #[arg(long, value_name = "ID[:SUBJECT],..", value_delimiter = ',', conflicts_with_all = [
        "netdev", "readers", "cpus", "exclude", "algorithm", "no_irqs", "rps", "rfs", "arfs",
        "steer", "xps", "default_smp_affinity", "rps_default_mask",
    ])]
    fix: Vec<FixRequest>,
    /// File with weights of the cost model as JSON (docs/calibrate.md) [default: measured by
    /// netsilo calibrate, or else typical values]
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    /// Folder where netsilo calibrate stores its measurement
    #[arg(long, value_name = "DIR", default_value = COSTS_DIR, hide = true)]
    costs_dir: PathBuf,
    /// Plan by the cost model alone, ignoring what netsilo tune measured on this workload
    #[arg(long)]
    no_outcomes: bool,
    #[command(flatten)]
    outcomes: OutcomesDir,
}

impl GoalArgs {
    /// Whether the goal is only to fix findings.
    pub(crate) fn fixes_findings(&self) -> bool {
        !self.fix.is_empty()
    }

    /// The options that make this plan again, if it only fixes findings.
    pub(crate) fn fix_options(&self) -> Option<String> {
        let fixes: Vec<String> = self.fix.iter().map(ToString::to_string).collect();
        let owned = if self.keys.even_if_owned() { " --even-if-owned" } else { "" };
        self.fixes_findings().then(|| format!("--fix {}{owned}", fixes.join(",")))
    }

    /// The keys of this goal, or why it cannot be stored: it has more than its keys.
    pub(crate) fn storable(self) -> Result<GoalKeys, String> {
        if self.fixes_findings() {
            let todo = "the settings themselves can be stored with netsilo export";
            return Err(format!("it fixes findings, which show only under load: {todo}"));
        }
        if let Some(path) = self.costs {
            let path = path.display();
            return Err(format!("its weights are in {path}: costs in netsilo.toml holds weights"));
        }
        let mut keys = self.keys.given();
        keys.outcomes = self.no_outcomes.then_some(false);
        Ok(keys)
    }

    /// Returns the default observation time for this goal.
    pub(crate) fn interval(&self) -> Duration {
        if self.fix.is_empty() { look::INTERVAL } else { look::CHECK_INTERVAL }
    }

    /// Returns the eBPF programs that this goal needs.
    pub(crate) fn options(&self) -> Options {
        if self.fix.is_empty() {
            // Queues that AF_XDP sockets use are left alone.
            Options { packet_sockets: true, ..Options::default() }
        } else {
            Options::for_findings()
        }
    }

    /// Returns the goal of fixing only this finding.
    pub(crate) fn fixing(&self, fix: FixRequest) -> Self {
        Self { fix: vec![fix], ..self.clone() }
    }

    /// Returns the goal with the right weights: for this machine those measured on it, for a bundle
    /// the defaults.
    pub(crate) fn resolved(&self, is_bundle: bool) -> Result<Goal> {
        if is_bundle { self.goal() } else { self.goal_for_this_machine() }
    }

    /// Plans this goal for an observation of this machine or of the bundle's machine.
    pub(crate) fn plan_for(&self, observation: &Observation, is_bundle: bool) -> Result<Plan> {
        let goal = self.resolved(is_bundle)?;
        self.plan(&Analysis::new(observation, &goal.costs), &goal, is_bundle)
    }

    /// Plans the [resolved](Self::resolved) goal. Outcomes measured here do not apply to other
    /// machines.
    pub(crate) fn plan(
        &self,
        analysis: &Analysis<'_>,
        goal: &Goal,
        is_bundle: bool,
    ) -> Result<Plan> {
        let by_model =
            is_bundle || !self.fix.is_empty() || self.no_outcomes || !self.keys.only_limit();
        if by_model {
            return Ok(self.plan_by_model(analysis, goal));
        }
        let (outcomes, notes) = self.outcomes.known(Root::live())?;
        notes.iter().for_each(|note| out::note(note));
        Ok(plan_by_outcome(analysis, goal, &outcomes.find(analysis)))
    }

    /// Plans the fixes of findings, or the placement by the cost model.
    pub(crate) fn plan_by_model(&self, analysis: &Analysis<'_>, goal: &Goal) -> Plan {
        if self.fix.is_empty() {
            return plan_with_verdicts(analysis, goal);
        }
        fix(&check(analysis), &self.fix, analysis.after(), goal.even_if_owned)
    }

    /// Returns the goal with the weights measured on this machine. Prints a note if stored weights
    /// cannot be used.
    fn goal_for_this_machine(&self) -> Result<Goal> {
        if self.costs.is_some() {
            return self.goal();
        }
        Ok(Goal { costs: measured(&self.costs_dir)?, ..self.goal()? })
    }

    /// Returns the goal that the arguments describe, with given or default weights.
    pub(crate) fn goal(&self) -> Result<Goal> {
        let costs = self.costs.as_deref().map(read_costs).transpose()?;
        let given = Goal { costs: costs.unwrap_or_default(), ..Goal::default() };
        Ok(self.keys.clone().over(given))
    }
}
