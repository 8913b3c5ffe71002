//! Verdicts on RPS, RFS and aRFS, which move protocol work off the CPU that polls.
//!
//! Each is the forecast of what `netsilo plan` would write for it.

use netsilo_model::change::Change;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::flow_steering::{arfs_is_on, has_arfs};
use netsilo_model::derive::receive_work::{Bounds, movable_share, steerable_share};
use netsilo_model::derive::silo::Silo;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::Distance;
use netsilo_predict::live::claim::{CLEAR, Claim, FULL};
use netsilo_trial::stats::Estimate;

use crate::judge::evidence::{Evidence, Gain, Measure};
use crate::judge::verdict::effect::{Effect, percent, unjudged};
use crate::judge::verdict::remedy_verdict::{RemedyName, RemedyVerdict};
use crate::judge::verdict::work::{self, NetdevWork};
use crate::plan::{Goal, plan};

/// Proposed entries of the global flow table (`Documentation/networking/scaling.rst`, for a busy
/// server).
pub(crate) const FLOW_ENTRIES: u32 = 32768;

/// Minimum idle share of a CPU that can take more work.
const ROOM: f64 = 0.25;
/// Share of the packets from which one flow dominates, so that RPS cannot spread them.
const ONE_FLOW: f64 = 0.9;

/// Whether RPS is on for any queue with traffic.
pub(super) fn rps_is_on(work: &NetdevWork<'_>) -> bool {
    work.silos.iter().any(|silo| {
        silo.has_traffic() && silo.rps_cpus.as_ref().is_some_and(|cpus| !cpus.is_empty())
    })
}

/// Target CPUs for RPS: idle CPUs that do not poll this netdev, preferably on the poller's node and
/// not its SMT siblings.
pub(super) fn targets(work: &NetdevWork<'_>) -> CpuSet {
    let topology = &work.analysis.observation.after.topology;
    let polls: CpuSet =
        work.poll_share.iter().filter(|(_, share)| **share > 0.01).map(|(cpu, _)| *cpu).collect();
    let others = work.cpus().minus(&topology.reserved()).minus(&polls);
    let narrower = |cpus: &CpuSet, keep: &dyn Fn(CpuId) -> bool| {
        let kept: CpuSet = cpus.iter().filter(|cpu| keep(*cpu)).collect();
        if kept.is_empty() { cpus.clone() } else { kept }
    };
    let roomy = narrower(&others, &|cpu| work.idle(cpu) >= ROOM);
    let near = narrower(&roomy, &|cpu| {
        polls.iter().any(|poller| topology.distance(poller, cpu) <= Distance::Node)
    });
    narrower(&near, &|cpu| !topology.core_of(cpu).intersects(&polls))
}

/// What `netsilo plan` writes for a goal of this netdev.
fn planned(work: &NetdevWork<'_>, goal: Goal) -> Vec<Change> {
    let netdevs = vec![work.netdev.name.clone()];
    let goal = Goal { netdevs, irqs: false, even_if_owned: true, ..goal };
    plan(work.analysis, &goal).changes
}

/// The verdict on RPS onto these CPUs.
pub(super) fn rps_onto(work: &NetdevWork<'_>, targets: &CpuSet) -> RemedyVerdict {
    let remedy = RemedyName::Rps;
    if let Some(unknown) = unmeasured(work, remedy) {
        return unknown;
    }
    if targets.is_empty() {
        let because = "there is no other cpu to steer packets to";
        return RemedyVerdict::new(work, remedy, Claim::NoClearChange, because);
    }
    let goal = Goal { rps: Some(targets.clone()), ..Goal::default() };
    steered(work, remedy, targets, planned(work, goal))
        .not_when("the target cpus have no idle time left, or one flow carries most of the packets")
}

/// The verdict on RFS, which steers each flow to its reader; other packets stay.
pub(super) fn rfs(work: &NetdevWork<'_>) -> RemedyVerdict {
    let remedy = RemedyName::Rfs;
    let share = match worth_steering(work, remedy) {
        Ok(share) => share,
        Err(verdict) => return *verdict,
    };
    if in_effect(work) {
        let because = "it is on, and steers connected sockets that are read";
        return RemedyVerdict::new(work, remedy, Claim::NoClearChange, because)
            .reasons(steerable(share));
    }
    let goal = Goal { rfs: Some(FLOW_ENTRIES), ..Goal::default() };
    steered(work, remedy, &work.readers(), planned(work, goal))
        .with(steerable(share))
        .not_when("the readers do not sleep between packets, or change cpus all the time")
}

