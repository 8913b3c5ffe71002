//! The settings that experiments compare, as plans of netsilo's own: where interrupts go, what RPS
//! and RFS do.

use anyhow::{Result, bail};
use netsilo_decide::plan::{AlgorithmName, Goal, plan};
use netsilo_model::cost::weights::Costs;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_model::snapshot::observation::Observation;
use netsilo_trial::experiment::{Load, Setting};

use crate::bench::experiment::Made;
use crate::tell::out;

/// Entries of the RFS table: more than any load here has flows, and what the kernel's own
/// documentation begins with.
const RFS_ENTRIES: u32 = 32_768;

/// What the operator says of the machine under test.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Hardware {
    /// Set these netdevs only [default: all that are up and have queues with interrupts]
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    netdev: Vec<String>,
    /// Place interrupts, and spread by RPS, on these CPUs only (list or mask) [default: all that
    /// are not set apart]
    #[arg(long, value_name = "CPUS", value_parser = crate::verbs::plan::some_cpus)]
    cpus: Option<CpuSet>,
    /// Write although another program (irqbalance) writes the same knobs
    #[arg(long)]
    even_if_owned: bool,
}

impl Hardware {
    /// The goal that changes nothing, for these netdevs.
    pub(super) fn goal(&self) -> Goal {
        Goal {
            netdevs: self.netdev.clone(),
            cpus: self.cpus.clone(),
            even_if_owned: self.even_if_owned,
            irqs: false,
            ..Goal::default()
        }
    }

    /// The same, where each queue's interrupt has a CPU of its own.
    pub(super) fn affinity(&self) -> Goal {
        Goal { irqs: true, algorithm: AlgorithmName::Spread, ..self.goal() }
    }

    /// The same, where RPS spreads over all CPUs.
    pub(super) fn rps(&self, goal: Goal, observation: &Observation) -> Goal {
        let all = || observation.after.topology.housekeeping();
        Goal { rps: Some(self.cpus.clone().unwrap_or_else(all)), ..goal }
    }

    /// The same, where RFS takes flows to their readers.
    pub(super) fn rfs(&self, goal: Goal, observation: &Observation) -> Goal {
        let rfs = observation.after.net.rps_sock_flow_entries.map(|_| RFS_ENTRIES);
        Goal { rfs, ..self.rps(goal, observation) }
    }

    /// The same, where an algorithm places interrupts.
    pub(super) fn by(&self, algorithm: AlgorithmName, costs: Costs) -> Goal {
        Goal { irqs: true, algorithm, costs, ..self.goal() }
    }

    /// The same, where all interrupts are on one CPU.
    pub(super) fn on(&self, cpu: CpuId) -> Goal {
        Goal { cpus: Some(CpuSet::of(cpu)), ..self.affinity() }
    }

    /// The netdevs that are meant.
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

    /// Whether what other programs own is written all the same.
    pub(super) fn even_if_owned(&self) -> bool {
        self.even_if_owned
    }
}

/// As it was found.
pub(super) fn none(name: &str) -> Setting {
    Setting {
        name: name.into(),
        what: "as it was found".into(),
        changes: Vec::new(),
        command: None,
    }
}

/// A setting that a goal comes to; `None`, and said why, where it changes nothing.
pub(super) fn of(
    name: &str,
    what: &str,
    goal: &Goal,
    observation: &Observation,
) -> Result<Option<Setting>> {
    let plan = plan(observation, goal);
    if let Some(refusal) = plan
        .refusals
        .iter()
        .find(|refusal| refusal.cause == netsilo_decide::plan::Cause::OtherOwner)
    {
        let message = format!("{name}: {}: {}", refusal.subject, refusal.reason);
        return Err(crate::tell::exit::Stop(crate::tell::exit::Exit::OtherOwner, message).into());
    }
    for refusal in &plan.refusals {
        out::note(&format!("{name}: left out: {}: {}", refusal.subject, refusal.reason));
    }
    let setting =
        Setting { name: name.into(), what: what.into(), changes: plan.changes, command: None };
    Ok(unless_void(setting))
}

/// netsilo's own plan, made by what is seen under a load with nothing set.
pub(super) fn own(
    name: &str,
    hardware: &Hardware,
    made: &Made<'_>,
    load: &Load,
) -> Result<Option<Setting>> {
    let seen = made.under(load)?;
    let goal = hardware.by(AlgorithmName::default(), crate::verbs::plan::costs_for(false)?);
    of(name, &format!("netsilo's own plan, made under {}", load.name), &goal, &seen)
}

/// The setting, if it changes anything; else says so.
pub(super) fn unless_void(setting: Setting) -> Option<Setting> {
    if setting.changes.is_empty() {
        out::note(&format!("{}: changes nothing here, so it is not tried", setting.name));
        return None;
    }
    Some(setting)
}

/// Settings by their names, in this order; those that are not known are an error.
pub(super) fn known(name: &str, names: &[&str]) -> Result<()> {
    if names.contains(&name) {
        return Ok(());
    }
    bail!("no setting is called {name}; known are {}", names.join(", "))
}
