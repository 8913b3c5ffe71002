//! `netsilo plan`: what `apply` would write, and why.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use netsilo_decide::judge::findings::check;
use netsilo_decide::judge::fix::{Mend, fix};
use netsilo_decide::plan::{AlgorithmName, Cause, Goal, Plan, Steering, Xps, plan};
use netsilo_model::cost::weights::{CostSource, Costs};
use netsilo_model::machine::cpuset::{CpuSet, MAX_CPUS};
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::bpf::tracer::Options;
use netsilo_sys::cost::store::{self, COSTS_DIR};
use netsilo_sys::files::root::Root;

use crate::args::look;
use crate::tell::exit::Exit;
use crate::tell::out;
use crate::views;

/// What the operator wants, as arguments.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct GoalArgs {
    /// Place the queues of these netdevs only
    #[arg(short, long, value_name = "NAME,..", value_delimiter = ',')]
    netdev: Vec<String>,
    /// Place on these CPUs only (list or mask)
    #[arg(short, long, value_name = "CPUS", value_parser = some_cpus)]
    cpus: Option<CpuSet>,
    /// Never place on these CPUs (list or mask)
    #[arg(long, value_name = "CPUS", value_parser = some_cpus)]
    exclude: Option<CpuSet>,
    /// How to place interrupts
    #[arg(short, long, value_name = "NAME", default_value = "auto", value_parser = algorithm)]
    algorithm: AlgorithmName,
    /// Leave interrupts and NAPI kthreads where they are
    #[arg(long)]
    no_irqs: bool,
    /// RPS: CPUs for every rx queue, or off
    #[arg(long, value_name = "CPUS|off", value_parser = cpus_or_off)]
    rps: Option<CpuSet>,
    /// RFS: entries of the flow table, shared out over the queues, or off
    #[arg(long, value_name = "ENTRIES|off", value_parser = entries_or_off)]
    rfs: Option<u32>,
    /// aRFS: the device steers flows by the RFS table
    #[arg(long, value_name = "on|off", value_parser = on_or_off)]
    arfs: Option<bool>,
    /// Flows to a port through these rx queues, by rules of the device (443/tcp=2-3)
    #[arg(long, value_name = "PORT/PROTO=QUEUES")]
    steer: Vec<Steering>,
    /// XPS: each CPU sends through the nearest queue, or off
    #[arg(long, value_name = "near|off", value_parser = xps)]
    xps: Option<Xps>,
    /// CPUs of interrupts that are activated later
    #[arg(long, value_name = "CPUS", value_parser = some_cpus)]
    default_smp_affinity: Option<CpuSet>,
    /// RPS CPUs of netdevs that appear later (a container's veth), or off
    #[arg(long, value_name = "CPUS|off", value_parser = cpus_or_off)]
    rps_default_mask: Option<CpuSet>,
    /// Only what mends these findings of netsilo check; in a subject, / stands for a space
    /// (ring-full:eth0/rx-3)
    #[arg(long, value_name = "ID[:SUBJECT],..", value_delimiter = ',', conflicts_with_all = [
        "netdev", "cpus", "exclude", "algorithm", "no_irqs", "rps", "rfs", "arfs", "xps", "default_smp_affinity",
        "rps_default_mask",
    ])]
    fix: Vec<Mend>,
    /// Plan although another program (irqbalance) writes the same knobs
    #[arg(long)]
    even_if_owned: bool,
    /// Weights of the cost model, as JSON (docs/costs.md), in place of the table or what was
    /// measured
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    /// Where netsilo calibrate keeps what it has measured
    #[arg(long, value_name = "DIR", default_value = COSTS_DIR, hide = true)]
    costs_dir: PathBuf,
}

impl GoalArgs {
    /// Whether it asks for what mends findings, and nothing else.
    pub(crate) fn mends(&self) -> bool {
        !self.fix.is_empty()
    }

    /// How long to look, unless told.
    pub(crate) fn interval(&self) -> Duration {
        if self.fix.is_empty() { look::INTERVAL } else { look::CHECK_INTERVAL }
    }

    /// What to count for it.
    pub(crate) fn options(&self) -> Options {
        if self.fix.is_empty() { Options::default() } else { Options::for_findings() }
    }

    /// What this asks for, by what was observed here (or in a bundle).
    pub(crate) fn plan(&self, observation: &Observation, is_bundle: bool) -> Result<Plan> {
        // What was measured here says nothing of the machine in a bundle.
        let goal = if is_bundle { self.goal()? } else { self.goal_here()? };
        if self.fix.is_empty() {
            return Ok(plan(observation, &goal));
        }
        Ok(fix(&check(observation, &goal.costs), &self.fix, &observation.after, goal.even_if_owned))
    }

    /// The goal, with the weights that were measured on this machine, if they were; says why not if
    /// a file of them is there.
    pub(crate) fn goal_here(&self) -> Result<Goal> {
        if self.costs.is_some() {
            return self.goal();
        }
        Ok(Goal { costs: measured(&self.costs_dir)?, ..self.goal()? })
    }

    /// The goal that the arguments describe.
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

/// What a plan is made from.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    goal: GoalArgs,
    #[command(flatten)]
    observe: look::Look,
}

impl PlanArgs {
    /// Looks and plans.
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
    /// Exit with 10 when changes are pending
    #[arg(long)]
    detailed_exitcode: bool,
    /// Print JSON, as `netsilo apply --plan` takes it
    #[arg(short, long)]
    json: bool,
}

/// Looks, plans, prints.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let plan = args.make.plan()?;
    if args.json {
        out::json(&plan)?;
    } else {
        out::text(&views::plan::render(&plan))?;
    }
    Ok(exit(&plan, args.detailed_exitcode))
}

/// How a verb ends that makes this plan and no more of it.
pub(crate) fn exit(plan: &Plan, detailed: bool) -> Exit {
    let refused =
        |cause: fn(Cause) -> bool| plan.refusals.iter().any(|refusal| cause(refusal.cause));
    if plan.changes.is_empty() && refused(|cause| cause == Cause::OtherOwner) {
        Exit::OtherOwner
    } else if plan.changes.is_empty() && refused(|_| true) {
        Exit::Refused
    } else if !plan.changes.is_empty() && detailed {
        Exit::ChangesPending
    } else {
        Exit::Ok
    }
}

/// The weights for this machine, measured if they were; says why not if a file of them is there.
fn measured(dir: &Path) -> Result<Costs> {
    let machine = store::machine(&Root::live()).context("cannot tell which machine this is")?;
    let loaded = store::load(dir, &machine);
    if let Some(note) = &loaded.note {
        out::note(note);
    }
    Ok(loaded.costs)
}

/// The weights for what is looked at: this machine, or another one's bundle.
pub(crate) fn costs_for(is_bundle: bool) -> Result<Costs> {
    if is_bundle { Ok(Costs::default()) } else { measured(Path::new(COSTS_DIR)) }
}

/// Weights given by the operator; what they leave out is the table's.
fn read_costs(path: &Path) -> Result<Costs> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let costs: Costs = serde_json::from_str(&text)
        .with_context(|| format!("{} holds no costs", path.display()))?;
    costs.check().map_err(|wrong| anyhow::anyhow!("{}: {wrong}", path.display()))?;
    Ok(Costs { source: CostSource::Configured, ..costs })
}

/// A set of CPUs that is not empty.
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
        "the kernel takes 1 to 536870912 entries, or off"
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