/// The verdict on RFS for what it can steer and RPS for the rest.
pub(super) fn both(work: &NetdevWork<'_>, targets: &CpuSet) -> RemedyVerdict {
    let remedy = RemedyName::RpsAndRfs;
    let no_change = |because: &str| RemedyVerdict::new(work, remedy, Claim::NoClearChange, because);
    if work.analysis.after().topology.online.len() < 2 {
        return no_change("there is no other cpu to steer packets to");
    }
    if rps_is_on(work) || in_effect(work) {
        return no_change("one of the two is on: see the verdict on it");
    }
    if let Some(unknown) = unmeasured(work, remedy) {
        return unknown;
    }
    let goal = Goal { rps: Some(targets.clone()), rfs: Some(FLOW_ENTRIES), ..Goal::default() };
    let share = work.steerable().unwrap_or(Bounds { least: 0.0, likely: 0.0, most: 0.0 });
    steered(work, remedy, &targets.or(&work.readers()), planned(work, goal))
        .with(steerable(share))
        .not_when("the readers' cpus have no idle time left")
}

/// The verdict on aRFS: the device steers each flow to the queue nearest its reader, so all work
/// moves without inter-processor interrupts.
pub(super) fn arfs(work: &NetdevWork<'_>) -> RemedyVerdict {
    let remedy = RemedyName::Arfs;
    let no_change =
        |because: String| RemedyVerdict::new(work, remedy, Claim::NoClearChange, because);
    if !has_arfs(work.netdev) {
        let driver = work.netdev.driver.as_deref().unwrap_or("its driver");
        return no_change(format!("{driver} does not support it"));
    }
    let share = match worth_steering(work, remedy) {
        Ok(share) => share,
        Err(verdict) => return *verdict,
    };
    if arfs_is_on(work.analysis.after(), work.netdev) {
        return no_change("it is on".into()).reasons(steerable(share));
    }
    let effective = work.silos.iter().filter_map(|silo| silo.effective.as_ref());
    let polled: CpuSet = effective.flat_map(|cpus| cpus.iter().collect::<Vec<_>>()).collect();
    if polled.len() < 2 {
        return no_change(format!(
            "cpu {polled} polls all its queues: no queue is nearer to a reader, so spread its \
             interrupts first"
        ))
        .reasons(steerable(share));
    }
    let goal = Goal { arfs: Some(true), rfs: Some(FLOW_ENTRIES), ..Goal::default() };
    let changes = planned(work, goal);
    let effect = match Effect::of(work, &changes) {
        Ok(effect) => effect,
        Err(why) => return unjudged(work, remedy, why),
    };
    let by_rfs_alone = || {
        let rfs = planned(work, Goal { rfs: Some(FLOW_ENTRIES), ..Goal::default() });
        Effect::of(work, &rfs).map_or(0.0, |rfs| rfs.gain.value)
    };
    let claim = match effect.claim {
        Claim::Help if effect.gain.value - by_rfs_alone() < CLEAR => Claim::NoClearChange,
        claim => claim,
    };
    let (now, between) = (effect.now(work), effect.between());
    let because = match claim {
        Claim::Help => format!("{now}; its readers run on other cpus ({between})"),
        _ if effect.claim == Claim::Help => {
            format!("RFS without the device gains as much ({between})")
        }
        _ => format!("{now}; with aRFS: {between}"),
    };
    RemedyVerdict::new(work, remedy, claim, because)
        .gain(effect.as_gain())
        .reasons(steerable(share))
        .calls_for(Claim::Help, changes)
        .not_when("connections are short: each needs its own filter in the device")
}

