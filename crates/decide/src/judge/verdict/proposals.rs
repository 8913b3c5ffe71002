//! All verdicts on a netdev, and single ones for the notes of a plan.

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::snapshot::netdev::Netdev;

use crate::judge::verdict::look::Look;
use crate::judge::verdict::remedy_verdict::{RemedyName, RemedyVerdict};
use crate::judge::verdict::work::NetdevWork;
use crate::judge::verdict::{interrupts, packet_steering, poll, queues, software};
use crate::plan::Plan;

/// The verdicts on all netdevs with receive traffic, each with the changes that it calls for; empty
/// without rates. `spread` is the plan that spreads all interrupts and kthreads.
pub(crate) fn verdicts(look: &Look<'_>, spread: &Plan) -> Vec<RemedyVerdict> {
    let on = |netdev: &Netdev| match NetdevWork::of(look, netdev) {
        Some(work) => of_netdev(&work, spread),
        None => software::verdicts(look.analysis, netdev),
    };
    look.analysis.observation.after.netdevs.iter().flat_map(on).collect()
}

/// The verdict on RPS onto these CPUs; `None` for a netdev without receive traffic.
pub fn rps_onto(look: &Look<'_>, netdev: &Netdev, cpus: &CpuSet) -> Option<RemedyVerdict> {
    match NetdevWork::of(look, netdev) {
        Some(work) => Some(packet_steering::rps_onto(&work, cpus)),
        None => software::verdict(look.analysis, netdev, RemedyName::Rps),
    }
}

/// The verdict on RFS; `None` for a netdev without receive traffic.
pub(crate) fn rfs(look: &Look<'_>, netdev: &Netdev) -> Option<RemedyVerdict> {
    match NetdevWork::of(look, netdev) {
        Some(work) => Some(packet_steering::rfs(&work)),
        None => software::verdict(look.analysis, netdev, RemedyName::Rfs),
    }
}

/// The verdict on aRFS; `None` for a netdev without receive traffic.
pub(crate) fn arfs(look: &Look<'_>, netdev: &Netdev) -> Option<RemedyVerdict> {
    Some(packet_steering::arfs(&NetdevWork::of(look, netdev)?))
}

/// The share of a netdev's bytes that RFS cannot steer; `None` when RFS is off or no reads were
/// observed.
pub(crate) fn unsteerable(analysis: &Analysis<'_>, netdev: &Netdev) -> Option<f64> {
    let silos: Vec<_> =
        analysis.silos.queues.iter().filter(|silo| silo.netdev.is(netdev)).collect();
    let is_on = packet_steering::has_rfs(analysis, silos.iter().copied());
    is_on.then_some(())?;
    Some(1.0 - packet_steering::steerable_of(analysis, &silos)?.most)
}

fn of_netdev(work: &NetdevWork<'_>, spread: &Plan) -> Vec<RemedyVerdict> {
    let on = packet_steering::rps_is_on(work);
    let targets = if on { CpuSet::new() } else { packet_steering::targets(work) };
    let rps = if on {
        packet_steering::rps_in_effect(work)
    } else {
        packet_steering::rps_onto(work, &targets)
    };
    let mut all = vec![rps, packet_steering::rfs(work), packet_steering::both(work, &targets)];
    if !work.has_napi {
        // No queue, no interrupt and no device: there is nothing else to set.
        return all;
    }
    all.extend([
        packet_steering::arfs(work),
        queues::spread(work, spread),
        queues::more(work),
        queues::threaded(work),
        poll::ring(work),
        poll::budget(work),
        interrupts::coalescing(work),
        interrupts::deferral(work),
        poll::busy_poll(work),
    ]);
    all
}
