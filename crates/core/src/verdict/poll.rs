//! How often and how long it is polled, and what the ring holds until then.

use super::steer::rps_is_on;
use super::wall::FULL;
use super::work::Work;
use super::{Outcome, RemedyName, Verdict, percent};
use crate::change::{NetdevIdentity, Settings, Words, knobs};
use crate::diagnose::{Evidence, Gain, Measure};
use crate::host::Netdev;

/// Counters of what found no room at the NIC; a driver counts some of them twice, so the greatest
/// is taken.
const LOST: [&str; 3] = ["rx_missed_errors", "rx_fifo_errors", "rx_over_errors"];
/// Packets of one run of the softirq.
const BUDGET: &str = "net.core.netdev_budget";
/// What makes readers poll, of the whole machine.
const BUSY: [&str; 2] = ["net.core.busy_read", "net.core.busy_poll"];
/// Softirq runs that end with work left are worth a word from this share on.
const SQUEEZED: f64 = 0.01;

/// A longer ring holds a burst; it does not make the CPU faster.
pub(super) fn ring(work: &Work<'_>) -> Verdict {
    let remedy = RemedyName::BiggerRing;
    let Some(lost) = lost(work) else {
        return Verdict::new(
            work,
            remedy,
            Outcome::Unknown,
            "its driver does not count what found no room",
        );
    };
    let reasons = vec![Evidence::new(
        "packets that found no room",
        Measure::PerSecond(lost),
        "/sys/class/net/*/statistics",
    )];
    let no_change = |because: &str| {
        Verdict::new(work, remedy, Outcome::NoClearChange, because).reasons(reasons.clone())
    };
    let rings = work.netdev.ethtool.as_ref().and_then(|ethtool| ethtool.rings.value()?.rx);
    let full = dispatcher_bound(work).is_some_and(|bound| bound >= FULL);
    match rings {
        _ if lost <= 0.0 => no_change("nothing was lost for want of room in it"),
        _ if full => no_change("the cpu that polls it is full: a longer ring fills up too, later"),
        None => no_change("its driver does not let it be changed"),
        Some(limit) if limit.current >= limit.max => no_change("it is as long as it can be"),
        Some(limit) => {
            let because = format!(
                "bursts overflow it, and the cpu that polls it has time: {} of {} descriptors",
                limit.current, limit.max
            );
            let edit = |rings: &Settings| {
                Some(rings.clone().with("rx", limit.current.saturating_mul(2).min(limit.max)))
            };
            let knob = knobs::Rings { netdev: NetdevIdentity::of(work.netdev) };
            let verdict = Verdict::new(work, remedy, Outcome::Help, because)
                .bound(losses(lost))
                .reasons(reasons);
            verdict.writes(work, knob, edit, "twice the ring holds twice the burst").not_when(
                "the data should stay in the cache (a ring larger than what the device may write there), or latency counts more than loss",
            )
        }
    }
}

/// More packets before the softirq gives way. What is left is taken up again at once, by ksoftirqd
/// if need be.
pub(super) fn budget(work: &Work<'_>) -> Verdict {
    let remedy = RemedyName::BiggerBudget;
    let rates = work.own.keys().filter_map(|cpu| work.seen.rates.cpus.get(cpu));
    let (mut squeezes, mut runs, mut known) = (0.0, 0.0, false);
    for rate in rates {
        if let Some(squeezed) = rate.softnet.and_then(|softnet| softnet.time_squeeze_per_s) {
            (squeezes, known) = (squeezes + squeezed, true);
            runs += rate.net_rx_per_s.unwrap_or(0.0);
        }
    }
    if !known {
        return Verdict::new(
            work,
            remedy,
            Outcome::Unknown,
            "which cpu polls it, or its squeezes, are not known",
        );
    }
    let share = if runs > 0.0 { squeezes / runs } else { 0.0 };
    let source = "/proc/net/softnet_stat time_squeeze";
    let reasons = vec![
        Evidence::new("runs that ended with work left", Measure::PerSecond(squeezes), source),
        Evidence::new("of all runs", Measure::Share(share), source),
    ];
    let full = dispatcher_bound(work).is_some_and(|bound| bound >= FULL);
    let lost = lost(work).unwrap_or(0.0);
    let verdict = |outcome, because: &str| {
        Verdict::new(work, remedy, outcome, because).reasons(reasons.clone())
    };
    if share < SQUEEZED {
        verdict(Outcome::NoClearChange, "hardly a run used its budget up")
    } else if lost <= 0.0 {
        verdict(
            Outcome::NoClearChange,
            "runs use it up, but nothing is lost: what is left is polled again at once",
        )
    } else if full {
        verdict(
            Outcome::NoClearChange,
            "the cpu that polls it is full: a longer run takes its time from what is left of others'",
        )
    } else {
        verdict(
            Outcome::Help,
            "runs end with work left while packets are lost, and the cpu that polls has time",
        )
        .bound(losses(lost))
        .writes(work, knobs::Sysctl { name: BUDGET.into() }, twice, "runs end with work left")
        .not_when("applications on that cpu need to run soon: they wait for the end of each run")
    }
}

