//! Turns a measured outcome into suggestions and changes for the present interrupts, and says why
//! it cannot be used.

use std::collections::BTreeMap;
use std::time::Duration;

use netsilo_model::change::{Change, Target, Value};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::{NapiThread, Netdev, NetdevIdentity};
use netsilo_model::snapshot::subject::Subject;

use crate::place::{Suggestion, Vector};
use crate::plan::goal::{Goal, Override};
use crate::plan::irq_changes::affinity;
use crate::plan::measured_outcome::{
    KnobValue, MeasuredBasis, MeasuredOutcome, MeasuredPlace, Polled, all_polled,
};
use crate::plan::places::{Places, present_places};
use crate::plan::vectors::Group;

/// A measured outcome of this machine and workload.
#[derive(Debug, Clone)]
pub struct MatchingOutcome<'a> {
    outcome: &'a MeasuredOutcome,
    pub(super) basis: MeasuredBasis,
    /// The basis in words: the reason of each line of the plan.
    words: String,
}

impl<'a> MatchingOutcome<'a> {
    /// An outcome by its id and age.
    pub fn new(id: &str, outcome: &'a MeasuredOutcome, age: Duration) -> Self {
        let basis = outcome.basis(id, age);
        let words = basis.in_words();
        Self { outcome, basis, words }
    }

    /// The measured place of a group of queues, as an algorithm's suggestion.
    pub(super) fn suggest(&self, group: &Group<'_>, vector: &Vector) -> Suggestion {
        let place = group.silos.iter().find_map(|silo| self.place(&silo.subject()));
        let Some(place) = place else {
            return Suggestion::Leave("it received nothing when the outcome was measured".into());
        };
        let cpu = match group.kthread() {
            Some(_) => place.kthread.as_ref().and_then(CpuSet::single),
            None => place.irq,
        };
        match cpu {
            None => Suggestion::Leave("it was measured on no fixed cpu".into()),
            Some(cpu) if vector.present == Some(cpu) => Suggestion::Keep(cpu, self.words.clone()),
            Some(cpu) if !vector.pool.contains(cpu) => {
                Suggestion::Leave(format!("it was measured on cpu {cpu}, which is not allowed"))
            }
            Some(cpu) => Suggestion::Move(cpu, self.words.clone()),
        }
    }

    /// The id of the outcome.
    pub fn id(&self) -> &str {
        &self.basis.outcome
    }

    fn place(&self, queue: &Subject) -> Option<&MeasuredPlace> {
        self.outcome.state.places.iter().find(|it| it.queue == *queue)
    }

    /// The changes of interrupts that only tx queues have.
    pub(super) fn completions(&self, analysis: &Analysis<'_>, netdevs: &[&Netdev]) -> Vec<Change> {
        let snapshot = analysis.after();
        let mut changes = Vec::new();
        for netdev in netdevs.iter().filter(|netdev| netdev.up) {
            for tx in &netdev.tx_queues {
                let queue = Subject::TxQueue(netdev.name.clone(), tx.index);
                let cpu = self.place(&queue).and_then(|place| place.irq);
                let Some((cpu, irq)) = cpu.zip(tx.irq.as_ref().map(|edge| edge.to)) else {
                    continue;
                };
                let moves = analysis.rates.cpu_of_irq(snapshot, irq) != Some(cpu);
                let reason = format!("{queue}: {}", self.words);
                changes.extend(affinity(snapshot, irq, netdev, cpu, reason).filter(|_| moves));
            }
        }
        changes
    }

    /// The changes of other knobs; an error if a knob has a value that was not measured, or must
    /// not be set.
    pub(super) fn knobs(
        &self,
        snapshot: &Snapshot,
        netdevs: &[&Netdev],
        pool: &CpuSet,
    ) -> Result<Vec<Change>, String> {
        for KnobValue { target, value } in &self.outcome.state.others {
            match target.value_in(snapshot) {
                Some(now) if now == *value => {}
                Some(now) => {
                    return Err(format!("{target} is {now}; it was {value} when measured"));
                }
                None => return Err(format!("{target} is not there any more")),
            }
        }
        let mut changes = Vec::new();
        for change in &self.outcome.state.changes {
            let target = &change.target;
            let now = target.value_in(snapshot);
            let now = now.ok_or_else(|| format!("{target} is not there any more"))?;
            if is_in_effect(change, &now) {
                continue;
            }
            if now != change.old {
                let (old, new) = change.from_to();
                return Err(format!("{target} is {now}; it was {old} or {new} when measured"));
            }
            may_be_set(change, netdevs, pool)?;
            let reason = format!("{}; {}", self.words, self.basis.best.name);
            changes.push(change.clone().because(reason));
        }
        Ok(changes)
    }

