//! Verdicts on RPS, RFS and aRFS, which move protocol work off the CPU that polls.
//!
//! Each is the forecast of what `netsilo plan` would write for it.

use netsilo_model::change::Change;
use netsilo_model::derive::flow_steering::{arfs_is_on, has_arfs};
use netsilo_model::derive::receive_work::{Bounds, movable_share};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::{Distance, Topology};
use netsilo_model::machine::words::decimal;
use netsilo_model::snapshot::host::STEERING_MASKS;
use netsilo_predict::limit::FULL;
use netsilo_predict::live::claim::{CLEAR, Claim};

use crate::judge::evidence::{Evidence, Gain, Measure};
use crate::judge::verdict::effect::{Effect, percent, unjudged};
use crate::judge::verdict::look::NetdevLook;
use crate::judge::verdict::remedy_verdict::{RemedyName, RemedyVerdict};
use crate::plan::Goal;

/// Proposed entries of the global flow table (`Documentation/networking/scaling.rst`, for a busy
/// server).
pub(crate) const FLOW_ENTRIES: u32 = 32768;

/// Minimum idle share of a CPU that can take more work.
const ROOM: f64 = 0.25;
/// Share of the packets from which one flow dominates, so that RPS cannot spread them.
const ONE_FLOW: f64 = 0.9;

/// Whether RPS is on for any queue with traffic.
pub(super) fn rps_is_on(look: &NetdevLook<'_>) -> bool {
    let mut masks = look.received.silos().filter_map(|silo| silo.rps_cpus.as_ref());
    masks.any(|cpus| !cpus.is_empty())
}

/// Target CPUs for RPS: idle CPUs that do not poll this netdev, preferably on the poller's node and
/// not its SMT siblings.
pub(super) fn targets(look: &NetdevLook<'_>) -> CpuSet {
    let topology = &look.analysis.observation.after.topology;
    let shares = look.received.poll_share();
    let polls: CpuSet =
        shares.iter().filter(|(_, share)| **share > 0.01).map(|(cpu, _)| *cpu).collect();
    let others = look.work.usable().minus(&topology.reserved()).minus(&polls);
    let narrower = |cpus: &CpuSet, keep: &dyn Fn(CpuId) -> bool| {
        let kept: CpuSet = cpus.iter().filter(|cpu| keep(*cpu)).collect();
        if kept.is_empty() { cpus.clone() } else { kept }
    };
    let roomy = narrower(&others, &|cpu| look.idle(&CpuSet::from_cpu(cpu)) >= ROOM);
    let near = narrower(&roomy, &|cpu| {
        polls.iter().any(|poller| topology.distance(poller, cpu) <= Distance::Node)
    });
    narrower(&near, &|cpu| !topology.core_of(cpu).intersects(&polls))
}

/// The targets whose forecast is best: all of them, unless steering to fewer helps and that does
/// not (each poll sends an interrupt to each CPU that gets a packet of it).
pub(super) fn best_targets(look: &NetdevLook<'_>) -> CpuSet {
    let all = targets(look);
    let effect = |cpus: &CpuSet| {
        let goal = Goal { rps: Some(cpus.clone()), ..Goal::default() };
        Effect::of(look, &planned(look, goal)).ok()
    };
    let needs_fewer = |effect: Effect<'_>| effect.is_near() && effect.claim != Claim::Help;
    let shares = look.received.poll_share();
    let Some((poller, _)) = shares.iter().max_by(|a, b| a.1.total_cmp(b.1)) else { return all };
    if look.received.pollers().is_empty() || !effect(&all).is_some_and(needs_fewer) {
        return all;
    }
    let topology = &look.analysis.after().topology;
    let fewer = fewer_targets(topology, *poller, &all).into_iter();
    let fewer = fewer.filter_map(|cpus| Some((effect(&cpus)?, cpus)));
    let helping = fewer.filter(|(effect, _)| effect.claim == Claim::Help);
    let best = helping.max_by(|(a, _), (b, _)| a.gain.value.total_cmp(&b.gain.value));
    best.map_or(all, |(_, cpus)| cpus)
}