/// The verdict on RPS that is on, from the forecast of switching it off.
pub(super) fn rps_in_effect(work: &NetdevWork<'_>) -> RemedyVerdict {
    let remedy = RemedyName::Rps;
    let changes = planned(work, Goal { rps: Some(CpuSet::new()), ..Goal::default() });
    let off = match Effect::of(work, &changes) {
        Ok(effect) => effect,
        Err(why) => return unjudged(work, remedy, format!("it is on; {why}")),
    };
    let (ipis, time) = added(&off);
    let costs = format!("it sends {:.0} ipis/s, and takes {} of a cpu", -ipis, percent(-time));
    let is_full = off.is_near() || off.then.fits.value < 1.0;
    // What is on hurts where switching it off cannot lose.
    let claim = match off.gain {
        _ if !is_full => Claim::NoClearChange,
        Estimate { low, high, .. } if low >= 0.0 && high >= CLEAR => Claim::Hurt,
        Estimate { high, .. } if high <= -CLEAR => Claim::Help,
        _ => Claim::NoClearChange,
    };
    let because = match claim {
        Claim::Hurt => {
            format!(
                "it is on and {}: {costs}, but relieves nothing that is saturated (without it {})",
                off.now(work),
                off.between()
            )
        }
        Claim::Help => {
            let at = &off.then.limit;
            format!("it is on and relieves {at} ({} without it); {costs}", off.between())
        }
        _ => format!("it is on; {}; {costs} (without it {})", off.now(work), off.between()),
    };
    let masks = work.silos.iter().filter_map(|silo| silo.rps_cpus.clone());
    let targets = masks.reduce(|all, cpus| all.or(&cpus)).unwrap_or_default();
    let mut reasons = machine(work, &targets);
    reasons.extend(costs_of_steering("for rps", (-ipis, -time), work));
    RemedyVerdict::new(work, remedy, claim, because)
        .gain(off.as_gain())
        .reasons(reasons)
        .calls_for(Claim::Hurt, changes)
}

/// The verdict "unknown" when the measurements that steering needs are missing.
fn unmeasured(work: &NetdevWork<'_>, remedy: RemedyName) -> Option<RemedyVerdict> {
    let is_unknown = work.poll_share.is_empty() || work.loads.is_empty();
    let why = "the cpus that poll it, and their time, are not known";
    is_unknown.then(|| RemedyVerdict::new(work, remedy, Claim::Unknown, why))
}

/// The share of the bytes that RFS can steer, or the verdict when it can steer almost nothing or
/// the readers are not known.
fn worth_steering(work: &NetdevWork<'_>, remedy: RemedyName) -> Result<Bounds, Box<RemedyVerdict>> {
    let verdict = |claim, why: &str| RemedyVerdict::new(work, remedy, claim, why);
    if let Some(unknown) = unmeasured(work, remedy) {
        return Err(Box::new(unknown));
    }
    match work.steerable() {
        None if work.silos.iter().any(|silo| !silo.forwards.is_empty()) => Err(Box::new(verdict(
            Claim::NoClearChange,
            "no process reads the traffic: it is forwarded",
        ))),
        None => Err(Box::new(verdict(Claim::Unknown, "the readers of the traffic are not known"))),
        Some(share) if share.most < 0.1 => {
            let because = format!(
                "{} of the bytes are read by unconnected UDP sockets: RFS steers only connected \
                 sockets",
                percent(1.0 - share.most)
            );
            Err(Box::new(verdict(Claim::NoClearChange, &because).reasons(steerable(share))))
        }
        Some(share) => Ok(share),
    }
}

fn steerable(share: Bounds) -> Vec<Evidence> {
    let share = Measure::Share(share.likely);
    vec![Evidence::new("bytes read by connected sockets", share, "eBPF (udp and tcp reads)")]
}

/// The share of what was read of these queues that RFS can steer; `None` when nothing was read.
pub(super) fn steerable_of(analysis: &Analysis<'_>, silos: &[&Silo]) -> Option<Bounds> {
    steerable_share(work::reads(analysis, silos))
}

/// Whether RFS is on: the global flow table, and the table of a queue with traffic.
pub(super) fn has_rfs<'a>(
    analysis: &Analysis<'_>,
    mut silos: impl Iterator<Item = &'a Silo>,
) -> bool {
    analysis.after().net.rps_sock_flow_entries.unwrap_or(0) > 0
        && silos.any(|silo| silo.has_traffic() && silo.rps_flow_cnt.unwrap_or(0) > 0)
}

