//! The goal of a plan, as the command line describes it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use netsilo_decide::judge::annotate::plan_with_verdicts;
use netsilo_decide::judge::findings::check;
use netsilo_decide::judge::fix::{FixRequest, fix};
use netsilo_decide::plan::{AlgorithmName, Goal, Plan, PortSteering, Xps};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::bpf::tracer::Options;
use netsilo_sys::cost::store::COSTS_DIR;

use crate::args::costs::{measured, read_costs};
use crate::args::look;
use crate::args::named;
use crate::args::parse::{cpus_or_off, entries_or_off, on_or_off, some_cpus};

/// Arguments that describe the goal of a plan.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct GoalArgs {
    /// Place only the queues of these netdevs [default: all]
    #[arg(short, long, value_name = "NAME,..", value_delimiter = ',')]
    netdev: Vec<String>,
    /// Place only on these CPUs (list or mask) [default: all but isolated and nohz_full]
    #[arg(short, long, value_name = "CPUS", value_parser = some_cpus)]
    cpus: Option<CpuSet>,
    /// Never place on these CPUs (list or mask) [default: none]
    #[arg(long, value_name = "CPUS", value_parser = some_cpus)]
    exclude: Option<CpuSet>,
    /// Algorithm that places interrupts
    #[arg(
        short,
        long,
        value_name = "NAME",
        default_value = "auto",
        value_parser = named::algorithms()
    )]
    algorithm: AlgorithmName,
    /// Do not move interrupts and NAPI kthreads
    #[arg(long)]
    no_irqs: bool,
    /// Set RPS: CPUs for every rx queue, or off [default: unchanged]
    #[arg(long, value_name = "CPUS|off", value_parser = cpus_or_off)]
    rps: Option<CpuSet>,
    /// Set RFS: entries of the flow table, divided among the queues, or off [default: unchanged]
    #[arg(long, value_name = "ENTRIES|off", value_parser = entries_or_off)]
    rfs: Option<u32>,
    /// Set aRFS, where the device steers flows by the RFS table [default: unchanged]
    #[arg(long, value_name = "on|off", value_parser = on_or_off)]
    arfs: Option<bool>,
    /// Steer flows to a port to these rx queues by rules of the device (443/tcp=2-3) [default:
    /// unchanged]
    #[arg(long, value_name = "PORT/PROTO=QUEUES")]
    steer: Vec<PortSteering>,
    /// Set XPS: each CPU sends through the nearest tx queue, or off [default: unchanged]
    #[arg(long, value_name = "WHICH", value_parser = named::xps())]
    xps: Option<Xps>,
    /// Set the CPUs of interrupts that are activated later [default: unchanged]
    #[arg(long, value_name = "CPUS", value_parser = some_cpus)]
    default_smp_affinity: Option<CpuSet>,
    /// Set the RPS CPUs of netdevs that appear later (a container's veth), or off [default:
    /// unchanged]
    #[arg(long, value_name = "CPUS|off", value_parser = cpus_or_off)]
    rps_default_mask: Option<CpuSet>,
    /// Plan only what fixes these findings of netsilo check; in a subject write / for a space
    /// (nic-drops:eth0, rps-to-itself:eth0/rx-3)
    #[arg(long, value_name = "ID[:SUBJECT],..", value_delimiter = ',', conflicts_with_all = [
        "netdev", "cpus", "exclude", "algorithm", "no_irqs", "rps", "rfs", "arfs", "steer", "xps",
        "default_smp_affinity", "rps_default_mask",
    ])]
    fix: Vec<FixRequest>,
    /// Plan changes even if another program (irqbalance) writes the same knobs
    #[arg(long)]
    even_if_owned: bool,
    /// File with weights of the cost model as JSON (docs/costs.md) [default: measured by netsilo
    /// calibrate, or else typical values]
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    /// Folder where netsilo calibrate stores its measurement
    #[arg(long, value_name = "DIR", default_value = COSTS_DIR, hide = true)]
    costs_dir: PathBuf,
}

impl GoalArgs {
    /// Whether the goal is only to fix findings.
    pub(crate) fn fixes_findings(&self) -> bool {
        !self.fix.is_empty()
    }

    /// Returns the default observation time for this goal.
    pub(crate) fn interval(&self) -> Duration {
        if self.fix.is_empty() { look::INTERVAL } else { look::CHECK_INTERVAL }
    }

    /// Returns the eBPF programs that this goal needs.
    pub(crate) fn options(&self) -> Options {
        if self.fix.is_empty() { Options::default() } else { Options::for_findings() }
    }

    /// Plans this goal for an observation of this machine or of a bundle's.
    pub(crate) fn plan(&self, observation: &Observation, is_bundle: bool) -> Result<Plan> {
        // Weights measured here do not apply to the machine in a bundle.
        let goal = if is_bundle { self.goal()? } else { self.goal_for_this_machine()? };
        let analysis = Analysis::new(observation, &goal.costs);
        if self.fix.is_empty() {
            return Ok(plan_with_verdicts(&analysis, &goal));
        }
        Ok(fix(&check(&analysis), &self.fix, &observation.after, goal.even_if_owned))
    }

    /// Returns the goal with the weights measured on this machine; prints a note if they are stored
    /// but cannot be used.
    pub(crate) fn goal_for_this_machine(&self) -> Result<Goal> {
        if self.costs.is_some() {
            return self.goal();
        }
        Ok(Goal { costs: measured(&self.costs_dir)?, ..self.goal()? })
    }

    /// Returns the goal that the arguments describe, with given or default weights.
    pub(crate) fn goal(&self) -> Result<Goal> {
        let costs = self.costs.as_deref().map(read_costs).transpose()?;
        Ok(Goal {
            costs: costs.unwrap_or_default(),
            netdevs: self.netdev.clone(),
            cpus: self.cpus.clone(),
            algorithm: self.algorithm,
            irqs: !self.no_irqs,
            rps: self.rps.clone(),
            rfs: self.rfs,
            arfs: self.arfs,
            steer: self.steer.clone(),
            exclude: self.exclude.clone().unwrap_or_default(),
            xps: self.xps,
            default_smp_affinity: self.default_smp_affinity.clone(),
            rps_default_mask: self.rps_default_mask.clone(),
            even_if_owned: self.even_if_owned,
            ..Goal::default()
        })
    }
}
