//! Verdicts on polling on more CPUs: spread interrupts, more queues, NAPI in kthreads.

use std::collections::BTreeMap;

use netsilo_model::change::{Settings, knobs};
use netsilo_model::derive::silo::Silo;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::snapshot::attribution::Protocol;
use netsilo_model::snapshot::ethtool::{FlowType, HashFields, Limit};
use netsilo_model::snapshot::host::Writable;
use netsilo_model::snapshot::netdev::NetdevIdentity;

use crate::judge::evidence::{Evidence, Gain, Measure};
use crate::judge::verdict::bottleneck::{Loads, add};
use crate::judge::verdict::effect::{CLEAR, Effect, percent};
use crate::judge::verdict::packet_steering::busy_queues;
use crate::judge::verdict::remedy_verdict::{Outcome, RemedyName, RemedyVerdict};
use crate::judge::verdict::work::{NetdevWork, Scenario};

/// Share of the work on one queue from which the hash does not spread the flows.
const ONE_QUEUE: f64 = 0.8;

/// The verdict on spreading interrupts: each queue on the least loaded CPU, the heaviest first.
pub(super) fn spread(work: &NetdevWork<'_>) -> RemedyVerdict {
    let remedy = RemedyName::SpreadInterrupts;
    let queues = busy_queues(work);
    let managed =
        |silo: &&Silo| silo.writable.as_ref().is_some_and(|writable| *writable != Writable::Yes);
    if work.poll_share.is_empty() {
        return RemedyVerdict::new(
            work,
            remedy,
            Outcome::Unknown,
            "the cpu that polls each queue is not known",
        );
    }
    if queues.iter().all(managed) {
        return RemedyVerdict::new(
            work,
            remedy,
            Outcome::NoClearChange,
            "its interrupts cannot be moved",
        );
    }
    if queues.len() < 2 {
        let because =
            match (queues.len(), work.silos.iter().filter(|silo| silo.queue.is_some()).count()) {
                (_, 1) => "it has one queue: moving the queue does not spread its work",
                _ => "one queue carries all packets: moving the queue does not spread its work",
            };
        return RemedyVerdict::new(work, remedy, Outcome::NoClearChange, because)
            .reasons(shares(work));
    }
    let own: Vec<f64> = queues.iter().map(|silo| silo.own_share.values().sum()).collect();
    let effect = spread_out(work, &|_| own.clone());
    let because = match effect.outcome() {
        Outcome::Help => {
            let (queues, cpus) = (queues.len(), work.poll_share.len());
            format!(
                "{}: {queues} queues share {cpus} cpu(s) ({})",
                effect.now(work),
                effect.between()
            )
        }
        _ => format!("{}; with interrupts spread: {}", effect.now(work), effect.between()),
    };
    RemedyVerdict::new(work, remedy, effect.outcome(), because)
        .bound(effect.bound("the bottleneck stays saturated"))
        .reasons(shares(work))
        .not_when(
            "another program places interrupts; netsilo plan shows the cpu for each interrupt",
        )
}