    /// Checks that each queue is polled where it was measured once these changes are made; `places`
    /// are the CPUs of the interrupts then.
    pub(super) fn check_places(
        &self,
        analysis: &Analysis<'_>,
        pool: &CpuSet,
        places: &Places,
        changes: &[Change],
    ) -> Result<(), String> {
        let polled: BTreeMap<Subject, Polled<'_>> =
            all_polled(analysis).into_iter().map(|it| (it.queue.clone(), it)).collect();
        for place in &self.outcome.state.places {
            let now = polled.get(&place.queue);
            let now = now.ok_or_else(|| format!("{} is not there any more", place.queue))?;
            match (now.kthread, &place.kthread) {
                (Some(thread), Some(cpus)) => {
                    let planned = planned_kthread(thread, changes);
                    check_cpus(place, planned.unwrap_or(&thread.cpus), cpus, pool)?;
                }
                (None, Some(_)) | (Some(_), None) if !self.switches_threaded(&place.queue) => {
                    let is = if now.kthread.is_some() { "is" } else { "is not" };
                    return Err(format!("{} {is} threaded now", place.queue));
                }
                _ => {
                    let planned = now.irq.and_then(|irq| places.get(&irq)).copied();
                    let planned = planned.map(CpuSet::from_cpu).unwrap_or_default();
                    let cpu = place.irq.map(CpuSet::from_cpu);
                    cpu.map_or(Ok(()), |cpu| check_cpus(place, &planned, &cpu, pool))?;
                }
            }
        }
        Ok(())
    }

    /// Checks that everything is still as it was measured, where no candidate was better.
    pub(super) fn check_present(
        &self,
        analysis: &Analysis<'_>,
        pool: &CpuSet,
    ) -> Result<(), String> {
        if self.outcome.won {
            return Ok(());
        }
        self.check_places(analysis, pool, &present_places(&analysis.rates, analysis.after()), &[])
    }

    /// Whether the winner makes the NAPIs of a queue's netdev threaded, or not threaded.
    fn switches_threaded(&self, queue: &Subject) -> bool {
        let (Subject::Queue(netdev, _) | Subject::TxQueue(netdev, _)) = queue else { return false };
        let switches = |target: &Target| match target {
            Target::Threaded(knob) => knob.netdev.name == *netdev,
            _ => false,
        };
        self.outcome.state.changes.iter().any(|change| switches(&change.target))
    }
}

/// Whether a value is the new one of a change, or what the kernel or driver made of it.
fn is_in_effect(change: &Change, now: &Value) -> bool {
    *now == change.new
        || *now == change.settles_as(&CpuSet::new)
        || change.target.may_round_to(&change.new, now)
}

/// The CPUs that a plan gives to a kthread.
fn planned_kthread<'a>(thread: &NapiThread, changes: &'a [Change]) -> Option<&'a CpuSet> {
    changes.iter().find_map(|change| match (&change.target, &change.new) {
        (Target::NapiThread(knob), Value::Cpus(cpus)) if knob.pid == thread.pid => Some(cpus),
        _ => None,
    })
}

/// Checks that the CPUs of a queue are those measured, and allowed.
fn check_cpus(
    place: &MeasuredPlace,
    planned: &CpuSet,
    measured: &CpuSet,
    pool: &CpuSet,
) -> Result<(), String> {
    let queue = &place.queue;
    if planned != measured {
        let word =
            if planned.is_empty() { "no fixed cpu".into() } else { format!("cpu {planned}") };
        return Err(format!("{queue} was measured on cpu {measured} and stays on {word}"));
    }
    match measured.single() {
        Some(cpu) if !pool.contains(cpu) => {
            Err(format!("{queue} was measured on cpu {cpu}, which is not allowed"))
        }
        _ => Ok(()),
    }
}

/// Checks that a plan without further options may make a change.
fn may_be_set(change: &Change, netdevs: &[&Netdev], pool: &CpuSet) -> Result<(), String> {
    let target = &change.target;
    if target.interrupts_traffic().is_some() {
        return Err(format!("{target} may interrupt traffic: netsilo tune can set it again"));
    }
    let is_chosen = |it: &NetdevIdentity| netdevs.iter().any(|netdev| it.is(netdev));
    match (target.netdev(), &change.new) {
        (Some(netdev), _) if !is_chosen(netdev) => {
            Err(format!("{target} is not of the chosen netdevs"))
        }
        (_, Value::Cpus(cpus))
            if !matches!(target, Target::XpsCpus(_)) && !cpus.is_subset(pool) =>
        {
            Err(format!("{target} would be {cpus}; allowed are {pool}"))
        }
        _ => Ok(()),
    }
}

/// The netdevs whose knobs a goal may set: unlike interrupts, those of netdevs without queues to
/// place, too, but not those that it leaves alone.
pub(super) fn settable<'a>(snapshot: &'a Snapshot, goal: &Goal) -> Vec<&'a Netdev> {
    let is_chosen =
        |netdev: &&Netdev| goal.netdevs.is_empty() || goal.netdevs.contains(&netdev.name);
    let all_of = |netdev: &Netdev, it: &Override| it.netdev == netdev.name && it.queues.is_none();
    let is_left = |netdev: &&Netdev| goal.overrides.iter().any(|it| it.leave && all_of(netdev, it));
    snapshot.netdevs.iter().filter(is_chosen).filter(|netdev| !is_left(netdev)).collect()
}

#[cfg(test)]
mod tests;
