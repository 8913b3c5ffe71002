//! The settings of a definition on this machine, with their changes.

use anyhow::Result;
use netsilo::args::costs::costs_for;
use netsilo::tell::exit::{Exit, ExitError};
use netsilo::tell::out;
use netsilo_decide::judge::annotate::plan_with_verdicts;
use netsilo_decide::plan::{AlgorithmName, Goal, RefusalCause};
use netsilo_model::change::{Change, knobs};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::snapshot::netdev::{Netdev, NetdevIdentity};
use netsilo_model::snapshot::observation::Observation;
use netsilo_trial::experiment::{Load, Setting};

use crate::command_setting;
use crate::definition::{Cpus, SettingKeys, Way};
use crate::setup::Setup;

/// Makes the settings of a definition. Placements that need readers are planned under a load.
pub(crate) fn settings(
    all: &[SettingKeys],
    setup: &Setup<'_>,
    load: &Load,
) -> Result<Vec<Setting>> {
    let costs = costs_for(false)?;
    let observe = || setup.observe_under(load);
    let under_load = all.iter().any(needs_readers).then(observe).transpose()?;
    let mut settings = Vec::new();
    for keys in all {
        let seen = under_load.as_ref().filter(|_| needs_readers(keys));
        settings.extend(setting(keys, setup, seen.unwrap_or(&setup.observation), &costs)?);
    }
    Ok(settings)
}

/// Whether a setting is placed by an algorithm that considers readers. All except `spread` do.
fn needs_readers(keys: &SettingKeys) -> bool {
    keys.irqs.is_some_and(|algorithm| algorithm != AlgorithmName::Spread)
}

/// Makes one setting. Returns `None`, with a note, if it should change something but does not.
fn setting(
    keys: &SettingKeys,
    setup: &Setup<'_>,
    seen: &Observation,
    costs: &Costs,
) -> Result<Option<Setting>> {
    let name = &keys.name;
    let netdevs = setup.tuning.netdevs(&setup.observation.after);
    let changes = match keys.way()? {
        Way::Nothing => Vec::new(),
        Way::Planned => changes(name, &goal(keys, setup, costs)?, seen)?,
        Way::MostQueues => netdevs.filter_map(most_queues_of).collect(),
        Way::Offload(offload) => offload.switched(netdevs),
        Way::Command(command) => command_setting::record(name, command, setup)?,
    };
    if changes.is_empty() && keys.way()? != Way::Nothing {
        out::note(&format!("{name}: changes nothing here, so it is left out"));
        return Ok(None);
    }
    let usual = || match &keys.command {
        Some(command) => format!("what `{}` changes", command.trim()),
        None if changes.is_empty() => "nothing changed".to_owned(),
        None => name.clone(),
    };
    let what = keys.what.clone().unwrap_or_else(usual);
    Ok(Some(Setting { name: name.clone(), what, changes, command: keys.command.clone() }))
}

/// The goal of a setting with keys for placement or steering.
fn goal(keys: &SettingKeys, setup: &Setup<'_>, costs: &Costs) -> Result<Goal> {
    let (tuning, after) = (setup.tuning, &setup.observation.after);
    let cpus = |word: &Cpus| tuning.cpus(word, &after.topology, setup.options.pinned);
    let own = keys.cpus.as_ref().map(cpus).transpose()?;
    Ok(Goal {
        netdevs: tuning.netdev.clone(),
        cpus: own.or_else(|| tuning.cpus.clone()),
        even_if_owned: tuning.even_if_owned,
        irqs: keys.irqs.is_some(),
        algorithm: keys.irqs.unwrap_or_default(),
        rps: keys.rps.as_ref().map(cpus).transpose()?,
        rfs: keys.rfs.filter(|_| after.net.rps_sock_flow_entries.is_some()),
        costs: costs.clone(),
        ..Goal::default()
    })
}

/// Plans a goal. Prints notes about what it cannot change.
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
