//! What verdicts add to plans, after both are made.
//!
//! A plan is made without verdicts; a verdict judges what a plan would write. This file adds the
//! verdict on a planned change to the change's reason.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use netsilo_model::change::{Change, NTUPLE_FILTER, Target, Value};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::snapshot::netdev::{Netdev, NetdevIdentity};

use crate::judge::verdict;
use crate::judge::verdict::{Claim, Look, RemedyVerdict};
use crate::place::AlgorithmName;
use crate::plan::arfs::wants_arfs;
use crate::plan::find_outcome::FoundOutcome;
use crate::plan::{Detail, Goal, Plan, plan, plan_as_measured};

/// Adds the verdict on each change of RPS, RFS and aRFS to its reason. The plan is for this goal.
///
/// A change stays as it is if there is no receive traffic to judge. Advice to switch RFS on goes if
/// RFS would hurt.
pub fn annotate(plan: Plan, analysis: &Analysis<'_>, goal: &Goal) -> Plan {
    let mut notes: BTreeMap<(NetdevIdentity, PacketSteering), String> = BTreeMap::new();
    let look = OnceCell::new();
    let annotated = |change: Change| {
        let Some((identity, steering)) = steering(&change) else { return change };
        let netdev = analysis.after().netdevs.identified(identity);
        let Some(netdev) = netdev.filter(|netdev| steering.is_of(goal, analysis, netdev)) else {
            return change;
        };
        let note = notes.entry((identity.clone(), steering.clone())).or_insert_with(|| {
            let look = look.get_or_init(|| Look::new(analysis));
            steering.verdict(look, netdev).as_ref().map_or_else(String::new, note)
        });
        let reason = change.reason.clone() + note;
        change.because(reason)
    };
    let changes = plan.changes.into_iter().map(annotated).collect();
    let mut advice = plan.advice;
    advice.retain(|advice| {
        let netdevs = &analysis.after().netdevs;
        let netdev = netdevs.named(&advice.subject);
        let Some(netdev) = netdev.filter(|_| advice.needs_rfs) else { return true };
        let verdict = verdict::rfs(look.get_or_init(|| Look::new(analysis)), netdev);
        verdict.is_none_or(|verdict| verdict.claim != Claim::Hurt)
    });
    Plan { changes, advice, ..plan }
}

/// Plans the changes that reach a goal, with the verdicts on them in their reasons.
pub fn plan_with_verdicts(analysis: &Analysis<'_>, goal: &Goal) -> Plan {
    annotate(plan(analysis, goal), analysis, goal)
}

/// Plans by what was measured on this workload, else by the model. If an outcome was measured on
/// another workload, the plan has the reason why it is not followed.
pub fn plan_by_outcome(analysis: &Analysis<'_>, goal: &Goal, found: &FoundOutcome<'_>) -> Plan {
    match found {
        FoundOutcome::Matches(matching) => plan_as_measured(analysis, goal, matching),
        FoundOutcome::Nothing => plan_with_verdicts(analysis, goal),
        FoundOutcome::Differs { id, why } => {
            plan_with_verdicts(analysis, goal).without_outcome(id, why)
        }
    }
}

/// The verdicts on all netdevs with receive traffic; empty without rates.
pub(super) fn verdicts(look: &Look<'_>) -> Vec<RemedyVerdict> {
    let goal = Goal { algorithm: AlgorithmName::Spread, even_if_owned: true, ..Goal::default() };
    let mut verdicts = verdict::verdicts(look, &look.plan(&goal, Detail::WithoutCosts));
    for verdict in &mut verdicts {
        let because = note(verdict);
        for change in &mut verdict.changes {
            if steering(change).is_some() {
                *change = change.clone().because(change.reason.clone() + &because);
            }
        }
    }
    verdicts
}

/// Packet steering that a change switches on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum PacketSteering {
    Rps(CpuSet),
    Rfs,
    Arfs,
}

/// The packet steering that a change switches on, and the netdev.
fn steering(change: &Change) -> Option<(&NetdevIdentity, PacketSteering)> {
    match (&change.target, &change.new) {
        (Target::RpsCpus(knob), Value::Cpus(cpus)) if !cpus.is_empty() => {
            Some((&knob.netdev, PacketSteering::Rps(cpus.clone())))
        }
        (Target::RpsFlowCnt(knob), Value::Count(1..)) => Some((&knob.netdev, PacketSteering::Rfs)),
        (Target::Offload(knob), Value::Switch(true)) if knob.feature == NTUPLE_FILTER => {
            Some((&knob.netdev, PacketSteering::Arfs))
        }
        _ => None,
    }
}

impl PacketSteering {
    /// Whether the goal requests it. Flow rules need the same offload as aRFS.
    fn is_of(&self, goal: &Goal, analysis: &Analysis<'_>, netdev: &Netdev) -> bool {
        match self {
            Self::Rps(_) => goal.rps.is_some(),
            Self::Rfs => goal.rfs.is_some(),
            Self::Arfs => wants_arfs(analysis.after(), netdev, goal),
        }
    }

    fn verdict(&self, look: &Look<'_>, netdev: &Netdev) -> Option<RemedyVerdict> {
        match self {
            Self::Rps(cpus) => verdict::rps_onto(look, netdev, cpus),
            Self::Rfs => verdict::rfs(look, netdev),
            Self::Arfs => verdict::arfs(look, netdev),
        }
    }
}

fn note(verdict: &RemedyVerdict) -> String {
    format!(" ({}: {})", verdict.claim, verdict.reason)
}
