//! All verdicts on a netdev, and single ones for the notes of a plan.

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::snapshot::netdev::Netdev;

use crate::judge::verdict::remedy_verdict::{Outcome, RemedyName, RemedyVerdict};
use crate::judge::verdict::work::NetdevWork;
use crate::judge::verdict::{interrupts, packet_steering, poll, queues, rps_in_effect, software};
use crate::plan::Goal;

/// Proposed entries of the global flow table (`Documentation/networking/scaling.rst`, for a busy
/// server).
pub(crate) const FLOW_ENTRIES: u32 = 32768;

/// A verdict, and what to plan for it.
#[derive(Debug, Clone)]
pub(crate) struct Proposal {
    /// The verdict, without the changes of `goal`.
    pub(crate) verdict: RemedyVerdict,
    /// The goal whose plan applies the remedy; `None` when the outcome does not call for it,
    /// or the verdict has its changes already.
    pub(crate) goal: Option<Goal>,
}

/// The verdicts on all netdevs with receive traffic; empty without rates.
pub(crate) fn proposals(analysis: &Analysis<'_>) -> Vec<Proposal> {
    let on = |netdev: &Netdev| match NetdevWork::of(analysis, netdev) {
        Some(work) => of_netdev(&work),
        None => {
            let verdicts = software::verdicts(analysis, netdev).into_iter();
            verdicts.map(|verdict| Proposal { verdict, goal: None }).collect()
        }
    };
    analysis.observation.after.netdevs.iter().flat_map(on).collect()
}

/// The verdict on RPS onto these CPUs, without changes; `None` for a netdev without receive
/// traffic.
pub fn rps_onto(analysis: &Analysis<'_>, netdev: &Netdev, cpus: &CpuSet) -> Option<RemedyVerdict> {
    match NetdevWork::of(analysis, netdev) {
        Some(work) => Some(packet_steering::rps_onto(&work, cpus)),
        None => software::verdict(analysis, netdev, RemedyName::Rps),
    }
}

/// The verdict on RFS, without changes; `None` for a netdev without receive traffic.
pub fn rfs(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<RemedyVerdict> {
    match NetdevWork::of(analysis, netdev) {
        Some(work) => Some(packet_steering::rfs(&work)),
        None => software::verdict(analysis, netdev, RemedyName::Rfs),
    }
}

/// The verdict on aRFS, without changes; `None` for a netdev without receive traffic.
pub fn arfs(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<RemedyVerdict> {
    Some(packet_steering::arfs(&NetdevWork::of(analysis, netdev)?))
}

/// The share of a netdev's bytes that RFS cannot steer; `None` when RFS is off or no reads were
/// observed.
pub fn unsteerable(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<f64> {
    let work = NetdevWork::of(analysis, netdev).filter(packet_steering::in_effect)?;
    Some(1.0 - work.steerable()?.best)
}

pub(super) fn of_netdev(work: &NetdevWork<'_>) -> Vec<Proposal> {
    let on = packet_steering::rps_is_on(work);
    let targets = if on { CpuSet::new() } else { packet_steering::targets(work) };
    let rps = if on {
        rps_in_effect::rps_in_effect(work)
    } else {
        packet_steering::rps_onto(work, &targets)
    };
    let rps_goal = Goal { rps: Some(targets.clone()), ..Goal::default() };
    let rfs_goal = Goal { rfs: Some(FLOW_ENTRIES), ..Goal::default() };
    let both = Goal { rfs: Some(FLOW_ENTRIES), ..rps_goal.clone() };
    let arfs = Goal { arfs: Some(true), ..rfs_goal.clone() };
    // RPS that is on is switched off where it hurts; any other remedy is written where it helps.
    let called_for = if on { Outcome::Hurt } else { Outcome::Help };
    let mut all = vec![
        proposed(work, rps, called_for, rps_goal),
        proposed(work, packet_steering::rfs(work), Outcome::Help, rfs_goal),
        proposed(work, packet_steering::both(work, &targets), Outcome::Help, both),
    ];
    if !work.has_napi {
        // No queue, no interrupt and no device: there is nothing else to set.
        return all;
    }
    all.push(proposed(work, packet_steering::arfs(work), Outcome::Help, arfs));
    let others = [
        queues::spread(work),
        queues::more(work),
        queues::threaded(work),
        poll::ring(work),
        poll::budget(work),
        interrupts::coalescing(work),
        interrupts::deferral(work),
        poll::busy_poll(work),
    ];
    all.extend(others.map(|verdict| Proposal { verdict, goal: None }));
    all
}

/// The proposal of a goal with a verdict whose outcome must be `called_for`.
pub(super) fn proposed(
    work: &NetdevWork<'_>,
    verdict: RemedyVerdict,
    called_for: Outcome,
    goal: Goal,
) -> Proposal {
    let netdevs = vec![work.netdev.name.clone()];
    let goal = Goal { netdevs, irqs: false, even_if_owned: true, ..goal };
    Proposal { goal: (verdict.outcome == called_for).then_some(goal), verdict }
}