fn in_effect(work: &NetdevWork<'_>) -> bool {
    has_rfs(work.analysis, work.silos.iter().copied())
}

/// IPIs per second and CPU time that a remedy adds.
fn added(effect: &Effect<'_>) -> (f64, f64) {
    let Effect { now, then, .. } = effect;
    (then.ipis_per_s - now.ipis_per_s, then.cpu_time.value - now.cpu_time.value)
}

/// The verdict on steering by these changes; the packets go to `targets`.
fn steered(
    work: &NetdevWork<'_>,
    remedy: RemedyName,
    targets: &CpuSet,
    changes: Vec<Change>,
) -> RemedyVerdict {
    let effect = match Effect::of(work, &changes) {
        Ok(effect) => effect,
        Err(why) => return unjudged(work, remedy, why),
    };
    let others: CpuSet = targets.iter().filter(|cpu| !work.poll_share.contains_key(cpu)).collect();
    let targets = if others.is_empty() { targets.clone() } else { others };
    let one_flow =
        work.flows.is_some_and(|flows| flows.most == Some(1) || flows.heaviest.1 >= ONE_FLOW);
    // Moving one flow to one other CPU gains a little, but does not justify RPS.
    let many_would_help = effect.is_near() && effect.gain.value >= CLEAR;
    let depends_on_flows = work.flows.is_none() && remedy != RemedyName::Rfs;
    let claim = match effect.claim {
        Claim::Help if one_flow => Claim::NoClearChange,
        Claim::Help | Claim::NoClearChange if depends_on_flows && many_would_help => Claim::Unknown,
        claim => claim,
    };
    let (ipis, time) = added(&effect);
    let adds = format!("{ipis:.0} ipis/s, {} of a cpu in all", percent(time));
    let idle = percent(work.mean_idle(&targets));
    let because = match claim {
        Claim::Help => {
            format!(
                "{} while cpus {targets} are idle {idle} of the time ({})",
                effect.now(work),
                effect.between()
            )
        }
        Claim::Hurt => format!(
            "{}; it relieves nothing that is saturated and adds {adds} ({})",
            effect.now(work),
            effect.between()
        ),
        Claim::Unknown => {
            format!(
                "{}; whether it helps depends on the number of flows, which was not counted ({})",
                effect.now(work),
                effect.between()
            )
        }
        Claim::NoClearChange if one_flow => {
            format!(
                "one flow carries nearly all packets: RPS cannot spread it, at best pipeline it \
                 ({})",
                effect.between()
            )
        }
        Claim::NoClearChange if effect.is_near() => {
            format!("{}; {} ({adds})", effect.now(work), effect.between())
        }
        Claim::NoClearChange => format!("{}; it would add {adds}", effect.now(work)),
    };
    let gain = match claim {
        Claim::Unknown => Gain::Unknown("the number of flows was not counted".into()),
        _ => effect.as_gain(),
    };
    let mut reasons = machine(work, &targets);
    reasons.extend(split(work));
    reasons.extend(costs_of_steering("that it would send", (ipis, time), work));
    RemedyVerdict::new(work, remedy, claim, because)
        .gain(gain)
        .reasons(reasons)
        .calls_for(Claim::Help, changes)
}

/// What steering adds, as evidence.
fn costs_of_steering(what: &str, added: (f64, f64), work: &NetdevWork<'_>) -> Vec<Evidence> {
    let (ipis, time) = added;
    let source = "the forecast (docs/model.md)";
    let each = work.packets_per_s.filter(|packets| *packets > 0.0).map(|packets| {
        let each = Measure::Text(format!("{:.2}", ipis / packets));
        Evidence::new("ipis per packet", each, source)
    });
    let mut reasons = vec![Evidence::new(format!("ipis {what}"), Measure::PerSecond(ipis), source)];
    reasons.extend(each);
    let time = Measure::Share(time);
    reasons.push(Evidence::new("time that steering adds, on all cpus", time, source));
    reasons
}

