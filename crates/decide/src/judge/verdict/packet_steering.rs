//! Verdicts on RPS, RFS and aRFS, which move protocol work off the CPU that polls.
//!
//! The polling CPU queues a packet on the target CPU's backlog. Once per softirq run it sends an
//! inter-processor interrupt to each target whose backlog is not being processed already
//! (`net/core/dev.c:net_rps_action_and_irq_enable`).

use std::collections::BTreeMap;

use netsilo_model::change::NTUPLE_FILTER;
use netsilo_model::derive::silo::Silo;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::Distance;

use crate::judge::evidence::{Evidence, Gain, Measure};
use crate::judge::verdict::bottleneck::{FULL, Loads, add};
use crate::judge::verdict::effect::{CLEAR, Effect, percent};
use crate::judge::verdict::remedy_verdict::{Outcome, RemedyName, RemedyVerdict};
use crate::judge::verdict::work::{Flows, NetdevWork, Range, Scenario};
use crate::plan::arfs::has_arfs;

/// Minimum idle share of a CPU that can take more work.
const ROOM: f64 = 0.25;
/// Share of a hardware thread's time that its busy sibling takes (docs/costs.md).
const SMT: f64 = 0.75;
/// Cache lines of a backlog (lock, queue head) that each packet moves to the polling CPU.
const QUEUE_LINES: f64 = 2.0;
/// Share of the packets from which one flow dominates, so that RPS cannot spread them.
const ONE_FLOW: f64 = 0.9;
/// CPU time of a packet in the receive path in nanoseconds, where packets were not counted.
const PACKET_NS: Range = Range { worst: 1_000.0, likely: 4_000.0, best: 10_000.0 };
/// Most packets of one NAPI poll (`NAPI_POLL_WEIGHT`).
const PACKETS_OF_A_POLL: f64 = 64.0;

/// The share of a netdev's packets steered to each CPU. The rest to 1 stays on the polling CPU.
type Weights = BTreeMap<CpuId, f64>;

/// The cost that steering adds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Added {
    /// Packets steered per second.
    pub(super) packets: f64,
    /// Inter-processor interrupts sent for them per second.
    pub(super) ipis: f64,
    /// Added time on the polling and the target CPUs, as a share of one CPU.
    pub(super) time: f64,
}

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

/// The verdict on RPS onto these CPUs.
pub(super) fn rps_onto(work: &NetdevWork<'_>, targets: &CpuSet) -> RemedyVerdict {
    let remedy = RemedyName::Rps;
    if let Some(unknown) = unmeasured(work, remedy) {
        return unknown;
    }
    if targets.is_empty() {
        return RemedyVerdict::new(
            work,
            remedy,
            Outcome::NoClearChange,
            "there is no other cpu to steer packets to",
        );
    }
    steered(work, remedy, targets, &|scenario| (hashed(work, targets, scenario), 0.0))
        .not_when("the target cpus have no idle time left, or one flow carries most of the packets")
}

/// The verdict on RFS, which steers each flow to its reader; other packets stay.
pub(super) fn rfs(work: &NetdevWork<'_>) -> RemedyVerdict {
    let remedy = RemedyName::Rfs;
    let steerable_share = match steerable_share(work, remedy) {
        Ok(steerable_share) => steerable_share,
        Err(verdict) => return *verdict,
    };
    if in_effect(work) {
        let because = "it is on, and steers connected sockets that are read";
        return RemedyVerdict::new(work, remedy, Outcome::NoClearChange, because)
            .reasons(steerable(steerable_share));
    }
    steered(work, remedy, &readers(work), &|scenario| {
        (to_readers(work, steerable_share, scenario), nearer(work, steerable_share, scenario))
    })
    .with(steerable(steerable_share))
    .not_when("the readers do not sleep between packets, or change cpus all the time")
}

