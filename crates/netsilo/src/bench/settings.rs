//! The settings of a definition on this machine, with their changes.

use std::cmp::Reverse;

use anyhow::{Context as _, Result, ensure};
use netsilo_decide::judge::annotate::plan_with_verdicts;
use netsilo_decide::plan::{AlgorithmName, Goal, RefusalCause};
use netsilo_model::change::{Change, knobs};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::Topology;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::{Netdev, NetdevIdentity};
use netsilo_model::snapshot::observation::Observation;
use netsilo_trial::experiment::{Load, Setting};

use crate::bench::command_setting;
use crate::bench::definition::{Cpus, SettingKeys};
use crate::bench::setup::Setup;
use crate::tell::exit::{Exit, ExitError};
use crate::tell::out;

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
    pub(super) even_if_owned: bool,
}

impl TuningArgs {
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

    /// Returns the CPUs that a word of a definition means here.
    fn cpus(&self, word: &Cpus, topology: &Topology, reader: Option<CpuId>) -> Result<CpuSet> {
        let pool = || self.cpus.clone().unwrap_or_else(|| topology.housekeeping());
        let one = |cpu: Option<CpuId>| cpu.map(CpuSet::from_cpu).context("no cpu is available");
        match word {
            Cpus::All => Ok(pool()),
            Cpus::First => one(pool().lowest()),
            Cpus::Last => one(pool().highest()),
            Cpus::Farthest => {
                let reader = reader.context("no cpu is farthest from a reader: write reader")?;
                let distance = |cpu: &CpuId| (topology.distance(*cpu, reader), Reverse(*cpu));
                one(pool().iter().max_by_key(distance))
            }
            Cpus::These(cpus) => Ok(cpus.clone()),
        }
    }

    /// Returns the CPU that a definition names as the reader.
    pub(super) fn reader(&self, word: &Cpus, topology: &Topology) -> Result<CpuId> {
        let cpu = self.cpus(word, topology, None)?.lowest().context("no cpu is available")?;
        let online = &topology.online;
        ensure!(online.contains(cpu), "cpu {cpu} is not online; online are {online}");
        Ok(cpu)
    }
}

/// Makes settings; observes the machine under a load at most once, when a placement needs readers.
pub(super) struct Maker<'a> {
    setup: &'a Setup<'a>,
    /// The load under which placements are planned.
    load: &'a Load,
    costs: &'a Costs,
    under_load: Option<Observation>,
}

impl<'a> Maker<'a> {
    pub(super) fn new(setup: &'a Setup<'a>, load: &'a Load, costs: &'a Costs) -> Self {
        Self { setup, load, costs, under_load: None }
    }

    /// Makes a setting; `None`, with a note, if it changes nothing that it should change.
    pub(super) fn setting(&mut self, keys: &SettingKeys) -> Result<Option<Setting>> {
        let SettingKeys { name, irqs, rps, rfs, most_queues, offload, command, .. } = keys;
        let netdevs = self.setup.tuning.netdevs(&self.setup.observation.after);
        let changes = if let Some(command) = command {
            command_setting::record(name, command, self.setup)?
        } else if let Some(offload) = offload {
            offload.switched(netdevs)
        } else if *most_queues {
            netdevs.filter_map(most_queues_of).collect()
        } else if irqs.is_some() || rps.is_some() || rfs.is_some() {
            self.planned(keys)?
        } else {
            return Ok(Some(setting(keys, Vec::new(), "nothing changed".into())));
        };
        if changes.is_empty() {
            out::note(&format!("{name}: changes nothing here, so it is left out"));
            return Ok(None);
        }
        let what = command.as_ref().map(|command| format!("what `{}` changes", command.trim()));
        Ok(Some(setting(keys, changes, what.unwrap_or_else(|| name.clone()))))
    }

    /// Plans what a setting places and sets.
    fn planned(&mut self, keys: &SettingKeys) -> Result<Vec<Change>> {
        let Setup { tuning, observation, options, .. } = self.setup;
        let after = &observation.after;
        let cpus = |word: &Cpus| tuning.cpus(word, &after.topology, options.pinned);
        let own = keys.cpus.as_ref().map(cpus).transpose()?;
        let goal = Goal {
            netdevs: tuning.netdev.clone(),
            cpus: own.or_else(|| tuning.cpus.clone()),
            even_if_owned: tuning.even_if_owned,
            irqs: keys.irqs.is_some(),
            algorithm: keys.irqs.unwrap_or_default(),
            rps: keys.rps.as_ref().map(cpus).transpose()?,
            rfs: keys.rfs.filter(|_| after.net.rps_sock_flow_entries.is_some()),
            costs: self.costs.clone(),
            ..Goal::default()
        };
        // of all algorithms only spread needs no reader
        let needs_load = keys.irqs.is_some_and(|algorithm| algorithm != AlgorithmName::Spread);
        if needs_load && self.under_load.is_none() {
            self.under_load = Some(self.setup.observe_under(self.load)?);
        }
        let seen = self.under_load.as_ref().filter(|_| needs_load).unwrap_or(observation);
        changes(&keys.name, &goal, seen)
    }
}

/// Plans a goal; notes tell what it cannot change.
fn changes(name: &str, goal: &Goal, observation: &Observation) -> Result<Vec<Change>> {
    let analysis = Analysis::new(observation, &goal.costs);
    let plan = plan_with_verdicts(&analysis, goal);
    let is_owned = |cause: RefusalCause| cause == RefusalCause::OtherOwner;
    if let Some(refusal) = plan.refusals.iter().find(|refusal| is_owned(refusal.cause)) {
        let message = format!("{name}: {}: {}", refusal.subject, refusal.reason);
        return Err(ExitError(Exit::OtherOwner, message).into());
    }
    for refusal in &plan.refusals {
        out::note(&format!("{name}: left out: {}: {}", refusal.subject, refusal.reason));
    }
    if plan.changes.is_empty() {
        for left in &plan.unchanged {
            out::note(&format!("{name}: {}: {}", left.subject, left.reason));
        }
    }
    Ok(plan.changes)
}

fn setting(keys: &SettingKeys, changes: Vec<Change>, what: String) -> Setting {
    let what = keys.what.clone().unwrap_or(what);
    Setting { name: keys.name.clone(), what, changes, command: keys.command.clone() }
}

/// The change to as many queues as the device supports.
fn most_queues_of(netdev: &Netdev) -> Option<Change> {
    let channels = netdev.ethtool.as_ref()?.channels.value()?;
    let combined = channels.combined.filter(|combined| combined.current < combined.max)?;
    let old = channels.settings();
    let new = old.clone().with("combined", combined.max);
    let knob = knobs::Channels { netdev: NetdevIdentity::from_netdev(netdev) };
    let reason = format!("{} queues instead of {}", combined.max, combined.current);
    Some(Change::new(knob, old, new, reason))
}