/// The loads of the polling CPU and the targets, with traffic and flows, as evidence.
pub(super) fn machine(work: &NetdevWork<'_>, targets: &CpuSet) -> Vec<Evidence> {
    let measured =
        work.silos.iter().any(|silo| silo.softirq.is_some_and(|softirq| softirq.measured));
    let source = if measured {
        "eBPF (softirq_entry, irq_handler_entry)"
    } else {
        "/proc/stat, by clock ticks"
    };
    let mut reasons = Vec::new();
    if let Some((cpu, load)) = work.main_poller().and_then(|cpu| Some((cpu, work.loads.get(&cpu)?)))
    {
        let full = if load.bound >= FULL { ", saturated" } else { "" };
        reasons.push(Evidence::new(
            format!("cpu {cpu} in interrupts and softirqs{full}"),
            Measure::Share(load.bound),
            source,
        ));
    }
    if !targets.is_empty() {
        reasons.push(Evidence::new(
            format!("cpus {targets} idle"),
            Measure::Share(work.mean_idle(targets)),
            "/proc/stat",
        ));
    }
    let all = work.cpus();
    reasons.push(Evidence::new(
        format!("all {} cpus idle", all.len()),
        Measure::Share(work.mean_idle(&all)),
        "/proc/stat",
    ));
    if work.sibling_busy(targets.lowest().unwrap_or_default()) > 0.0 {
        let busy: f64 = targets.iter().map(|cpu| work.sibling_busy(cpu)).sum::<f64>()
            / targets.len().max(1) as f64;
        reasons.push(Evidence::new(
            "busy time of their SMT siblings",
            Measure::Share(busy),
            "/proc/stat",
        ));
    }
    if let Some(packets) = work.packets_per_s {
        let source = if work.has_napi {
            "tp_btf/napi_poll, or rx_packets"
        } else {
            "rx_packets; on the backlogs of the cpus that send them, by their shares"
        };
        reasons.push(Evidence::new("packets", Measure::PerSecond(packets), source));
        if work.polls_per_s > 0.0 {
            let each = Measure::Text(format!("{:.1}", packets / work.polls_per_s));
            reasons.push(Evidence::new(
                "packets per poll",
                each,
                "tp_btf/napi_poll, or /proc/interrupts",
            ));
        }
    }
    let queues = work.silos.iter().filter(|silo| silo.has_traffic()).count();
    reasons.push(Evidence::new(
        "queues with traffic",
        Measure::Count(queues as u64),
        "napi_poll, or /proc/interrupts",
    ));
    if let Some(flows) = &work.flows {
        reasons.push(Evidence::new(
            "flows, at least",
            Measure::Count(flows.least as u64),
            flows.source,
        ));
        reasons.push(Evidence::new(
            "heaviest flow's share, at most",
            Measure::Share(flows.heaviest.0),
            flows.source,
        ));
    }
    if work.is_guest() == Some(true) {
        reasons.push(Evidence::new(
            "virtual machine",
            Measure::Text("ipis may leave the guest".into()),
            "/proc/cpuinfo",
        ));
    }
    reasons
}

/// The share of the softirq that can move off the polling CPU, as evidence.
fn split(work: &NetdevWork<'_>) -> Option<Evidence> {
    let (judge, _) = work.look.judge.as_ref().ok()?;
    let Bounds { least, most, .. } = judge.protocol_share(work.netdev)?;
    let between = Measure::Text(format!("{} to {}", percent(least), percent(most)));
    let polling = work.poll_share.keys();
    let source = match movable_share(&work.analysis.observation.attribution, polling) {
        Some(sampled) => format!("{:.0} samples by stage", sampled.samples),
        None => "not measured, a bound (docs/model.md); netsilo show --stages measures it".into(),
    };
    Some(Evidence::new("softirq share after driver and GRO", between, source))
}

impl RemedyVerdict {
    /// Adds more reasons.
    fn with(mut self, more: Vec<Evidence>) -> Self {
        self.reasons.extend(more);
        self
    }
}

/// The queues with traffic, without leased ones.
pub(super) fn busy_queues<'a>(work: &NetdevWork<'a>) -> Vec<&'a Silo> {
    work.silos.iter().copied().filter(|silo| silo.has_traffic() && silo.leased.is_none()).collect()
}