/// The verdict on RFS for what it can steer and RPS for the rest.
pub(super) fn both(work: &NetdevWork<'_>, targets: &CpuSet) -> RemedyVerdict {
    let remedy = RemedyName::RpsAndRfs;
    if work.analysis.after().topology.online.len() < 2 {
        let because = "there is no other cpu to steer packets to";
        return RemedyVerdict::new(work, remedy, Outcome::NoClearChange, because);
    }
    if rps_is_on(work) || in_effect(work) {
        return RemedyVerdict::new(
            work,
            remedy,
            Outcome::NoClearChange,
            "one of the two is on: see the verdict on it",
        );
    }
    let steerable_share = match work.steerable() {
        None => match unmeasured(work, remedy) {
            Some(unknown) => return unknown,
            None => Range::exactly(0.0),
        },
        Some(steerable_share) => steerable_share,
    };
    let weights = |scenario| {
        let mut weights = to_readers(work, steerable_share, scenario);
        let rest = 1.0 - steerable_share.of(scenario);
        for (cpu, share) in hashed(work, targets, scenario) {
            *weights.entry(cpu).or_default() += share * rest;
        }
        (weights, nearer(work, steerable_share, scenario))
    };
    steered(work, remedy, &targets.or(&readers(work)), &weights)
        .with(steerable(steerable_share))
        .not_when("the readers' cpus have no idle time left")
}

/// The verdict on aRFS: the device steers each flow to the queue nearest its reader, so all work
/// moves without inter-processor interrupts.
pub(super) fn arfs(work: &NetdevWork<'_>) -> RemedyVerdict {
    let remedy = RemedyName::Arfs;
    let driver = work.netdev.driver.as_deref().unwrap_or("its driver");
    if !has_arfs(work.netdev) {
        return RemedyVerdict::new(
            work,
            remedy,
            Outcome::NoClearChange,
            format!("{driver} does not support it"),
        );
    }
    let steerable_share = match steerable_share(work, remedy) {
        Ok(steerable_share) => steerable_share,
        Err(verdict) => return *verdict,
    };
    let ntuple = work.netdev.ethtool.as_ref().and_then(|ethtool| ethtool.feature(NTUPLE_FILTER));
    if in_effect(work) && ntuple.is_some_and(|feature| feature.active) {
        return RemedyVerdict::new(work, remedy, Outcome::NoClearChange, "it is on")
            .reasons(steerable(steerable_share));
    }
    let polled: CpuSet = work
        .silos
        .iter()
        .filter_map(|silo| silo.effective.as_ref())
        .flat_map(|cpus| cpus.iter().collect::<Vec<_>>())
        .collect();
    if polled.len() < 2 {
        let because = format!(
            "cpu {polled} polls all its queues: no queue is nearer to a reader, so spread its \
             interrupts first"
        );
        return RemedyVerdict::new(work, remedy, Outcome::NoClearChange, because)
            .reasons(steerable(steerable_share));
    }
    let after = |scenario: Scenario| {
        let mut loads = work.loads.clone();
        for (from, own) in &work.poll_share {
            for (reader, share) in work.readers() {
                let topology = &work.analysis.observation.after.topology;
                let Some(to) = polled.iter().min_by_key(|cpu| topology.distance(*cpu, reader))
                else {
                    continue;
                };
                add(&mut loads, *from, -own * share * steerable_share.of(scenario));
                add(&mut loads, to, own * share * steerable_share.of(scenario));
            }
        }
        loads
    };
    let effect = Effect::of(work, &polled, after);
    let saved = work.distance_cost().map_or(0.0, |cost| cost * steerable_share.best);
    let because = match effect.outcome() {
        Outcome::Help => {
            format!("{}; its readers run on other cpus ({})", effect.now(work), effect.between())
        }
        _ => format!(
            "{}; steering to the readers saves {} of a cpu at most",
            effect.now(work),
            percent(saved)
        ),
    };
    let mut reasons = steerable(steerable_share);
    reasons.push(Evidence::new(
        "cache line transfers from protocol to reader",
        Measure::Share(saved),
        work.costs_source.clone(),
    ));
    let bound = match effect.outcome() {
        Outcome::Help => effect.bound("no work moves"),
        _ if saved > 0.0 => Gain::AtMost {
            measure: Measure::Share(saved),
            of: "a cpu".into(),
            basis: "cache line transfers from protocol to reader, by the cost model".into(),
        },
        _ => Gain::Nothing("its data is read on the cpus that run the protocol".into()),
    };
    RemedyVerdict::new(work, remedy, effect.outcome(), because)
        .bound(bound)
        .reasons(reasons)
        .not_when("connections are short: each needs its own filter in the device")
}

