//! More places to poll in: interrupts on CPUs of their own, more queues, NAPI in kthreads.

use std::collections::BTreeMap;

use super::steer::busy_queues;
use super::wall::{Loads, add};
use super::work::{Sight, Work};
use super::{Effect, Outcome, RemedyName, Verdict, percent};
use crate::attribution::Protocol;
use crate::change::{NetdevIdentity, Settings, knobs};
use crate::cpuset::{CpuId, CpuSet};
use crate::diagnose::{Evidence, Gain, Measure};
use crate::ethtool::{FlowType, HashFields, Limit};
use crate::host::Writable;
use crate::silo::Silo;

/// A queue that brings more than this of the packets is where the hash puts nearly all.
const ONE_QUEUE: f64 = 0.8;

/// Each queue with traffic on the CPU that is used least, the heaviest queue first.
pub(super) fn spread(work: &Work<'_>) -> Verdict {
    let remedy = RemedyName::SpreadInterrupts;
    let queues = busy_queues(work);
    let managed =
        |silo: &&Silo| silo.writable.as_ref().is_some_and(|writable| *writable != Writable::Yes);
    if work.own.is_empty() {
        return Verdict::new(
            work,
            remedy,
            Outcome::Unknown,
            "which cpu polls which queue is not known",
        );
    }
    if queues.iter().all(managed) {
        return Verdict::new(
            work,
            remedy,
            Outcome::NoClearChange,
            "its interrupts cannot be moved",
        );
    }
    if queues.len() < 2 {
        let because =
            match (queues.len(), work.silos.iter().filter(|silo| silo.queue.is_some()).count()) {
                (_, 1) => "it has one queue: on another cpu it is one queue still",
                _ => "one queue brings all packets: its cpu would change, not its load",
            };
        return Verdict::new(work, remedy, Outcome::NoClearChange, because).reasons(shares(work));
    }
    let own: Vec<f64> = queues.iter().map(|silo| silo.own_share.values().sum()).collect();
    let effect = spread_out(work, &|_| own.clone());
    let because = match effect.outcome() {
        Outcome::Help => {
            let (queues, cpus) = (queues.len(), work.own.len());
            format!(
                "{}: {queues} queues have {cpus} cpu(s) between them ({})",
                effect.now(work),
                effect.between()
            )
        }
        _ => format!("{}; spread wider: {}", effect.now(work), effect.between()),
    };
    Verdict::new(work, remedy, effect.outcome(), because)
        .bound(effect.bound("what is full stays full"))
        .reasons(shares(work))
        .not_when("another program places interrupts; netsilo plan says where each would go")
}

/// More channels, where the device has them.
pub(super) fn more(work: &Work<'_>) -> Verdict {
    let remedy = RemedyName::MoreQueues;
    let no_change = |because: String| {
        Verdict::new(work, remedy, Outcome::NoClearChange, because).reasons(shares(work))
    };
    let Some(limit) = channels(work) else {
        return no_change("its driver does not let the number of queues be changed".into());
    };
    let wanted = limit.max.min(work.cpus().len() as u32);
    if limit.current >= wanted {
        let why = if limit.max < 2 {
            "the device has one"
        } else {
            "it has as many as it can have, or as there are cpus"
        };
        return no_change(why.into());
    }
    if work.own.is_empty() {
        return Verdict::new(
            work,
            remedy,
            Outcome::Unknown,
            "which cpu polls which queue is not known",
        );
    }
    let all: f64 = work.all();
    let heaviest = busy_queues(work)
        .iter()
        .map(|silo| silo.own_share.values().sum::<f64>())
        .fold(0.0, f64::max)
        / all.max(f64::MIN_POSITIVE);
    if limit.current > 1 && heaviest >= ONE_QUEUE {
        let because = format!(
            "one of {} queues brings {} of the work: the hash does not tell its flows apart, or one flow brings it",
            limit.current,
            percent(heaviest)
        );
        return no_change(because);
    }
    if let Some(why) = ports_not_hashed(work) {
        return no_change(why);
    }
    let effect = spread_out(work, &|sight| {
        let (count, flow) = match (&work.flows, sight) {
            (Some(flows), _) => (
                if sight == Sight::Worst { flows.least } else { flows.most.unwrap_or(usize::MAX) },
                flows.heaviest.of(sight),
            ),
            (None, Sight::Worst) => (limit.current as usize, 0.0),
            (None, _) => (usize::MAX, 0.0),
        };
        let queues = (wanted as usize).min(count).max(1);
        let first = flow.max(1.0 / queues as f64);
        let rest = (1.0 - first) / (queues as f64 - 1.0).max(1.0);
        (0..queues).map(|at| all * if at == 0 { first } else { rest }).collect()
    });
    let near = effect.before.is_near();
    let outcome = match effect.outcome() {
        Outcome::NoClearChange
            if near && work.flows.is_none() && effect.gain.likely >= super::CLEAR =>
        {
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
            "{}; whether more queues relieve it hangs on how many flows there are, which was not counted",
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
        Outcome::Unknown => Gain::Unknown("how many flows there are was not counted".into()),
        _ => effect.bound("what is full stays full"),
    };
    let mut reasons = shares(work);
    reasons.push(Evidence::new(
        "queues, and at most",
        Measure::Text(format!("{} of {}", limit.current, limit.max)),
        "ethtool -l",
    ));
    let verdict = Verdict::new(work, remedy, outcome, because).bound(bound).reasons(reasons);
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
            knobs::Channels { netdev: NetdevIdentity::of(work.netdev) },
            edit,
            "one queue for each cpu that can poll",
        )
        .not_when("traffic must not stop for the seconds that the device is set up anew")
}