/// Smaller sets of RPS targets: those nearest to the CPU that polls.
pub(crate) fn fewer_targets(topology: &Topology, poller: CpuId, all: &CpuSet) -> Vec<CpuSet> {
    let mut nearest: Vec<CpuId> = all.iter().collect();
    nearest.sort_by_key(|cpu| (topology.distance(poller, *cpu), *cpu));
    let sizes = [8, 4, 2].into_iter().filter(|size| *size < nearest.len());
    sizes.map(|size| nearest[..size].iter().copied().collect()).collect()
}

/// What `netsilo plan` writes for a goal of these netdevs.
fn planned(look: &NetdevLook<'_>, goal: Goal) -> Vec<Change> {
    let netdevs = look.ports.iter().map(|port| port.name.clone()).collect();
    let goal = Goal { netdevs, irqs: false, even_if_owned: true, ..goal };
    look.look.planned(goal)
}

/// The verdict on RPS onto these CPUs.
pub(super) fn rps_onto(look: &NetdevLook<'_>, targets: &CpuSet) -> RemedyVerdict {
    let remedy = RemedyName::Rps;
    if let Some(unknown) = unmeasured(look, remedy) {
        return unknown;
    }
    if targets.is_empty() {
        let because = match look.analysis.after().topology.online.len() {
            0 | 1 => "there is no other cpu to steer packets to",
            _ => "every cpu that may take packets already polls its queues",
        };
        return RemedyVerdict::new(look, remedy, Claim::NoClearChange, because);
    }
    let goal = Goal { rps: Some(targets.clone()), ..Goal::default() };
    steered(look, remedy, targets, planned(look, goal))
        .not_when("the target cpus have no idle time left, or one flow carries most of the packets")
}

/// The verdict on RFS, which steers each flow to its reader; other packets stay.
pub(super) fn rfs(look: &NetdevLook<'_>) -> RemedyVerdict {
    let remedy = RemedyName::Rfs;
    let share = match worth_steering(look, remedy) {
        Ok(share) => share,
        Err(verdict) => return *verdict,
    };
    if has_rfs(look) {
        let because = "it is on, and steers connected sockets that are read";
        return RemedyVerdict::new(look, remedy, Claim::NoClearChange, because)
            .reasons(steerable(share));
    }
    let goal = Goal { rfs: Some(FLOW_ENTRIES), ..Goal::default() };
    steered(look, remedy, &look.received.readers(), planned(look, goal))
        .with(steerable(share))
        .not_when("the readers do not sleep between packets, or change cpus all the time")
}

/// The verdict on RFS for what it can steer and RPS for the rest.
pub(super) fn both(look: &NetdevLook<'_>, targets: &CpuSet) -> RemedyVerdict {
    let remedy = RemedyName::RpsAndRfs;
    let no_change = |because: &str| RemedyVerdict::new(look, remedy, Claim::NoClearChange, because);
    if look.analysis.after().topology.online.len() < 2 {
        return no_change("there is no other cpu to steer packets to");
    }
    if rps_is_on(look) || has_rfs(look) {
        return no_change("one of the two is on: see the verdict on it");
    }
    if let Some(unknown) = unmeasured(look, remedy) {
        return unknown;
    }
    let goal = Goal { rps: Some(targets.clone()), rfs: Some(FLOW_ENTRIES), ..Goal::default() };
    let share = look.received.steerable().unwrap_or(Bounds { least: 0.0, likely: 0.0, most: 0.0 });
    steered(look, remedy, &targets.or(&look.received.readers()), planned(look, goal))
        .with(steerable(share))
        .not_when("the readers' cpus have no idle time left")
}