/// The verdict "unknown" when the measurements that steering needs are missing.
fn unmeasured(work: &NetdevWork<'_>, remedy: RemedyName) -> Option<RemedyVerdict> {
    let unknown = |why: &str| Some(RemedyVerdict::new(work, remedy, Outcome::Unknown, why));
    if work.poll_share.is_empty() || work.loads.is_empty() {
        unknown("the cpus that poll it, and their time, are not known")
    } else {
        None
    }
}

/// The share of the bytes that RFS can steer, or the verdict when it can steer almost nothing or
/// the readers are not known.
fn steerable_share(work: &NetdevWork<'_>, remedy: RemedyName) -> Result<Range, Box<RemedyVerdict>> {
    let verdict = |outcome, why: &str| RemedyVerdict::new(work, remedy, outcome, why);
    if let Some(unknown) = unmeasured(work, remedy) {
        return Err(Box::new(unknown));
    }
    match work.steerable() {
        None if work.silos.iter().any(|silo| !silo.forwards.is_empty()) => Err(Box::new(verdict(
            Outcome::NoClearChange,
            "no process reads the traffic: it is forwarded",
        ))),
        None => {
            Err(Box::new(verdict(Outcome::Unknown, "the readers of the traffic are not known")))
        }
        Some(steerable_share) if steerable_share.best < 0.1 => {
            let because = format!(
                "{} of the bytes are read by unconnected UDP sockets: RFS steers only connected \
                 sockets",
                percent(1.0 - steerable_share.best)
            );
            Err(Box::new(
                verdict(Outcome::NoClearChange, &because).reasons(steerable(steerable_share)),
            ))
        }
        Some(steerable_share) => Ok(steerable_share),
    }
}

fn steerable(steerable_share: Range) -> Vec<Evidence> {
    let share = Measure::Share(steerable_share.likely);
    vec![Evidence::new("bytes read by connected sockets", share, "eBPF (udp and tcp reads)")]
}

/// Whether RFS is on: the global flow table, and the table of a queue with traffic.
pub(super) fn in_effect(work: &NetdevWork<'_>) -> bool {
    let table = work.analysis.observation.after.net.rps_sock_flow_entries.unwrap_or(0);
    table > 0
        && work.silos.iter().any(|silo| silo.has_traffic() && silo.rps_flow_cnt.unwrap_or(0) > 0)
}

fn readers(work: &NetdevWork<'_>) -> CpuSet {
    work.readers().into_keys().filter(|cpu| work.loads.contains_key(cpu)).collect()
}

/// The weights of RPS: flows spread over the targets by hash. The heaviest flow is not split, and
/// at most as many CPUs as flows are used.
fn hashed(work: &NetdevWork<'_>, targets: &CpuSet, scenario: Scenario) -> Weights {
    let flows = work.flows.unwrap_or(Flows {
        least: 1,
        most: None,
        heaviest: Range { worst: 1.0, likely: 0.0, best: 0.0 },
        source: "",
    });
    let count =
        if scenario == Scenario::Worst { flows.least } else { flows.most.unwrap_or(usize::MAX) };
    let mut cpus: Vec<CpuId> = targets.iter().filter(|cpu| work.loads.contains_key(cpu)).collect();
    // The heaviest flow goes to the busiest CPU; in the best scenario, to the idlest.
    cpus.sort_unstable_by(|a, b| work.idle(*a).total_cmp(&work.idle(*b)).then(a.cmp(b)));
    if scenario == Scenario::Best {
        cpus.reverse();
    }
    cpus.truncate(count.max(1));
    let first = flows.heaviest.of(scenario).max(1.0 / cpus.len().max(1) as f64);
    let rest = (1.0 - first) / (cpus.len() as f64 - 1.0).max(1.0);
    cpus.iter().enumerate().map(|(at, cpu)| (*cpu, if at == 0 { first } else { rest })).collect()
}

