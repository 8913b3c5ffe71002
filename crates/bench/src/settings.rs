//! The settings of a definition on this machine, with their changes.

use anyhow::Result;
use netsilo_decide::judge::annotate::plan_with_verdicts;
use netsilo_decide::plan::{AlgorithmName, Goal, RefusalCause};
use netsilo_model::change::{Change, knobs};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::snapshot::netdev::{Netdev, NetdevIdentity};
use netsilo_model::snapshot::observation::Observation;
use netsilo_trial::experiment::{Load, Setting};

use crate::command_setting;
use crate::definition::{Cpus, SettingKeys};
use crate::setup::Setup;
use netsilo::tell::exit::{Exit, ExitError};
use netsilo::tell::out;

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