/// The verdict on aRFS: the device steers each flow to the queue nearest its reader, so all work
/// moves without inter-processor interrupts.
pub(super) fn arfs(look: &NetdevLook<'_>) -> RemedyVerdict {
    let remedy = RemedyName::Arfs;
    let no_change =
        |because: String| RemedyVerdict::new(look, remedy, Claim::NoClearChange, because);
    if !has_arfs(look.netdev) {
        let driver = look.netdev.driver.as_deref().unwrap_or("its driver");
        return no_change(format!("{driver} does not support it"));
    }
    let share = match worth_steering(look, remedy) {
        Ok(share) => share,
        Err(verdict) => return *verdict,
    };
    if arfs_is_on(look.analysis.after(), look.netdev) {
        return no_change("it is on".into()).reasons(steerable(share));
    }
    let effective = look.received.silos().filter_map(|silo| silo.effective.as_ref());
    let polled: CpuSet = effective.flat_map(|cpus| cpus.iter().collect::<Vec<_>>()).collect();
    if polled.len() < 2 {
        return no_change(format!(
            "cpu {polled} polls all its queues: no queue is nearer to a reader, so spread its \
             interrupts first"
        ))
        .reasons(steerable(share));
    }
    let goal = Goal { arfs: Some(true), rfs: Some(FLOW_ENTRIES), ..Goal::default() };
    let changes = planned(look, goal);
    let effect = match Effect::of(look, &changes) {
        Ok(effect) => effect,
        Err(why) => return unjudged(look, remedy, why),
    };
    let by_rfs_alone = || {
        let rfs = planned(look, Goal { rfs: Some(FLOW_ENTRIES), ..Goal::default() });
        Effect::of(look, &rfs).map_or(0.0, |rfs| rfs.gain.value)
    };
    let claim = match effect.claim {
        Claim::Help if effect.gain.value - by_rfs_alone() < CLEAR => Claim::NoClearChange,
        claim => claim,
    };
    let (now, between) = (effect.now(look), effect.between());
    let because = match claim {
        Claim::Help => format!("{now}; its readers run on other cpus ({between})"),
        _ if effect.claim == Claim::Help => {
            format!("RFS without the device gains as much ({between})")
        }
        _ => format!("{now}; with aRFS: {between}"),
    };
    RemedyVerdict::new(look, remedy, claim, because)
        .gain(effect.as_gain())
        .reasons(steerable(share))
        .calls_for(Claim::Help, changes)
        .not_when("connections are short: each needs its own filter in the device")
}

/// The verdict on RPS that is on, from the forecast of switching it off.
pub(super) fn rps_in_effect(look: &NetdevLook<'_>) -> RemedyVerdict {
    let remedy = RemedyName::Rps;
    let changes = planned(look, Goal { rps: Some(CpuSet::new()), ..Goal::default() });
    let off = match Effect::of(look, &changes) {
        Ok(effect) => effect,
        Err(why) => return unjudged(look, remedy, format!("it is on; {why}")),
    };
    let (ipis, time) = added(&off);
    let costs =
        format!("it sends {} ipis/s, and takes {} of a cpu", decimal(-ipis, 0), percent(-time));
    // The claim about RPS that is on uses the thresholds for switching it on: switching it off is
    // not a remedy with thresholds of its own.
    let claim = Claim::of_setting_that_is_on(off.gain, off.now.fits.value, off.then.fits.value);
    let because = match claim {
        Claim::Hurt => {
            format!(
                "it is on and {}: {costs}, but relieves nothing that is saturated (without it {})",
                off.now(look),
                off.between()
            )
        }
        Claim::Help => {
            let at = &off.then.limit;
            format!("it is on and relieves {at} ({} without it); {costs}", off.between())
        }
        _ => format!("it is on; {}; {costs} (without it {})", off.now(look), off.between()),
    };
    let masks = look.received.silos().filter_map(|silo| silo.rps_cpus.clone());
    let targets = masks.reduce(|all, cpus| all.or(&cpus)).unwrap_or_default();
    let mut reasons = machine(look, &targets);
    reasons.extend(costs_of_steering("for rps", (-ipis, -time), look));
    RemedyVerdict::new(look, remedy, claim, because)
        .gain(off.as_gain())
        .reasons(reasons)
        .calls_for(Claim::Hurt, changes)
}

/// The verdict "unknown" when the measurements that steering needs are missing.
fn unmeasured(look: &NetdevLook<'_>, remedy: RemedyName) -> Option<RemedyVerdict> {
    let why = if look.received.pollers().is_empty() {
        "the cpus that poll it, and their time, are not known"
    } else if look.analysis.after().was_not_recorded(STEERING_MASKS) {
        "whether packets are steered now was not recorded"
    } else {
        return None;
    };
    Some(RemedyVerdict::new(look, remedy, Claim::Unknown, why))
}