/// The weights of RFS: the steerable share, to the CPUs that read it.
fn to_readers(work: &NetdevWork<'_>, steerable_share: Range, scenario: Scenario) -> Weights {
    let known = readers(work);
    let readers = work.readers().into_iter().filter(|(cpu, _)| known.contains(*cpu));
    readers.map(|(cpu, share)| (cpu, share * steerable_share.of(scenario))).collect()
}

/// Share of a CPU's time that RFS saves: data is read, and the reader woken, on the CPU that runs
/// the protocol. 0 in the worst scenario.
fn nearer(work: &NetdevWork<'_>, steerable_share: Range, scenario: Scenario) -> f64 {
    let lines = work.distance_cost().unwrap_or(0.0) * steerable_share.of(scenario);
    let ipi = work.costs.ipi_ns.at(Distance::Llc) * work.interrupt_cost().worst.recip();
    let wakeups =
        work.wakeups_elsewhere().unwrap_or(0.0) * ipi / 1e9 * steerable_share.of(scenario);
    if scenario == Scenario::Worst { 0.0 } else { lines + wakeups }
}

/// The verdict on moving protocol work. `to` returns the weights and the saved CPU time of a
/// scenario.
fn steered(
    work: &NetdevWork<'_>,
    remedy: RemedyName,
    fixed: &CpuSet,
    to: &dyn Fn(Scenario) -> (Weights, f64),
) -> RemedyVerdict {
    let fixed = fixed.or(&work.poll_share.keys().copied().collect());
    let effect = Effect::of(work, &fixed, |scenario| {
        let (weights, saved) = to(scenario);
        move_work(work, &weights, saved, scenario).0
    });
    let (weights, saved) = to(Scenario::Likely);
    let (_, added) = move_work(work, &weights, saved, Scenario::Likely);
    let targets: CpuSet =
        weights.keys().copied().filter(|cpu| !work.poll_share.contains_key(cpu)).collect();
    let one_flow =
        work.flows.is_some_and(|flows| flows.most == Some(1) || flows.heaviest.best >= ONE_FLOW);
    // Moving one flow to one other CPU gains a little, but does not justify RPS.
    let many_would_help = effect.before.is_near() && effect.gain.likely >= CLEAR;
    let depends_on_flows = work.flows.is_none() && remedy == RemedyName::Rps;
    let outcome = match effect.outcome() {
        Outcome::Help if one_flow => Outcome::NoClearChange,
        Outcome::Help if depends_on_flows => Outcome::Unknown,
        Outcome::NoClearChange if depends_on_flows && many_would_help => Outcome::Unknown,
        outcome => outcome,
    };
    let adds = format!("{:.0} ipis/s, {} of a cpu in all", added.ipis, percent(added.time));
    let idle = percent(work.mean_idle(&targets));
    let because = match outcome {
        Outcome::Help => {
            format!(
                "{} while cpus {targets} are idle {idle} of the time ({})",
                effect.now(work),
                effect.between()
            )
        }
        Outcome::Hurt => format!("{}; it relieves no cpu and adds {adds}", effect.now(work)),
        Outcome::Unknown => {
            format!(
                "{}; whether it helps depends on the number of flows, which was not counted",
                effect.now(work)
            )
        }
        Outcome::NoClearChange if one_flow => {
            format!(
                "one flow carries nearly all packets: RPS cannot spread it, at best pipeline it \
                 ({})",
                effect.between()
            )
        }
        Outcome::NoClearChange if effect.before.is_near() => {
            format!("{}; {} ({adds})", effect.now(work), effect.between())
        }
        Outcome::NoClearChange => format!("{}; it would add {adds}", effect.now(work)),
    };
    let bound = match outcome {
        Outcome::Unknown => Gain::Unknown("the number of flows was not counted".into()),
        _ => effect.bound(&format!("the bottleneck stays saturated, and it adds {adds}")),
    };
    let mut reasons = machine(work, &targets);
    reasons.extend(split(work));
    reasons.push(Evidence::new(
        "ipis that it would send",
        Measure::PerSecond(added.ipis),
        "the model (docs/verdicts.md)",
    ));
    if let Some(packets) = work.packets_per_s.filter(|packets| *packets > 0.0) {
        reasons.push(Evidence::new(
            "ipis per packet",
            Measure::Text(format!("{:.2}", added.ipis / packets)),
            "the model (docs/verdicts.md)",
        ));
    }
    reasons.push(Evidence::new(
        "time that it would add, on all cpus",
        Measure::Share(added.time),
        work.costs_source.clone(),
    ));
    RemedyVerdict::new(work, remedy, outcome, because).bound(bound).reasons(reasons)
}