fn twice(old: &Words) -> Option<Words> {
    Some(Words::new(&old.as_str().parse::<u32>().ok()?.checked_mul(2)?.to_string()))
}

/// Readers that spin for packets: it takes CPU time for latency, and latency is not measured here.
pub(super) fn busy_poll(work: &Work<'_>) -> Verdict {
    let remedy = RemedyName::BusyPoll;
    let idle = work.mean_idle(&work.cpus());
    let reasons = vec![Evidence::new(
        format!("all {} cpus idle", work.loads.len()),
        Measure::Share(idle),
        "/proc/stat",
    )];
    let sysctls = &work.seen.observation.after.net.sysctls;
    let on = BUSY.iter().find(|name| sysctls.get(**name).is_some_and(|value| value.trim() != "0"));
    let verdict = |outcome, because: &str| {
        Verdict::new(work, remedy, outcome, because).reasons(reasons.clone())
    };
    if let Some(name) = on {
        verdict(Outcome::NoClearChange, &format!("it is on ({name})"))
    } else if rps_is_on(work) {
        verdict(
            Outcome::NoClearChange,
            "RPS is on: a reader that polls finds packets only where they are polled",
        )
    } else if 1.0 - idle >= FULL {
        verdict(
            Outcome::Hurt,
            &format!("it spends idle time, and the cpus have {} of it left", percent(idle)),
        )
    } else {
        verdict(
            Outcome::Unknown,
            "it buys latency with cpu time, and latency is not measured by looking at a machine",
        )
    }
}

/// Packets per second that the NIC or its ring had no room for.
fn lost(work: &Work<'_>) -> Option<f64> {
    let rates = work.seen.rates.netdevs.get(&work.netdev.name)?;
    let counted = LOST.iter().filter_map(|name| rates.get(*name).copied());
    let by_queue = queue_drops(work.netdev, &work.seen.observation.before.netdevs)
        .map(|drops| drops / work.seen.rates.elapsed.as_secs_f64());
    counted.chain(by_queue).reduce(f64::max)
}

/// igb, ice and others count drops by queue in `ethtool -S` only (`rx_queue_0_drops`).
fn queue_drops(netdev: &Netdev, before: &[Netdev]) -> Option<f64> {
    let sum = |netdev: &Netdev| -> Option<u64> {
        let stats = netdev.ethtool.as_ref()?.stats.value()?;
        let drops = stats
            .iter()
            .filter(|(name, _)| name.starts_with("rx_queue_") && name.ends_with("_drops"));
        Some(drops.map(|(_, count)| *count).fold(0, u64::saturating_add))
    };
    let old = before.iter().find(|old| old.ifindex == netdev.ifindex && old.name == netdev.name)?;
    Some(sum(netdev)?.checked_sub(sum(old)?)? as f64)
}

fn losses(lost: f64) -> Gain {
    Gain::AtMost {
        measure: Measure::PerSecond(lost),
        of: "the packets that are lost".into(),
        basis: "no more can be saved than found no room".into(),
    }
}

/// Share of its time that the CPU that polls most spends on interrupts and softirqs.
fn dispatcher_bound(work: &Work<'_>) -> Option<f64> {
    Some(work.loads.get(&work.dispatcher()?)?.bound)
}
