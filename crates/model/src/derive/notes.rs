//! Notes for the user of a report, as sentences.

use std::collections::BTreeMap;

use crate::derive::rates::Rates;
use crate::derive::silo::{Silos, Unread};
use crate::machine::words::{bytes_per_s, plural};
use crate::snapshot::attribution::{
    Attribution, AttributionSource, Examined, Hook, OTHER_SOCKETS, Sampling,
};
use crate::snapshot::host::{OwnedKnob, Snapshot};
use crate::snapshot::netdev::Netdev;
use crate::snapshot::observation::Observation;
use crate::snapshot::packet_sockets::CaptureKind;

/// The smallest unresolved share of the bytes that gives a note.
const UNRESOLVED_WORTH_SAYING: f64 = 0.01;

/// How many queues with unread data are named.
const UNREAD_NAMED: usize = 3;

/// The notes for an observation.
pub fn notes(observation: &Observation, rates: &Rates, silos: &Silos) -> Vec<String> {
    let after = &observation.after;
    let mut notes = Vec::new();
    notes.extend(nothing_to_show(after));
    if rates.elapsed.is_zero() {
        notes.push("no rates: the two snapshots have the same time or different boots".into());
    }
    notes.extend(attribution(&observation.attribution));
    notes.extend(unresolved(silos));
    notes.extend(unread(observation, silos));
    notes.extend(after.netdevs.iter().filter_map(unknown_interrupts));
    notes.extend(not_counted(silos));
    notes.extend(redirecting(after));
    notes.extend(after.knob_owners.iter().map(|writer| {
        let knobs: Vec<&str> = writer.writes.iter().map(|knob| knob_name(*knob)).collect();
        format!("{} (pid {}) is running and changes {}", writer.name, writer.pid, knobs.join(", "))
    }));
    notes.extend(after.gaps.iter().map(|gap| format!("could not read {}: {}", gap.what, gap.why)));
    notes
}

/// The netdevs that received packets on queues whose packets were not counted.
fn not_counted(silos: &Silos) -> Vec<String> {
    let mut netdevs: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for silo in &silos.queues {
        if let Some(why) = &silo.not_counted {
            *netdevs.entry((&silo.netdev.name, why)).or_default() += 1;
        }
    }
    let note = |((netdev, why), count): ((&str, &str), usize)| {
        format!("{netdev}: packets of {} are not known: {why}", plural(count, "rx queue"))
    };
    netdevs.into_iter().map(note).collect()
}

/// The user's name for what another program writes.
pub fn knob_name(knob: OwnedKnob) -> &'static str {
    match knob {
        OwnedKnob::IrqAffinity => "irq affinity",
        OwnedKnob::Rps => "rps",
        OwnedKnob::Xps => "xps",
        OwnedKnob::LaterDevices => "settings of devices when they appear, not now",
        OwnedKnob::Sysctls => "network sysctls",
    }
}

fn nothing_to_show(snapshot: &Snapshot) -> Option<String> {
    let is_threaded = |netdev: &Netdev| netdev.napis.iter().any(|napi| napi.thread.is_some());
    let placeable = |netdev: &&Netdev| {
        netdev.rx_queues.iter().any(|queue| queue.irq.is_some()) || is_threaded(netdev)
    };
    let queues = || {
        snapshot
            .netdevs
            .iter()
            .filter(placeable)
            .map(|netdev| netdev.rx_queues.len())
            .sum::<usize>()
    };
    let cpus = snapshot.topology.online.len();
    if cpus <= 1 {
        return Some(format!(
            "nothing to place: one cpu, {}; all receive work runs there",
            plural(queues(), "rx queue")
        ));
    }
    match queues() {
        0 => Some(
            "nothing to place: no netdev has an rx queue with a known interrupt or NAPI kthread"
                .into(),
        ),
        1 => Some(format!(
            "one rx queue on {cpus} cpus: it can be moved, but only RPS can spread its work"
        )),
        _ => None,
    }
}