/// The loads after steering, and the cost that it adds. `saved` is CPU time that readers save.
fn move_work(
    work: &NetdevWork<'_>,
    weights: &Weights,
    saved: f64,
    scenario: Scenario,
) -> (Loads, Added) {
    let topology = &work.analysis.observation.after.topology;
    let (all, movable) =
        (work.total_poll_share().max(f64::MIN_POSITIVE), work.movable.of(scenario));
    let packets = work.packets_per_s.unwrap_or(all * 1e9 / PACKET_NS.of(scenario));
    let polls = work.polls_per_s.max(packets / PACKETS_OF_A_POLL);
    let (mut loads, mut added) = (work.loads.clone(), Added::default());
    for (from, own) in &work.poll_share {
        let part = own / all;
        for (to, share) in weights.iter().filter(|(to, _)| *to != from) {
            let distance = topology.distance(*from, *to);
            let work_off = own * movable * share;
            // A backlog that is being processed already needs no interrupt.
            let idle_backlog = if scenario == Scenario::Worst {
                1.0
            } else {
                1.0 - (all * movable * share).min(0.9)
            };
            let of_a_poll = (packets / polls.max(f64::MIN_POSITIVE)).max(1.0);
            let ipis = polls * part * (1.0 - (1.0 - share).powf(of_a_poll)) * idle_backlog;
            let moved_packets = packets * part * share;
            let ipi =
                ipis * work.costs.ipi_ns.at(distance) * work.interrupt_cost().of(scenario) / 1e9;
            let line = work.costs.line_ns.at(distance) / 1e9;
            let (here, there) = (
                ipi / 2.0 + moved_packets * QUEUE_LINES * line,
                ipi / 2.0 + moved_packets * work.costs.lines_per_packet * line,
            );
            let crowded = if scenario == Scenario::Best {
                0.0
            } else {
                SMT * work_off * (work.sibling_busy(*to) - work.sibling_busy(*from))
            };
            add(&mut loads, *from, here - work_off);
            add(&mut loads, *to, work_off + there + crowded - saved * part * share);
            added = Added {
                packets: added.packets + moved_packets,
                ipis: added.ipis + ipis,
                time: added.time + here + there,
            };
        }
    }
    (loads, added)
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
            Measure::Share(flows.heaviest.worst),
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
fn split(work: &NetdevWork<'_>) -> Vec<Evidence> {
    let Range { worst, best, .. } = work.movable;
    let between = Measure::Text(format!("{} to {}", percent(worst), percent(best)));
    let source = match work.samples {
        Some(samples) => format!("{samples:.0} samples by stage"),
        None => {
            "not measured, a bound (docs/verdicts.md); netsilo show --stages measures it".to_owned()
        }
    };
    vec![Evidence::new("softirq share after driver and GRO", between, source)]
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
