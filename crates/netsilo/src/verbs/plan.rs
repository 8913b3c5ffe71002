//! `netsilo plan`: prints what `apply` would write, and why.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use netsilo_decide::judge::annotate::plan_with_verdicts;
use netsilo_decide::judge::findings::check;
use netsilo_decide::judge::fix::{FixRequest, fix};
use netsilo_decide::plan::{AlgorithmName, Goal, Plan, PortSteering, RefusalCause, Xps};
use netsilo_model::cost::weights::{CostSource, Costs};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::{CpuSet, MAX_CPUS};
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::bpf::tracer::Options;
use netsilo_sys::cost::store::{self, COSTS_DIR};
use netsilo_sys::files::root::Root;

use crate::args::look;
use crate::tell::exit::Exit;
use crate::tell::out;
use crate::views;

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
    #[arg(short, long, value_name = "NAME", default_value = "auto", value_parser = algorithm)]
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
    /// Steer flows to a port to these rx queues by rules of the device (443/tcp=2-3)
    #[arg(long, value_name = "PORT/PROTO=QUEUES")]
    steer: Vec<PortSteering>,
    /// Set XPS: each CPU sends through the nearest tx queue, or off [default: unchanged]
    #[arg(long, value_name = "near|off", value_parser = xps)]
    xps: Option<Xps>,
    /// Set the CPUs of interrupts that are activated later [default: unchanged]
    #[arg(long, value_name = "CPUS", value_parser = some_cpus)]
    default_smp_affinity: Option<CpuSet>,
    /// Set the RPS CPUs of netdevs that appear later (a container's veth), or off [default:
    /// unchanged]
    #[arg(long, value_name = "CPUS|off", value_parser = cpus_or_off)]
    rps_default_mask: Option<CpuSet>,
    /// Plan only what fixes these findings of netsilo check; in a subject write / for a space
    /// (ring-full:eth0/rx-3)
    #[arg(long, value_name = "ID[:SUBJECT],..", value_delimiter = ',', conflicts_with_all = [
        "netdev", "cpus", "exclude", "algorithm", "no_irqs", "rps", "rfs", "arfs", "xps",
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
    pub(crate) fn mends(&self) -> bool {
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
        let goal = if is_bundle { self.goal()? } else { self.goal_here()? };
        let analysis = Analysis::new(observation, &goal.costs);
        if self.fix.is_empty() {
            return Ok(plan_with_verdicts(&analysis, &goal));
        }
        Ok(fix(&check(&analysis), &self.fix, &observation.after, goal.even_if_owned))
    }

    /// Returns the goal with the weights measured on this machine; prints a note if they are stored
    /// but cannot be used.
    pub(crate) fn goal_here(&self) -> Result<Goal> {
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

/// What a plan is made from: a goal and an observation.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    goal: GoalArgs,
    #[command(flatten)]
    observe: look::Look,
}

impl PlanArgs {
    /// Observes and plans.
    pub(crate) fn plan(&self) -> Result<Plan> {
        let observation =
            self.observe.unless_told(self.goal.interval()).observe_with(self.goal.options())?;
        self.goal.plan(&observation, self.observe.is_bundle())
    }
}

/// Arguments of `netsilo plan`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    make: PlanArgs,
    /// Exit with 10 if there are changes to make
    #[arg(long)]
    detailed_exitcode: bool,
    /// Print the plan as JSON, as `netsilo apply --plan` reads it
    #[arg(short, long)]
    json: bool,
}

/// Observes, plans and prints.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let plan = args.make.plan()?;
    if args.json {
        out::json(&plan)?;
    } else {
        out::text(&views::plan::render(&plan))?;
    }
    Ok(exit(&plan, args.detailed_exitcode))
}

/// Returns the exit code of a verb that only makes this plan.
pub(crate) fn exit(plan: &Plan, detailed: bool) -> Exit {
    let refused =
        |cause: fn(RefusalCause) -> bool| plan.refusals.iter().any(|refusal| cause(refusal.cause));
    if plan.changes.is_empty() && refused(|cause| cause == RefusalCause::OtherOwner) {
        Exit::OtherOwner
    } else if plan.changes.is_empty() && refused(|_| true) {
        Exit::Refused
    } else if !plan.changes.is_empty() && detailed {
        Exit::ChangesPending
    } else {
        Exit::Ok
    }
}

/// Returns the weights measured on this machine, or the defaults; prints a note if stored ones
/// cannot be used.
fn measured(dir: &Path) -> Result<Costs> {
    let machine = store::machine(&Root::live()).context("cannot identify this machine")?;
    let loaded = store::load(dir, &machine);
    if let Some(note) = &loaded.note {
        out::note(note);
    }
    Ok(loaded.costs)
}

/// Returns the weights for what is observed: this machine, or a bundle (default weights).
pub(crate) fn costs_for(is_bundle: bool) -> Result<Costs> {
    if is_bundle { Ok(Costs::default()) } else { measured(Path::new(COSTS_DIR)) }
}

/// Reads a file of weights; those that it leaves out have their default.
fn read_costs(path: &Path) -> Result<Costs> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let costs: Costs = serde_json::from_str(&text)
        .with_context(|| format!("{} contains no costs", path.display()))?;
    costs.check().map_err(|wrong| anyhow::anyhow!("{}: {wrong}", path.display()))?;
    Ok(Costs { source: CostSource::Configured, ..costs })
}

/// Parses a set of CPUs that is not empty.
pub(crate) fn some_cpus(text: &str) -> Result<CpuSet> {
    Ok(CpuSet::parse_user(text, MAX_CPUS)?.0)
}

pub(crate) fn cpus_or_off(text: &str) -> Result<CpuSet> {
    if text == "off" { Ok(CpuSet::new()) } else { some_cpus(text) }
}

pub(crate) fn entries_or_off(text: &str) -> Result<u32> {
    if text == "off" {
        return Ok(0);
    }
    let entries: u32 = text.parse().context("write a number of entries (32768) or off")?;
    anyhow::ensure!(
        (1..=1 << 29).contains(&entries),
        "the kernel accepts 1 to 536870912 entries, or off"
    );
    Ok(entries)
}

pub(crate) fn on_or_off(text: &str) -> Result<bool> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => anyhow::bail!("write on or off"),
    }
}

pub(crate) fn xps(text: &str) -> Result<Xps> {
    match text {
        "near" => Ok(Xps::Near),
        "off" => Ok(Xps::Off),
        _ => anyhow::bail!("write near or off"),
    }
}

pub(crate) fn algorithm(text: &str) -> Result<AlgorithmName> {
    let known = AlgorithmName::ALL.iter().copied().find(|name| name.as_str() == text);
    let names =
        || AlgorithmName::ALL.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
    known.with_context(|| format!("known are {}", names()))
}