fn attribution(attribution: &Attribution) -> Vec<String> {
    let mut notes = Vec::new();
    match attribution.source {
        AttributionSource::None => notes.push("consumers unknown: nothing was counted".into()),
        AttributionSource::SockDiag => notes.push(
            "consumers by sock_diag: TCP only, their cpus are samples, polls are not counted"
                .into(),
        ),
        AttributionSource::Bpf if attribution.windowed => {
            notes.push(
                "counted in a window: the first event of a socket sets its baseline, \
                 bytes are a lower bound"
                    .into(),
            );
        }
        AttributionSource::Bpf => {}
    }
    notes.extend(sampled(attribution.sampling));
    notes.extend(refusals(attribution));
    if attribution.lost_events > 0 {
        notes.push(format!(
            "{} events were not counted: a table was full, or they interrupted the program that \
             counts them",
            attribution.lost_events
        ));
    }
    notes
}

/// How exact a count is that holds a tenth of the events of its kind, where only some of them were
/// examined.
fn sampled(Sampling { reads, softirqs, other_polls, drops }: Sampling) -> Option<String> {
    const SHARE: f64 = 0.1;
    let kinds = [
        ("reads", reads),
        ("softirqs", softirqs),
        ("other polls", other_polls),
        ("dropped packets", drops),
    ];
    let within = |(kind, all): &(&str, Examined)| {
        (!all.is_complete()).then(|| format!("{kind} within {:.1}%", all.error(SHARE) * 100.0))
    };
    let all: Vec<String> = kinds.iter().filter_map(within).collect();
    (!all.is_empty()).then(|| format!("counted by samples: {}", all.join(", ")))
}

/// The hooks by quantity, the best hook of each quantity first.
fn by_quantity(attribution: &Attribution) -> Vec<Vec<&Hook>> {
    let mut quantities: Vec<Vec<&Hook>> = Vec::new();
    for hook in &attribution.hooks {
        match quantities.iter_mut().find(|hooks| hooks[0].quantity == hook.quantity) {
            Some(hooks) => hooks.push(hook),
            None => quantities.push(vec![hook]),
        }
    }
    quantities
}

/// Why quantities are not measured, or less of them (`netsilo doctor` shows which hooks are
/// missing). Those with one reason are one note.
fn refusals(attribution: &Attribution) -> Vec<String> {
    let mut notes = Vec::new();
    let mut missing: Vec<(&str, Vec<&Hook>)> = Vec::new();
    for hooks in by_quantity(attribution) {
        let Some((best, why)) = hooks.first().and_then(|it| Some((*it, it.refused.as_deref()?)))
        else {
            continue;
        };
        match hooks.iter().find(|hook| hook.refused.is_none()) {
            // Two programs for one hook, as of wakeups: the second one reads less.
            Some(lesser) if lesser.hook == best.hook => notes.push(format!(
                "{} counted, but not how many of them find the CPU idle: the program for {} that \
                 tells it was refused: {why}",
                best.quantity, best.hook
            )),
            Some(_) => (),
            None => match missing.iter_mut().find(|(known, _)| *known == why) {
                Some((_, alike)) => alike.push(best),
                None => missing.push((why, vec![best])),
            },
        }
    }
    notes.extend(missing.into_iter().map(|(why, hooks)| match hooks[..] {
        [only] => {
            format!("{} not counted: {} is unavailable: {why}", only.quantity, only.hook)
        }
        _ => {
            let quantities: Vec<&str> = hooks.iter().map(|hook| &*hook.quantity).collect();
            format!("{} not counted: {why}", quantities.join(", "))
        }
    }));
    notes
}

fn unresolved(silos: &Silos) -> Option<String> {
    let queues: f64 = silos.queues.iter().filter_map(|silo| silo.bytes_per_s).sum();
    let all =
        queues + silos.local.bytes_per_s + silos.foreign.bytes_per_s + silos.unresolved.bytes_per_s;
    let share = silos.unresolved.bytes_per_s / all;
    (share >= UNRESOLVED_WORTH_SAYING)
        .then(|| format!("the queue of {:.0}% of the bytes read was not found", share * 100.0))
}