/// The verdict on more queues (ethtool channels).
pub(super) fn more(work: &NetdevWork<'_>) -> RemedyVerdict {
    let remedy = RemedyName::MoreQueues;
    let no_change = |because: String| {
        RemedyVerdict::new(work, remedy, Outcome::NoClearChange, because).reasons(shares(work))
    };
    let Some(limit) = channels(work) else {
        return no_change("its driver does not support changing the number of queues".into());
    };
    let wanted = limit.max.min(work.cpus().len() as u32);
    if limit.current >= wanted {
        let why = if limit.max < 2 {
            "the device has only one"
        } else {
            "it already has its maximum, or one per cpu"
        };
        return no_change(why.into());
    }
    if work.poll_share.is_empty() {
        return RemedyVerdict::new(
            work,
            remedy,
            Outcome::Unknown,
            "the cpu that polls each queue is not known",
        );
    }
    let all: f64 = work.total_poll_share();
    let heaviest = busy_queues(work)
        .iter()
        .map(|silo| silo.own_share.values().sum::<f64>())
        .fold(0.0, f64::max)
        / all.max(f64::MIN_POSITIVE);
    if limit.current > 1 && heaviest >= ONE_QUEUE {
        let because = format!(
            "one of {} queues carries {} of the work: the hash does not spread its flows, or one \
             flow carries it",
            limit.current,
            percent(heaviest)
        );
        return no_change(because);
    }
    if let Some(why) = ports_not_hashed(work) {
        return no_change(why);
    }
    let effect = spread_out(work, &|scenario| {
        let (count, flow) = match (&work.flows, scenario) {
            (Some(flows), _) => (
                if scenario == Scenario::Worst {
                    flows.least
                } else {
                    flows.most.unwrap_or(usize::MAX)
                },
                flows.heaviest.of(scenario),
            ),
            (None, Scenario::Worst) => (limit.current as usize, 0.0),
            (None, _) => (usize::MAX, 0.0),
        };
        let queues = (wanted as usize).min(count).max(1);
        let first = flow.max(1.0 / queues as f64);
        let rest = (1.0 - first) / (queues as f64 - 1.0).max(1.0);
        (0..queues).map(|at| all * if at == 0 { first } else { rest }).collect()
    });
    let near = effect.before.is_near();
    let outcome = match effect.outcome() {
        Outcome::NoClearChange if near && work.flows.is_none() && effect.gain.likely >= CLEAR => {
            Outcome::Unknown
        }
        outcome => outcome,
    };
    let because = match outcome {
        Outcome::Help => {
            format!(
                "{}: {} of {wanted} possible queues ({})",
                effect.now(work),
                limit.current,
                effect.between()
            )
        }
        Outcome::Unknown => format!(
            "{}; whether more queues relieve it depends on the number of flows, which was not \
             counted",
            effect.now(work)
        ),
        _ => format!(
            "{}; {wanted} queues instead of {}: {}",
            effect.now(work),
            limit.current,
            effect.between()
        ),
    };
    let bound = match outcome {
        Outcome::Unknown => Gain::Unknown("the number of flows was not counted".into()),
        _ => effect.bound("the bottleneck stays saturated"),
    };
    let mut reasons = shares(work);
    reasons.push(Evidence::new(
        "queues, of the maximum",
        Measure::Text(format!("{} of {}", limit.current, limit.max)),
        "ethtool -l",
    ));
    let verdict = RemedyVerdict::new(work, remedy, outcome, because).bound(bound).reasons(reasons);
    if outcome != Outcome::Help {
        return verdict;
    }
    let edit = |channels: &Settings| {
        let name = if channels.get("combined") > 0 { "combined" } else { "rx" };
        Some(channels.clone().with(name, wanted))
    };
    verdict
        .writes(
            work,
            knobs::Channels { netdev: NetdevIdentity::from_netdev(work.netdev) },
            edit,
            "one queue per cpu that can poll",
        )
        .not_when("traffic must not stop for the seconds that the device takes to reconfigure")
}

/// The verdict on threaded NAPI: one kthread per NAPI, which the scheduler can move.
pub(super) fn threaded(work: &NetdevWork<'_>) -> RemedyVerdict {
    let remedy = RemedyName::ThreadedNapi;
    let no_change =
        |because: String| RemedyVerdict::new(work, remedy, Outcome::NoClearChange, because);
    if work.netdev.threaded.is_none() {
        return no_change("this kernel does not support it (5.12 and later do)".into());
    }
    if work.netdev.threaded.is_some_and(|mode| mode > 0) {
        return no_change("it is on".into());
    }
    let queues = busy_queues(work);
    let fixed = queues
        .iter()
        .all(|silo| silo.writable.as_ref().is_some_and(|writable| *writable != Writable::Yes));
    if !fixed || queues.len() < 2 || work.poll_share.is_empty() {
        let why = if queues.len() < 2 {
            "one queue needs one kthread, which also runs on one cpu at a time"
        } else {
            "its interrupts can be spread, which costs no context switch per poll"
        };
        return no_change(why.into());
    }
    let shares: Vec<f64> = queues.iter().map(|silo| silo.own_share.values().sum()).collect();
    let effect = spread_out(work, &|_| shares.clone());
    let because = format!(
        "{}; its interrupts cannot be moved, but kthreads can: {}",
        effect.now(work),
        effect.between()
    );
    let verdict = RemedyVerdict::new(work, remedy, effect.outcome(), because)
        .bound(effect.bound("the bottleneck stays saturated"))
        .reasons(self::shares(work))
        .not_when("latency matters more than throughput: each poll waits for the scheduler");
    if verdict.outcome != Outcome::Help {
        return verdict;
    }
    let reason = "its interrupts cannot be moved, but kthreads can run on idle cpus";
    let knob = knobs::Threaded { netdev: NetdevIdentity::from_netdev(work.netdev) };
    verdict.writes(work, knob, |_| Some(1), reason)
}

