//! Verdicts on the receive ring, the softirq budget and busy polling.

use netsilo_model::change::{Settings, Words, knobs};
use netsilo_model::snapshot::netdev::NetdevIdentity;
use netsilo_predict::limit::FULL;
use netsilo_predict::live::claim::Claim;

use crate::judge::evidence::{Evidence, Gain, Measure};
use crate::judge::ledger::queue_drops;
use crate::judge::limits::raised;
use crate::judge::verdict::effect::percent;
use crate::judge::verdict::look::NetdevLook;
use crate::judge::verdict::packet_steering::rps_is_on;
use crate::judge::verdict::remedy_verdict::{RemedyName, RemedyVerdict};

/// Counters of packets lost at the NIC or its ring. Drivers may count a packet in several of them,
/// so the largest is taken.
const LOST: [&str; 3] = ["rx_missed_errors", "rx_fifo_errors", "rx_over_errors"];
/// The limit of packets in one softirq run.
const BUDGET: &str = "net.core.netdev_budget";
/// The sysctls that switch busy polling on for all sockets.
const BUSY: [&str; 2] = ["net.core.busy_read", "net.core.busy_poll"];
/// Share of softirq runs that end with work left from which a larger budget is considered.
const SQUEEZED: f64 = 0.01;

/// The verdict on a larger ring, which holds bursts but does not make the CPU faster.
pub(super) fn ring(look: &NetdevLook<'_>) -> RemedyVerdict {
    let remedy = RemedyName::BiggerRing;
    let Some(lost) = lost(look) else {
        return RemedyVerdict::new(
            look,
            remedy,
            Claim::Unknown,
            "its driver does not count packets lost at the ring",
        );
    };
    let reasons = vec![Evidence::new(
        "packets lost at the NIC or its ring",
        Measure::PerSecond(lost),
        "/sys/class/net/*/statistics",
    )];
    let no_change = |because: &str| {
        RemedyVerdict::new(look, remedy, Claim::NoClearChange, because).reasons(reasons.clone())
    };
    let rings = look.netdev.ethtool.as_ref().and_then(|ethtool| ethtool.rings.value()?.rx);
    let full = dispatcher_bound(look).is_some_and(|bound| bound >= FULL);
    match rings {
        _ if lost <= 0.0 => no_change("no packets were lost at the ring"),
        _ if full => {
            no_change("the cpu that polls it is saturated: a larger ring fills up too, only later")
        }
        None => no_change("its driver does not support changing it"),
        Some(limit) if limit.current >= limit.max => no_change("it is already at its maximum size"),
        Some(limit) => {
            let because = format!(
                "bursts overflow it, and the cpu that polls it has idle time: {} of {} descriptors",
                limit.current, limit.max
            );
            let edit = |rings: &Settings| {
                Some(rings.clone().with("rx", limit.current.saturating_mul(2).min(limit.max)))
            };
            let knob = knobs::Rings { netdev: NetdevIdentity::from_netdev(look.netdev) };
            let verdict = RemedyVerdict::new(look, remedy, Claim::Help, because)
                .gain(losses(lost))
                .reasons(reasons);
            let reason = "a ring of twice the size holds bursts of twice the size";
            verdict.writes(look, knob, edit, reason).not_when(
                "packet data should stay in the cache (the ring would exceed the cache space for \
                 device writes), or latency matters more than loss",
            )
        }
    }
}

