//! Verdicts on polling on other CPUs: placed interrupts, more queues, NAPI in kthreads.

use std::collections::BTreeMap;

use netsilo_model::change::{Change, Knob, Settings, Target, knobs};
use netsilo_model::derive::silo::Silo;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::snapshot::attribution::Protocol;
use netsilo_model::snapshot::ethtool::{FlowType, HashFields, Limit};
use netsilo_model::snapshot::host::NAPI_SETTINGS;
use netsilo_model::snapshot::host::Writable;
use netsilo_model::snapshot::netdev::NetdevIdentity;
use netsilo_predict::live::claim::{CLEAR, Claim};

use crate::judge::evidence::{Evidence, Gain, Measure};
use crate::judge::verdict::effect::{Effect, percent, unjudged};
use crate::judge::verdict::look::NetdevLook;
use crate::judge::verdict::remedy_verdict::{RemedyName, RemedyVerdict};
use crate::plan::Plan;
use crate::plan::moves::{kept, moves_one_of};

/// Share of the work on one queue from which the hash does not spread the flows.
const ONE_QUEUE: f64 = 0.8;

/// The verdict on spreading interrupts and kthreads, as `netsilo plan --algorithm spread` does: on
/// all netdevs, because they share CPUs.
pub(super) fn spread(look: &NetdevLook<'_>, spread: &Plan) -> RemedyVerdict {
    let remedy = RemedyName::SpreadInterrupts;
    let no_change = |because: String| {
        RemedyVerdict::new(look, remedy, Claim::NoClearChange, because).reasons(shares(look))
    };
    let queues = look.queues();
    if look.received.pollers().is_empty() || look.received.is_unmapped() {
        let because = "the cpu that polls each queue is not known";
        return RemedyVerdict::new(look, remedy, Claim::Unknown, because);
    }
    if queues.iter().all(|silo| is_fixed(silo)) {
        return no_change("its interrupts cannot be moved".into());
    }
    let moved = |change: &&Change| moves_one_of(change, &queues);
    if !spread.changes.iter().any(|change| moved(&change)) {
        return no_change(kept(spread, &queues));
    }
    let effect = match Effect::of(look, &spread.changes) {
        Ok(effect) => effect,
        Err(why) => return unjudged(look, remedy, why),
    };
    let because = match effect.claim {
        Claim::Help => {
            let (queues, cpus) = (queues.len(), look.received.pollers().len());
            format!(
                "{}: {queues} queues share {cpus} cpu(s) ({})",
                effect.now(look),
                effect.between()
            )
        }
        _ => format!("{}; with interrupts spread: {}", effect.now(look), effect.between()),
    };
    RemedyVerdict::new(look, remedy, effect.claim, because)
        .gain(effect.as_gain())
        .reasons(shares(look))
        .calls_for(Claim::Help, spread.changes.clone())
        .not_when(
            "another program places interrupts; netsilo plan --algorithm spread shows the cpu for \
             each",
        )
}

/// Whether nothing can move the queue's interrupt.
fn is_fixed(silo: &Silo) -> bool {
    silo.ignores_affinity || silo.writable.as_ref().is_some_and(|it| *it != Writable::Yes)
}

/// The verdict on more queues (ethtool channels).
pub(super) fn more(look: &NetdevLook<'_>) -> RemedyVerdict {
    let remedy = RemedyName::MoreQueues;
    let no_change = |because: String| {
        RemedyVerdict::new(look, remedy, Claim::NoClearChange, because).reasons(shares(look))
    };
    let Some(limit) = channels(look) else {
        return no_change("its driver does not support changing the number of queues".into());
    };
    let wanted = limit.max.min(look.work.usable().len() as u32);
    if limit.current >= wanted {
        let why = if limit.max < 2 {
            "the device has only one"
        } else {
            "it already has its maximum, or one per cpu"
        };
        return no_change(why.into());
    }
    if look.received.pollers().is_empty() || look.received.is_unmapped() {
        return RemedyVerdict::new(
            look,
            remedy,
            Claim::Unknown,
            "the cpu that polls each queue is not known",
        );
    }
    let all: f64 = look.received.poll_share().values().sum();
    let heaviest =
        look.queues().iter().map(|silo| silo.own_share.values().sum::<f64>()).fold(0.0, f64::max)
            / all.max(f64::MIN_POSITIVE);
    let queues = limit.current as usize;
    let flows = look.received.flows();
    if flows.is_some_and(|flows| flows.most.is_some_and(|most| most <= queues)) {
        return no_change("there are no more flows than queues to spread".into());
    }
    if limit.current > 1 && heaviest >= ONE_QUEUE {
        let because = format!(
            "one of {} queues carries {} of the work: the hash does not spread its flows, or one \
             flow carries it",
            limit.current,
            percent(heaviest)
        );
        return no_change(because);
    }
    if let Some(why) = ports_not_hashed(look) {
        return no_change(why);
    }
    let knob = knobs::Channels { netdev: NetdevIdentity::from_netdev(look.netdev) };
    let edit = |channels: &Settings| {
        let name = if channels.get("combined") > 0 { "combined" } else { "rx" };
        Some(channels.clone().with(name, wanted))
    };
    let changes = changes(look, knob, edit, "one queue per cpu that can poll");
    let effect = match Effect::of(look, &changes) {
        Ok(effect) => effect,
        Err(why) => return unjudged(look, remedy, why),
    };
    let gains = effect.is_near() && effect.gain.value >= CLEAR;
    let claim = match effect.claim {
        Claim::Help | Claim::NoClearChange if gains && flows.is_none() => Claim::Unknown,
        claim => claim,
    };
    let because = match claim {
        Claim::Help => {
            format!(
                "{}: {} of {wanted} possible queues ({})",
                effect.now(look),
                limit.current,
                effect.between()
            )
        }
        Claim::Unknown => format!(
            "{}; whether more queues relieve it depends on the number of flows, which was not \
             counted",
            effect.now(look)
        ),
        _ => format!(
            "{}; {wanted} queues instead of {}: {}",
            effect.now(look),
            limit.current,
            effect.between()
        ),
    };
    let gain = match claim {
        Claim::Unknown => Gain::Unknown("the number of flows was not counted".into()),
        _ => effect.as_gain(),
    };
    let mut reasons = shares(look);
    reasons.push(Evidence::new(
        "queues, of the maximum",
        Measure::Text(format!("{} of {}", limit.current, limit.max)),
        "ethtool -l",
    ));
    RemedyVerdict::new(look, remedy, claim, because)
        .gain(gain)
        .reasons(reasons)
        .calls_for(Claim::Help, changes)
        .not_when("traffic must not stop for the seconds that the device takes to reconfigure")
}

