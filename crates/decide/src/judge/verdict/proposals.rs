//! All verdicts on a netdev, and single ones for the notes of a plan.

use std::collections::HashSet;

use netsilo_model::derive::unmapped::UnmappedWork;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_predict::live::claim::Claim;
use netsilo_predict::live::work::TooLittle;

use crate::judge::verdict::look::{Look, NetdevLook};
use crate::judge::verdict::remedy_verdict::{RemedyName, RemedyVerdict};
use crate::judge::verdict::{interrupts, packet_steering, poll, queues, software};
use crate::plan::Plan;

/// Greatest number of netdevs that are judged: each verdict is a forecast of the whole machine.
const MOST_JUDGED: usize = 64;

/// The verdicts on all netdevs with receive traffic, each with the changes that it calls for; empty
/// without rates. `spread` is the plan that spreads all interrupts and kthreads. Of many netdevs,
/// those that receive most packets are judged.
pub(crate) fn verdicts(look: &Look<'_>, spread: &Plan) -> Vec<RemedyVerdict> {
    let netdevs = &look.analysis.after().netdevs;
    let looks: Vec<Option<NetdevLook<'_>>> =
        netdevs.iter().map(|netdev| NetdevLook::new(look, netdev)).collect();
    let packets =
        |it: &Option<NetdevLook<'_>>| it.as_ref().map_or(0.0, |it| it.received.packets_per_s());
    let mut most: Vec<(f64, usize)> = looks.iter().map(packets).zip(0..).collect();
    most.sort_by(|a, b| b.0.total_cmp(&a.0));
    let others: HashSet<usize> = most.iter().skip(MOST_JUDGED).map(|(_, number)| *number).collect();
    let on = |(number, netdev): (usize, &Netdev)| match &looks[number] {
        Some(_) if others.contains(&number) => {
            let why = format!("{MOST_JUDGED} other netdevs receive more packets: they are judged");
            vec![RemedyVerdict::on(netdev, RemedyName::Rps, Claim::Unknown, why)]
        }
        Some(look) => of_netdev(look, spread),
        None => RemedyName::ALL
            .into_iter()
            .filter_map(|name| without_work(look, netdev, name))
            .collect(),
    };
    netdevs.iter().enumerate().flat_map(on).collect()
}

/// The verdict on RPS onto these CPUs; `None` for a netdev without receive traffic.
pub fn rps_onto(look: &Look<'_>, netdev: &Netdev, cpus: &CpuSet) -> Option<RemedyVerdict> {
    match NetdevLook::new(look, netdev) {
        Some(look) => Some(packet_steering::rps_onto(&look, cpus)),
        None => without_work(look, netdev, RemedyName::Rps),
    }
}

/// The verdict on RFS; `None` for a netdev without receive traffic.
pub(crate) fn rfs(look: &Look<'_>, netdev: &Netdev) -> Option<RemedyVerdict> {
    match NetdevLook::new(look, netdev) {
        Some(look) => Some(packet_steering::rfs(&look)),
        None => without_work(look, netdev, RemedyName::Rfs),
    }
}

/// The verdict on aRFS; `None` for a netdev without receive traffic.
pub(crate) fn arfs(look: &Look<'_>, netdev: &Netdev) -> Option<RemedyVerdict> {
    Some(packet_steering::arfs(&NetdevLook::new(look, netdev)?))
}

/// The share of a netdev's bytes that RFS cannot steer; `None` when RFS is off or no reads were
/// observed.
pub(crate) fn unsteerable(look: &Look<'_>, netdev: &Netdev) -> Option<f64> {
    let look = NetdevLook::new(look, netdev).filter(packet_steering::has_rfs)?;
    Some(1.0 - look.received.steerable()?.most)
}

/// The verdict on a netdev whose receive work is not its own, or was not counted.
fn without_work(look: &Look<'_>, netdev: &Netdev, remedy: RemedyName) -> Option<RemedyVerdict> {
    let unknown = || {
        let is_unknown =
            |why: &&TooLittle| matches!(why, TooLittle::NoPolls | TooLittle::SinceBoot);
        let not_counted = look.judge.as_ref().err().filter(is_unknown);
        let mut silos = look.analysis.silos_of(&netdev.name);
        let receives = netdev.up && silos.any(|silo| silo.has_traffic());
        let unmapped = UnmappedWork::of(look.analysis, netdev)
            .filter(|_| netdev.up && !look.analysis.after().is_since_boot());
        let why = match unmapped {
            Some(Err(why)) => format!("which cpus poll it is not known: {why}"),
            _ => not_counted.filter(|_| receives)?.to_string(),
        };
        Some(RemedyVerdict::on(netdev, remedy, Claim::Unknown, why))
    };
    software::verdict(look.analysis, netdev, remedy).or_else(unknown)
}

fn of_netdev(look: &NetdevLook<'_>, spread: &Plan) -> Vec<RemedyVerdict> {
    let bond = look.with_ports();
    let steered = bond.as_ref().unwrap_or(look);
    let on = packet_steering::rps_is_on(steered);
    let targets = if on { CpuSet::new() } else { packet_steering::best_targets(steered) };
    let rps = if on {
        packet_steering::rps_in_effect(steered)
    } else {
        packet_steering::rps_onto(steered, &targets)
    };
    let (rfs, both) = (packet_steering::rfs(steered), packet_steering::both(steered, &targets));
    let mut all = vec![rps, rfs, both];
    if !look.received.has_napi() {
        // No queue, no interrupt and no device: there is nothing else to set.
        return all;
    }
    all.extend([
        packet_steering::arfs(look),
        queues::spread(look, spread),
        queues::more(look),
        queues::threaded(look),
        poll::ring(look),
        poll::budget(look),
        interrupts::coalescing(look),
        interrupts::deferral(look),
        poll::busy_poll(look),
    ]);
    all
}