/// A kthread for each NAPI, which the scheduler may move.
pub(super) fn threaded(work: &Work<'_>) -> Verdict {
    let remedy = RemedyName::ThreadedNapi;
    let no_change = |because: String| Verdict::new(work, remedy, Outcome::NoClearChange, because);
    if work.netdev.threaded.is_none() {
        return no_change("this kernel has none (5.12 and later)".into());
    }
    if work.netdev.threaded.is_some_and(|mode| mode > 0) {
        return no_change("it is on".into());
    }
    let queues = busy_queues(work);
    let fixed = queues
        .iter()
        .all(|silo| silo.writable.as_ref().is_some_and(|writable| *writable != Writable::Yes));
    if !fixed || queues.len() < 2 || work.own.is_empty() {
        let why = if queues.len() < 2 {
            "one queue is one kthread: one cpu at a time, as now"
        } else {
            "its interrupts can be spread, which costs no switch of threads for each poll"
        };
        return no_change(why.into());
    }
    let shares: Vec<f64> = queues.iter().map(|silo| silo.own_share.values().sum()).collect();
    let effect = spread_out(work, &|_| shares.clone());
    let because = format!(
        "{}; its interrupts cannot be moved, kthreads can: {}",
        effect.now(work),
        effect.between()
    );
    let verdict = Verdict::new(work, remedy, effect.outcome(), because)
        .bound(effect.bound("what is full stays full"))
        .reasons(self::shares(work))
        .not_when("latency matters more than throughput: each poll waits for the scheduler");
    if verdict.outcome != Outcome::Help {
        return verdict;
    }
    let reason = "its interrupts cannot be moved, kthreads go where there is room";
    let knob = knobs::Threaded { netdev: NetdevIdentity::of(work.netdev) };
    verdict.writes(work, knob, |_| Some(1), reason)
}

/// The work of each queue, each put on the CPU that then has least to do.
fn spread_out(work: &Work<'_>, queues: &dyn Fn(Sight) -> Vec<f64>) -> Effect {
    let topology = &work.seen.observation.after.topology;
    let cpus = work.cpus().minus(&topology.set_apart());
    let cpus = if cpus.is_empty() { work.cpus() } else { cpus };
    let placed = |sight: Sight| -> (Loads, CpuSet) {
        let mut loads = work.loads.clone();
        work.own.iter().for_each(|(cpu, own)| add(&mut loads, *cpu, -own));
        let mut used = CpuSet::new();
        let mut queues = queues(sight);
        queues.sort_by(|a, b| b.total_cmp(a));
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
    let fixed = placed(Sight::Worst).1.or(&work.own.keys().copied().collect());
    Effect::of(work, &fixed, |sight| placed(sight).0)
}

/// How the work lies on the queues and CPUs.
fn shares(work: &Work<'_>) -> Vec<Evidence> {
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

fn channels(work: &Work<'_>) -> Option<Limit> {
    let channels = work.netdev.ethtool.as_ref()?.channels.value()?;
    channels.combined.filter(|limit| limit.max > 0).or(channels.rx)
}

/// UDP whose ports the hash ignores: flows between two hosts stay on one queue, however many there
/// are.
fn ports_not_hashed(work: &Work<'_>) -> Option<String> {
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
    (mostly_udp && !fields.contains(HashFields::PORTS))
        .then(|| "what arrives is UDP, and its ports are not in the hash: flows of one peer stay on one queue".into())
}