/// The verdict on threaded NAPI: one kthread per NAPI, which the scheduler can move.
pub(super) fn threaded(look: &NetdevLook<'_>) -> RemedyVerdict {
    let remedy = RemedyName::ThreadedNapi;
    let no_change =
        |because: String| RemedyVerdict::new(look, remedy, Claim::NoClearChange, because);
    if look.netdev.threaded.is_none() && look.analysis.after().was_not_recorded(NAPI_SETTINGS) {
        let because = "whether it is on was not recorded";
        return RemedyVerdict::new(look, remedy, Claim::Unknown, because);
    }
    if look.netdev.threaded.is_none() {
        return no_change("this kernel does not support it (5.12 and later do)".into());
    }
    if look.netdev.threaded.is_some_and(|mode| mode > 0) {
        return no_change("it is on".into());
    }
    if look.received.is_unmapped() {
        let because = "the cpu that polls each queue is not known";
        return RemedyVerdict::new(look, remedy, Claim::Unknown, because);
    }
    let queues = look.queues();
    let fixed = queues.iter().all(|silo| is_fixed(silo));
    if !fixed || queues.len() < 2 || look.received.pollers().is_empty() {
        let why = if queues.len() < 2 {
            "one queue needs one kthread, which also runs on one cpu at a time"
        } else {
            "its interrupts can be spread, which costs no context switch per poll"
        };
        return no_change(why.into());
    }
    let knob = knobs::Threaded { netdev: NetdevIdentity::from_netdev(look.netdev) };
    let reason = "its interrupts cannot be moved, but kthreads can run on idle cpus";
    let changes = changes(look, knob, |_| Some(1), reason);
    let effect = match Effect::of(look, &changes) {
        Ok(effect) => effect,
        Err(why) => return unjudged(look, remedy, why),
    };
    let because = format!(
        "{}; its interrupts cannot be moved, but kthreads can: {}",
        effect.now(look),
        effect.between()
    );
    RemedyVerdict::new(look, remedy, effect.claim, because)
        .gain(effect.as_gain())
        .reasons(self::shares(look))
        .calls_for(Claim::Help, changes)
        .not_when("latency matters more than throughput: each poll waits for the scheduler")
}

/// The change of one knob; none if the snapshot lacks it or `edit` yields the same value.
fn changes<K: Knob + Into<Target>>(
    look: &NetdevLook<'_>,
    knob: K,
    edit: impl FnOnce(&K::Value) -> Option<K::Value>,
    reason: &str,
) -> Vec<Change> {
    let after = look.analysis.after();
    let new = knob.value_in(after).and_then(|old| edit(&old));
    new.and_then(|new| Change::of(after, knob, new, reason)).into_iter().collect()
}

/// The work of each queue, as evidence.
fn shares(look: &NetdevLook<'_>) -> Vec<Evidence> {
    let mut reasons = Vec::new();
    for silo in look.queues() {
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

fn channels(look: &NetdevLook<'_>) -> Option<Limit> {
    let channels = look.netdev.ethtool.as_ref()?.channels.value()?;
    channels.combined.filter(|limit| limit.max > 0).or(channels.rx)
}

/// The reason why UDP stays on one queue: the hash ignores ports, so all flows between two hosts
/// share a queue.
fn ports_not_hashed(look: &NetdevLook<'_>) -> Option<String> {
    let mut bytes: BTreeMap<Protocol, f64> = BTreeMap::new();
    for consumer in look.received.silos().flat_map(|silo| &silo.consumers) {
        for protocol in &consumer.protocols {
            *bytes.entry(*protocol).or_default() +=
                consumer.bytes_per_s / consumer.protocols.len() as f64;
        }
    }
    let of = |protocol| bytes.get(&protocol).copied().unwrap_or(0.0);
    let mostly_udp = of(Protocol::Udp) > of(Protocol::Tcp) * 4.0;
    let fields = look.netdev.ethtool.as_ref()?.flow_hash.get(&FlowType::Udp4)?.value()?;
    (mostly_udp && !fields.contains(HashFields::PORTS)).then(|| {
        "the traffic is UDP, and its ports are not hashed: all flows of one peer stay on one queue"
            .into()
    })
}