/// The effect of placing each queue's work on the CPU that is then least loaded.
fn spread_out(work: &NetdevWork<'_>, queues: &dyn Fn(Scenario) -> Vec<f64>) -> Effect {
    let topology = &work.analysis.observation.after.topology;
    let cpus = work.cpus().minus(&topology.reserved());
    let cpus = if cpus.is_empty() { work.cpus() } else { cpus };
    let placed = |scenario: Scenario| -> (Loads, CpuSet) {
        let mut loads = work.loads.clone();
        work.poll_share.iter().for_each(|(cpu, own)| add(&mut loads, *cpu, -own));
        let mut used = CpuSet::new();
        let mut queues = queues(scenario);
        queues.sort_unstable_by(|a, b| b.total_cmp(a));
        for queue in queues {
            let least = cpus.iter().min_by(|a, b| {
                let load = |cpu: &CpuId| loads.get(cpu).map_or(1.0, |load| load.busy + load.bound);
                load(a).total_cmp(&load(b))
            });
            let Some(cpu) = least else { continue };
            add(&mut loads, cpu, queue);
            used.insert(cpu);
        }
        (loads, used)
    };
    let fixed = placed(Scenario::Worst).1.or(&work.poll_share.keys().copied().collect());
    Effect::of(work, &fixed, |scenario| placed(scenario).0)
}

/// The work of each queue, as evidence.
fn shares(work: &NetdevWork<'_>) -> Vec<Evidence> {
    let mut reasons = Vec::new();
    for silo in busy_queues(work) {
        let own: f64 = silo.own_share.values().sum();
        let cpus: CpuSet = silo.own_share.keys().copied().collect();
        reasons.push(Evidence::new(
            format!("{} on cpus {cpus}", silo.label()),
            Measure::Share(own),
            "NET_RX time by packets polled",
        ));
    }
    reasons
}

fn channels(work: &NetdevWork<'_>) -> Option<Limit> {
    let channels = work.netdev.ethtool.as_ref()?.channels.value()?;
    channels.combined.filter(|limit| limit.max > 0).or(channels.rx)
}

/// The reason why UDP stays on one queue: the hash ignores ports, so all flows between two hosts
/// share a queue.
fn ports_not_hashed(work: &NetdevWork<'_>) -> Option<String> {
    let mut bytes: BTreeMap<Protocol, f64> = BTreeMap::new();
    for consumer in work.silos.iter().flat_map(|silo| &silo.consumers) {
        for protocol in &consumer.protocols {
            *bytes.entry(*protocol).or_default() +=
                consumer.bytes_per_s / consumer.protocols.len() as f64;
        }
    }
    let of = |protocol| bytes.get(&protocol).copied().unwrap_or(0.0);
    let mostly_udp = of(Protocol::Udp) > of(Protocol::Tcp) * 4.0;
    let fields = work.netdev.ethtool.as_ref()?.flow_hash.get(&FlowType::Udp4)?.value()?;
    (mostly_udp && !fields.contains(HashFields::PORTS)).then(|| {
        "the traffic is UDP, and its ports are not hashed: all flows of one peer stay on one queue"
            .into()
    })
}