/// The share of the bytes that RFS can steer, or the verdict when it can steer almost nothing or
/// the readers are not known.
fn worth_steering(look: &NetdevLook<'_>, remedy: RemedyName) -> Result<Bounds, Box<RemedyVerdict>> {
    let verdict = |claim, why: &str| RemedyVerdict::new(look, remedy, claim, why);
    if let Some(unknown) = unmeasured(look, remedy) {
        return Err(Box::new(unknown));
    }
    match look.received.steerable() {
        None if look.received.silos().any(|silo| !silo.forwards.is_empty()) => Err(Box::new(
            verdict(Claim::NoClearChange, "no process reads the traffic: it is forwarded"),
        )),
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

/// Whether RFS is on: the global flow table, and the table of a queue.
pub(super) fn has_rfs(look: &NetdevLook<'_>) -> bool {
    look.analysis.after().net.rps_sock_flow_entries.unwrap_or(0) > 0
        && look.received.silos().any(|silo| silo.rps_flow_cnt.unwrap_or(0) > 0)
}

/// IPIs per second and CPU time that a remedy adds.
fn added(effect: &Effect<'_>) -> (f64, f64) {
    let Effect { now, then, .. } = effect;
    (then.ipis_per_s - now.ipis_per_s, then.cpu_time.value - now.cpu_time.value)
}

/// The verdict on steering by these changes; the packets go to `targets`.
fn steered(
    look: &NetdevLook<'_>,
    remedy: RemedyName,
    targets: &CpuSet,
    changes: Vec<Change>,
) -> RemedyVerdict {
    let effect = match Effect::of(look, &changes) {
        Ok(effect) => effect,
        Err(why) => return unjudged(look, remedy, why),
    };
    let others = targets.minus(&look.received.pollers());
    let targets = if others.is_empty() { targets.clone() } else { others };
    let flows = look.received.flows();
    let one_flow = flows.is_some_and(|flows| flows.most == Some(1) || flows.heaviest.1 >= ONE_FLOW);
    // Moving one flow to one other CPU gains a little, but does not justify RPS.
    let many_would_help = effect.is_near() && effect.gain.value >= CLEAR;
    let depends_on_flows = flows.is_none() && remedy != RemedyName::Rfs;
    let claim = match effect.claim {
        Claim::Help if one_flow => Claim::NoClearChange,
        Claim::Help | Claim::NoClearChange if depends_on_flows && many_would_help => Claim::Unknown,
        claim => claim,
    };
    let (ipis, time) = added(&effect);
    let adds = format!("{} ipis/s, {} of a cpu in total", decimal(ipis, 0), percent(time));
    let idle = percent(look.idle(&targets));
    let because = match claim {
        Claim::Help => {
            format!(
                "{} while cpus {targets} are idle {idle} of the time ({})",
                effect.now(look),
                effect.between()
            )
        }
        Claim::Hurt => format!(
            "{}; it relieves nothing that is saturated and adds {adds} ({})",
            effect.now(look),
            effect.between()
        ),
        Claim::Unknown => {
            format!(
                "{}; whether it helps depends on the number of flows, which was not counted ({})",
                effect.now(look),
                effect.between()
            )
        }
        Claim::NoClearChange if one_flow => {
            format!(
                "one flow carries nearly all packets: RPS can at best split its driver and \
                 protocol work between two cpus ({})",
                effect.between()
            )
        }
        Claim::NoClearChange if effect.is_near() => {
            format!("{}; {} ({adds})", effect.now(look), effect.between())
        }
        Claim::NoClearChange => format!("{}; it would add {adds}", effect.now(look)),
    };
    let gain = match claim {
        Claim::Unknown => Gain::Unknown("the number of flows was not counted".into()),
        _ => effect.as_gain(),
    };
    let mut reasons = machine(look, &targets);
    reasons.extend(split(look));
    reasons.extend(costs_of_steering("that it would send", (ipis, time), look));
    RemedyVerdict::new(look, remedy, claim, because)
        .gain(gain)
        .reasons(reasons)
        .calls_for(Claim::Help, changes)
}

/// What steering adds, as evidence.
fn costs_of_steering(what: &str, added: (f64, f64), look: &NetdevLook<'_>) -> Vec<Evidence> {
    let (ipis, time) = added;
    let source = "the forecast (docs/judging.md)";
    let each = Measure::Text(decimal(ipis / look.received.packets_per_s(), 2));
    vec![
        Evidence::new(format!("ipis {what}"), Measure::PerSecond(ipis), source),
        Evidence::new("ipis per packet", each, source),
        Evidence::new("time that steering adds, on all cpus", Measure::Share(time), source),
    ]
}

/// The loads of the polling CPU and the targets, with traffic and flows, as evidence.
pub(super) fn machine(look: &NetdevLook<'_>, targets: &CpuSet) -> Vec<Evidence> {
    let measured =
        look.received.silos().any(|silo| silo.softirq.is_some_and(|softirq| softirq.measured));
    let source = if measured {
        "eBPF (softirq_entry, irq_handler_entry)"
    } else {
        "/proc/stat, by clock ticks"
    };
    let mut reasons = Vec::new();
    if let Some(cpu) = look.received.main_poller() {
        let bound = look.work.bound(cpu);
        let full = if bound >= FULL { ", saturated" } else { "" };
        reasons.push(Evidence::new(
            format!("cpu {cpu} in interrupts and softirqs{full}"),
            Measure::Share(bound),
            source,
        ));
    }
    if !targets.is_empty() {
        reasons.push(Evidence::new(
            format!("cpus {targets} idle"),
            Measure::Share(look.idle(targets)),
            "/proc/stat",
        ));
    }
    let all = look.work.usable();
    reasons.push(Evidence::new(
        format!("all {} cpus idle", all.len()),
        Measure::Share(look.idle(&all)),
        "/proc/stat",
    ));
    let siblings: f64 = targets.iter().map(|cpu| look.work.sibling_busy(cpu)).sum();
    if siblings > 0.0 {
        let busy = siblings / targets.len() as f64;
        reasons.push(Evidence::new(
            "busy time of their SMT siblings",
            Measure::Share(busy),
            "/proc/stat",
        ));
    }
    let source = if look.received.has_napi() {
        "tp_btf/napi_poll, or rx_packets"
    } else {
        "rx_packets, divided over the backlogs of the cpus that send"
    };
    let packets = Measure::PerSecond(look.received.packets_per_s());
    reasons.push(Evidence::new("packets", packets, source));
    reasons.extend(look.received.packets_per_poll().map(|each| {
        let each = Measure::Text(format!("{each:.1}"));
        Evidence::new("packets per poll", each, "tp_btf/napi_poll, or /proc/interrupts")
    }));
    let queues = if look.received.is_unmapped() {
        Measure::Text("not known".into())
    } else {
        Measure::Count(look.received.silos().count() as u64)
    };
    reasons.push(Evidence::new("queues with traffic", queues, "napi_poll, or /proc/interrupts"));
    if let Some(flows) = look.received.flows() {
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
    if look.analysis.after().machine.virtual_machine == Some(true) {
        reasons.push(Evidence::new(
            "virtual machine",
            Measure::Text("ipis may leave the guest".into()),
            "/proc/cpuinfo",
        ));
    }
    reasons
}

/// The share of the softirq that can move off the polling CPU, as evidence.
fn split(look: &NetdevLook<'_>) -> Option<Evidence> {
    let Bounds { least, most, .. } = look.judge.protocol_share(look.netdev)?;
    let between = Measure::Text(format!("{} to {}", percent(least), percent(most)));
    let shares = look.received.poll_share();
    let source = match movable_share(&look.analysis.observation.attribution, shares.keys()) {
        Some(sampled) => format!("{:.0} samples by stage", sampled.samples),
        None => "not measured, a bound (docs/judging.md); netsilo show --stages measures it".into(),
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