/// Where much arrived that no counted reader took, most first, and who may have it.
fn unread(observation: &Observation, silos: &Silos) -> Vec<String> {
    let mut all: Vec<(Unread, String, String)> = Vec::new();
    for (silo, unread) in silos.queues.iter().filter_map(|silo| Some((silo, silo.unread?))) {
        let queue = silo.queue.map_or_else(String::new, |queue| format!(" on rx-{queue}"));
        let name = silo.netdev.name.clone();
        let takers = takers(observation, std::slice::from_ref(&name), silo.leased.as_deref());
        all.push((unread, name, format!("{queue} were not read by a counted reader: {takers}")));
    }
    if let Some(on_backlogs) = &silos.unread_on_backlogs {
        let takers = takers(observation, &on_backlogs.netdevs, None);
        let text = format!(" were not read by a counted reader: {takers}");
        all.push((on_backlogs.unread, on_backlogs.netdevs.join(", "), text));
    }
    all.sort_by(|(a, ..), (b, ..)| b.bytes_per_s.total_cmp(&a.bytes_per_s));
    let note = |(unread, names, text): (Unread, String, String)| {
        let (rest, arrived) = (bytes_per_s(unread.bytes_per_s), bytes_per_s(unread.arrived_per_s));
        format!("{names}: {rest} of the {arrived} that arrived{text}")
    };
    all.into_iter().take(UNREAD_NAMED).map(note).collect()
}

/// Who may take the data of these netdevs where no hook counts it, with what shows that.
fn takers(observation: &Observation, netdevs: &[String], leased: Option<&str>) -> String {
    let Observation { after, attribution, .. } = observation;
    let mut takers: Vec<String> = leased.iter().map(|user| format!("{user} (lease)")).collect();
    let counts_others = attribution.counts(OTHER_SOCKETS);
    for socket in &attribution.packet_sockets {
        let here = after.machine.is_own_netns(socket.netns)
            && (socket.netdev.is_empty() || netdevs.contains(&socket.netdev));
        let what = match socket.kind {
            CaptureKind::Xdp => "AF_XDP",
            CaptureKind::Ring => "packet mmap",
            CaptureKind::Recv if counts_others => continue,
            CaptureKind::Recv => "packet socket",
        };
        if here && socket.packets > 0 {
            let (comm, pid) = (&socket.holder.comm, socket.holder.tgid);
            takers.push(format!("{comm} (pid {pid}, {what}: {} packets)", socket.packets));
        }
    }
    let with_xdp = after.netdevs.iter().filter(|it| it.xdp.is_some());
    let with_xdp = with_xdp.filter(|it| netdevs.contains(&it.name));
    takers.extend(with_xdp.map(|it| format!("the XDP program of {}", it.name)));
    if !counts_others {
        takers.push("a reader by MPTCP or raw sockets, which are not counted here".to_owned());
    }
    if takers.is_empty() {
        return "they wait in a buffer, or a sockmap or the kernel itself takes them".to_owned();
    }
    format!("probably {}", takers.join(", "))
}

/// Netdevs with XDP: packets that XDP takes reach no hook except the poll's.
fn redirecting(snapshot: &Snapshot) -> Option<String> {
    let with_xdp = snapshot.netdevs.iter().filter(|netdev| netdev.xdp.is_some());
    let names: Vec<&str> = with_xdp.map(|netdev| netdev.name.as_str()).collect();
    (!names.is_empty()).then(|| {
        format!(
            "{}: an XDP program is attached; packets that XDP redirects, answers or drops are \
             not counted",
            names.join(", ")
        )
    })
}

/// A note for a device with interrupts and queues but without a known mapping between them.
fn unknown_interrupts(netdev: &Netdev) -> Option<String> {
    let unknown = netdev.rx_queues.iter().filter(|queue| queue.irq.is_none()).count();
    let worth = !netdev.irqs.is_empty() && netdev.up && unknown > 0;
    worth.then(|| {
        let driver = netdev.driver.as_deref().unwrap_or("unknown driver");
        format!(
            "{}: the interrupt of {} is unknown ({driver})",
            netdev.name,
            plural(unknown, "rx queue")
        )
    })
}
