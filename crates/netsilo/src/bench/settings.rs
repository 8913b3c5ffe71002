//! The settings that experiments compare, as netsilo's own plans: interrupt affinity, RPS, RFS.

use anyhow::Result;
use netsilo_decide::judge::annotate::plan_with_verdicts;
use netsilo_decide::plan::{AlgorithmName, Goal};

use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_model::snapshot::observation::Observation;
use netsilo_trial::experiment::{Load, Setting};

use crate::bench::defined::Setup;
use crate::tell::out;

/// Entries of the RFS flow table: more than any load here has flows, and the value that the
/// kernel's documentation suggests to start with.
const RFS_ENTRIES: u32 = 32_768;

/// Arguments that select what the settings may change.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct TuningArgs {
    /// Change only these netdevs [default: all that are up and have queues with interrupts]
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    netdev: Vec<String>,
    /// Use only these CPUs for interrupts and RPS (list or mask) [default: all but isolated and
    /// nohz_full]
    #[arg(long, value_name = "CPUS", value_parser = crate::args::parse::some_cpus)]
    cpus: Option<CpuSet>,
    /// Write even if another program (irqbalance) writes the same knobs
    #[arg(long)]
    even_if_owned: bool,
}

impl TuningArgs {
    /// The goal that changes nothing, for these netdevs; base of the other goals.
    pub(super) fn goal(&self) -> Goal {
        Goal {
            netdevs: self.netdev.clone(),
            cpus: self.cpus.clone(),
            even_if_owned: self.even_if_owned,
            irqs: false,
            ..Goal::default()
        }
    }

    /// The goal with each queue's interrupt on its own CPU.
    pub(super) fn affinity(&self) -> Goal {
        Goal { irqs: true, algorithm: AlgorithmName::Spread, ..self.goal() }
    }

    /// This goal with RPS over all CPUs.
    pub(super) fn rps(&self, goal: Goal, observation: &Observation) -> Goal {
        let all = || observation.after.topology.housekeeping();
        Goal { rps: Some(self.cpus.clone().unwrap_or_else(all)), ..goal }
    }

    /// This goal with RPS and RFS.
    pub(super) fn rfs(&self, goal: Goal, observation: &Observation) -> Goal {
        let rfs = observation.after.net.rps_sock_flow_entries.map(|_| RFS_ENTRIES);
        Goal { rfs, ..self.rps(goal, observation) }
    }

    /// The goal where an algorithm places interrupts.
    pub(super) fn by(&self, algorithm: AlgorithmName, costs: Costs) -> Goal {
        Goal { irqs: true, algorithm, costs, ..self.goal() }
    }

    /// The goal with all interrupts on one CPU.
    pub(super) fn on(&self, cpu: CpuId) -> Goal {
        Goal { cpus: Some(CpuSet::from_cpu(cpu)), ..self.affinity() }
    }

    /// Returns the selected netdevs.
    pub(super) fn netdevs<'a>(
        &'a self,
        snapshot: &'a Snapshot,
    ) -> impl Iterator<Item = &'a Netdev> {
        let with_irqs =
            |netdev: &Netdev| netdev.up && netdev.rx_queues.iter().any(|rx| rx.irq.is_some());
        snapshot.netdevs.iter().filter(move |netdev| {
            if self.netdev.is_empty() {
                with_irqs(netdev)
            } else {
                self.netdev.contains(&netdev.name)
            }
        })
    }

    /// Whether to write knobs that other programs own.
    pub(super) fn even_if_owned(&self) -> bool {
        self.even_if_owned
    }
}

/// The setting that changes nothing.
pub(super) fn none(name: &str) -> Setting {
    Setting {
        name: name.into(),
        what: "nothing changed".into(),
        changes: Vec::new(),
        command: None,
    }
}

/// Plans a goal as a setting; `None`, with a note, if it changes nothing.
pub(super) fn from_goal(
    name: &str,
    what: &str,
    goal: &Goal,
    observation: &Observation,
) -> Result<Option<Setting>> {
    let analysis = Analysis::new(observation, &goal.costs);
    let plan = plan_with_verdicts(&analysis, goal);
    if let Some(refusal) = plan
        .refusals
        .iter()
        .find(|refusal| refusal.cause == netsilo_decide::plan::RefusalCause::OtherOwner)
    {
        let message = format!("{name}: {}: {}", refusal.subject, refusal.reason);
        return Err(
            crate::tell::exit::ExitError(crate::tell::exit::Exit::OtherOwner, message).into()
        );
    }
    for refusal in &plan.refusals {
        out::note(&format!("{name}: left out: {}: {}", refusal.subject, refusal.reason));
    }
    if plan.changes.is_empty() {
        for left in &plan.unchanged {
            out::note(&format!("{name}: {}: {}", left.subject, left.reason));
        }
    }
    let setting =
        Setting { name: name.into(), what: what.into(), changes: plan.changes, command: None };
    Ok(unless_empty(setting))
}

/// Plans netsilo's own setting from an observation under a load, with nothing changed.
pub(super) fn netsilo_plan(
    name: &str,
    tuning: &TuningArgs,
    setup: &Setup<'_>,
    load: &Load,
) -> Result<Option<Setting>> {
    let seen = setup.observe_under(load)?;
    let goal = tuning.by(AlgorithmName::default(), crate::args::costs::costs_for(false)?);
    from_goal(
        name,
        &format!("netsilo's own plan, from an observation under {}", load.name),
        &goal,
        &seen,
    )
}

/// Returns the setting if it changes anything; otherwise prints a note.
pub(super) fn unless_empty(setting: Setting) -> Option<Setting> {
    if setting.changes.is_empty() {
        out::note(&format!("{}: changes nothing here, so it is left out", setting.name));
        return None;
    }
    Some(setting)
}