/// The verdict on a larger softirq budget. After a run that ends with work left, polling resumes at
/// once, in ksoftirqd if needed.
pub(super) fn budget(look: &NetdevLook<'_>) -> RemedyVerdict {
    let remedy = RemedyName::BiggerBudget;
    let pollers = look.received.pollers();
    let rates = pollers.iter().filter_map(|cpu| look.analysis.rates.cpus.get(&cpu));
    let (mut squeezes, mut runs, mut known) = (0.0, 0.0, false);
    for rate in rates {
        if let Some(squeezed) = rate.softnet.and_then(|softnet| softnet.time_squeeze_per_s) {
            (squeezes, known) = (squeezes + squeezed, true);
            runs += rate.net_rx_per_s.unwrap_or(0.0);
        }
    }
    if !known {
        return RemedyVerdict::new(
            look,
            remedy,
            Claim::Unknown,
            "the cpu that polls it, or its time_squeeze count, is not known",
        );
    }
    let share = if runs > 0.0 { squeezes / runs } else { 0.0 };
    let source = "/proc/net/softnet_stat time_squeeze";
    let reasons = vec![
        Evidence::new(
            "softirq runs that ended with work left",
            Measure::PerSecond(squeezes),
            source,
        ),
        Evidence::new("share of all softirq runs", Measure::Share(share), source),
    ];
    let full = dispatcher_bound(look).is_some_and(|bound| bound >= FULL);
    let lost = lost(look).unwrap_or(0.0);
    let verdict = |claim, because: &str| {
        RemedyVerdict::new(look, remedy, claim, because).reasons(reasons.clone())
    };
    if share < SQUEEZED {
        verdict(Claim::NoClearChange, "almost no softirq run used up its budget")
    } else if lost <= 0.0 {
        verdict(
            Claim::NoClearChange,
            "softirq runs use it up, but no packets are lost: polling resumes at once",
        )
    } else if full {
        verdict(
            Claim::NoClearChange,
            "the cpu that polls it is saturated: a longer run takes time from other work",
        )
    } else {
        verdict(
            Claim::Help,
            "softirq runs end with work left while packets are lost, and the cpu that polls has \
             idle time",
        )
        .gain(losses(lost))
        .writes(
            look,
            knobs::Sysctl { name: BUDGET.into() },
            larger_budget,
            "softirq runs end with work left",
        )
        .not_when(
            "applications on that cpu need short delays: they wait for the end of each softirq run",
        )
    }
}

fn larger_budget(old: &Words) -> Option<Words> {
    let larger = raised(BUDGET, old.as_str().parse().ok()?);
    // the kernel's type is `int`
    i32::try_from(larger).ok().map(|larger| Words::new(&larger.to_string()))
}

/// The verdict on busy polling, which trades CPU time for latency. Latency is not measured here.
pub(super) fn busy_poll(look: &NetdevLook<'_>) -> RemedyVerdict {
    let remedy = RemedyName::BusyPoll;
    let all = look.work.usable();
    let idle = look.idle(&all);
    let reasons = vec![Evidence::new(
        format!("all {} cpus idle", all.len()),
        Measure::Share(idle),
        "/proc/stat",
    )];
    let sysctls = &look.analysis.observation.after.net.sysctls;
    let on = BUSY.iter().find(|name| sysctls.get(**name).is_some_and(|value| value.trim() != "0"));
    let verdict = |claim, because: &str| {
        RemedyVerdict::new(look, remedy, claim, because).reasons(reasons.clone())
    };
    if let Some(name) = on {
        verdict(Claim::NoClearChange, &format!("it is on ({name})"))
    } else if rps_is_on(look) {
        verdict(
            Claim::NoClearChange,
            "RPS is on: a busy-polling reader finds no packets that RPS steers to another cpu",
        )
    } else if 1.0 - idle >= FULL {
        verdict(
            Claim::Hurt,
            &format!("it uses idle time, of which the cpus have only {} left", percent(idle)),
        )
    } else {
        verdict(
            Claim::Unknown,
            "it trades cpu time for latency, and netsilo check does not measure latency",
        )
    }
}

/// Packets per second lost at the NIC or its ring; `None` when nothing counts them.
fn lost(look: &NetdevLook<'_>) -> Option<f64> {
    let rates = look.analysis.rates.netdevs.get(&look.netdev.name)?;
    let counted = LOST.iter().filter_map(|name| rates.get(*name).copied());
    // igb and igc count them by queue only.
    let by_queue = queue_drops(look.analysis, look.netdev).into_values().reduce(|a, b| a + b);
    counted.chain(by_queue).reduce(f64::max)
}

fn losses(lost: f64) -> Gain {
    Gain::AtMost {
        measure: Measure::PerSecond(lost),
        of: "the packets that are lost".into(),
        basis: "all packets lost at the NIC or its ring".into(),
    }
}

/// The share of its time that the CPU that polls most spends on interrupts and softirqs.
fn dispatcher_bound(look: &NetdevLook<'_>) -> Option<f64> {
    Some(look.work.bound(look.received.main_poller()?))
}
