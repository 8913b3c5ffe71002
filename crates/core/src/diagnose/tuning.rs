//! Settings of the stack against what real connections need, and who else sets them.

use std::collections::BTreeMap;

use super::growth::{all_well, setting, sum};
use super::{Evidence, Finding, FindingId, Gain, Measure, Remedy, Seen, Severity};
use crate::audit::Connection;
use crate::change::{Words, knobs};
use crate::cpuset::{CpuId, CpuSet};
use crate::host::{Netdev, WriterKnob};

/// Bytes in the interval from which on a connection is worth a word.
const ENOUGH_BYTES: u64 = 1_000_000;
/// A window that is used to this share is taken for the limit.
const WINDOW_FULL: f64 = 0.7;
/// A share of the time with something to send from which on being held up shows.
const HELD_UP: f64 = 0.1;

pub(super) fn find(seen: &Seen<'_>) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    found.extend(receive_buffer(seen));
    found.extend(send_buffer(seen));
    found.extend(peer_window(seen));
    found.extend(several_writers(seen));
    found.extend(containers(seen));
    if found.is_empty() {
        found.extend(all_well(FindingId::TuningFits, "no setting of the stack holds a connection up", looked_at(seen)));
    }
    found
}

/// Least, default and most, as `tcp_rmem` and `tcp_wmem` have them.
fn triple(seen: &Seen<'_>, name: &str) -> Option<[u64; 3]> {
    let text = seen.after().net.sysctls.get(name)?;
    let numbers: Vec<u64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    numbers.try_into().ok()
}

/// The connections held up by something, the one that moved the most first.
struct HeldUp<'a> {
    connections: Vec<(&'a Connection, f64)>,
}

impl<'a> HeldUp<'a> {
    fn of(mut connections: Vec<(&'a Connection, f64)>) -> Option<Self> {
        connections.sort_by(|a, b| b.1.total_cmp(&a.1));
        (!connections.is_empty()).then_some(Self { connections })
    }

    fn first(&self) -> (&'a Connection, f64) {
        self.connections[0]
    }

    fn count(&self) -> Evidence {
        Evidence::new("connections so", Measure::Count(self.connections.len() as u64), "sock_diag")
    }
}

fn subject(connection: &Connection) -> String {
    connection.netdev.clone().unwrap_or_else(|| "machine".into())
}

/// Doubles the most that a buffer may take.
fn doubled(seen: &Seen<'_>, name: &str, [least, default, most]: [u64; 3], reason: &str) -> Vec<crate::change::Change> {
    let knob = knobs::Sysctl { name: name.to_owned() };
    seen.change(knob, Words::new(&format!("{least} {default} {}", most.saturating_mul(2))), reason)
}

/// Receivers whose window is full, whose buffer is as large as `tcp_rmem` lets it be.
fn receive_buffer(seen: &Seen<'_>) -> Option<Finding> {
    const RMEM: &str = "net.ipv4.tcp_rmem";
    let limits = triple(seen, RMEM)?;
    let full = |(old, new): (&'_ Connection, &'_ Connection)| {
        let bytes = new.bytes_received.checked_sub(old.bytes_received).filter(|bytes| *bytes >= ENOUGH_BYTES)?;
        let window = f64::from(new.rcv_wnd.unwrap_or(new.rcv_ssthresh));
        let in_flight = seen.per_s(bytes) * f64::from(new.rcv_rtt_usecs) / 1e6;
        let at_most = u64::from(new.rcvbuf_bytes?) >= limits[2];
        (at_most && window > 0.0 && in_flight >= WINDOW_FULL * window).then(|| seen.per_s(bytes))
    };
    let all = seen.connections();
    let held = HeldUp::of(all.iter().filter_map(|(old, new)| Some((*new, full((old, new))?))).collect())?;
    let (worst, rate) = held.first();
    let window = u64::from(worst.rcv_wnd.unwrap_or(worst.rcv_ssthresh));
    let speed = speed_of(seen, worst).filter(|speed| *speed > rate);
    let gain = match speed {
        Some(speed) => Gain::AtMost {
            measure: Measure::BytesPerSecond(speed - rate),
            of: "what that connection receives".into(),
            basis: "the link's rate less what it receives now".into(),
        },
        None => Gain::Unknown("the link's rate is not known".into()),
    };
    Some(Finding {
        id: FindingId::ReceiveBufferSmall,
        severity: Severity::Warning,
        subject: subject(worst),
        title: "a connection fills its receive window, and its buffer may not grow".into(),
        evidence: vec![
            Evidence::new("it receives", Measure::BytesPerSecond(rate), "tcpi_bytes_received"),
            Evidence::new("round trip", Measure::Nanoseconds(f64::from(worst.rcv_rtt_usecs) * 1e3), "tcpi_rcv_rtt"),
            Evidence::new("its window", Measure::Bytes(window), "tcpi_rcv_wnd, tcpi_rcv_ssthresh"),
            Evidence::new("its buffer", Measure::Bytes(worst.rcvbuf_bytes.unwrap_or(0).into()), "sk_rcvbuf"),
            Evidence::new("the most that it may be", Measure::Bytes(limits[2]), RMEM),
            held.count(),
        ],
        remedies: vec![
            Remedy::new(format!("{RMEM}: let it grow to {}", limits[2].saturating_mul(2)), gain)
                .costs("as much memory for each connection that wants it, within tcp_mem")
                .not_when("the reader is the slow one: then data waits in the buffer, however large")
                .by(doubled(seen, RMEM, limits, "a connection fills its window")),
        ],
    })
}

/// Bytes per second of a connection's link.
fn speed_of(seen: &Seen<'_>, connection: &Connection) -> Option<f64> {
    let own = |netdev: &&Netdev| Some(netdev.name.as_str()) == connection.netdev.as_deref();
    Some(f64::from(seen.after().netdevs.iter().find(own)?.speed_mbps?) * 125_000.0)
}

/// The share of its sending time, of at least a tenth of the interval, in which something held a
/// connection up.
fn held_up(seen: &Seen<'_>, old: &Connection, new: &Connection, limited: fn(&Connection) -> u64) -> Option<f64> {
    let busy = new.busy_usecs.checked_sub(old.busy_usecs)? as f64 / 1e6;
    let limited = limited(new).checked_sub(limited(old))? as f64 / 1e6;
    let long = busy >= 0.1 * seen.rates.elapsed.as_secs_f64() && busy > 0.0;
    long.then(|| (limited / busy).min(1.0))
}

/// Senders that wait for room in a buffer that may not grow.
fn send_buffer(seen: &Seen<'_>) -> Option<Finding> {
    const WMEM: &str = "net.ipv4.tcp_wmem";
    let limits = triple(seen, WMEM)?;
    let held = |old: &Connection, new: &Connection| {
        let share = held_up(seen, old, new, |connection| connection.sndbuf_limited_usecs)?;
        (share >= HELD_UP && u64::from(new.sndbuf_bytes?) >= limits[2]).then_some(share)
    };
    let all = seen.connections();
    let held = HeldUp::of(all.iter().filter_map(|(old, new)| Some((*new, held(old, new)?))).collect())?;
    let (worst, share) = held.first();
    Some(Finding {
        id: FindingId::SendBufferSmall,
        severity: Severity::Warning,
        subject: subject(worst),
        title: "a connection waits for room in its send buffer, which may not grow".into(),
        evidence: vec![
            Evidence::new("of its time with something to send", Measure::Share(share), "tcpi_sndbuf_limited, tcpi_busy_time"),
            Evidence::new("its buffer", Measure::Bytes(worst.sndbuf_bytes.unwrap_or(0).into()), "sk_sndbuf"),
            Evidence::new("the most that it may be", Measure::Bytes(limits[2]), WMEM),
            Evidence::new("round trip", Measure::Nanoseconds(f64::from(worst.rtt_usecs) * 1e3), "tcpi_rtt"),
            Evidence::new("window, segments", Measure::Count(worst.snd_cwnd.into()), "tcpi_snd_cwnd"),
            held.count(),
        ],
        remedies: vec![
            Remedy::new(
                format!("{WMEM}: let it grow to {}", limits[2].saturating_mul(2)),
                Gain::AtMost {
                    measure: Measure::Share(share),
                    of: "its sending time".into(),
                    basis: "all the time that it waited for room".into(),
                },
            )
            .costs("as much memory for each connection that wants it, within tcp_mem")
            .not_when("the program sets SO_SNDBUF itself: then its own value counts")
            .by(doubled(seen, WMEM, limits, "a connection waits for room in its send buffer")),
        ],
    })
}

/// Senders that wait for their peers' windows: nothing to set here.
fn peer_window(seen: &Seen<'_>) -> Option<Finding> {
    let held = |old: &Connection, new: &Connection| {
        let share = held_up(seen, old, new, |connection| connection.rwnd_limited_usecs)?;
        (share >= 0.5).then_some(share)
    };
    let all = seen.connections();
    let held = HeldUp::of(all.iter().filter_map(|(old, new)| Some((*new, held(old, new)?))).collect())?;
    let (worst, share) = held.first();
    Some(Finding {
        id: FindingId::PeerWindowSmall,
        severity: Severity::Info,
        subject: subject(worst),
        title: "a peer's receive window holds a sender up".into(),
        evidence: vec![
            Evidence::new("of its time with something to send", Measure::Share(share), "tcpi_rwnd_limited, tcpi_busy_time"),
            Evidence::new("round trip", Measure::Nanoseconds(f64::from(worst.rtt_usecs) * 1e3), "tcpi_rtt"),
            Evidence::new("arrives at the peer", Measure::BytesPerSecond(worst.delivery_rate as f64), "tcpi_delivery_rate"),
            held.count(),
        ],
        remedies: vec![
            Remedy::new(
                "at the peer: netsilo check there tells whether its buffer or its reader is the limit",
                Gain::AtMost {
                    measure: Measure::Share(share),
                    of: "its sending time".into(),
                    basis: "all the time that it waited for the window".into(),
                },
            )
            .not_when("the peer reads as fast as it needs to"),
        ],
    })
}

/// Programs that write the same knob.
fn several_writers(seen: &Seen<'_>) -> Vec<Finding> {
    let mut by_knob: BTreeMap<WriterKnob, Vec<(&str, u32)>> = BTreeMap::new();
    for writer in &seen.after().writers {
        for knob in writer.writes.iter().filter(|knob| **knob != WriterKnob::LaterDevices) {
            by_knob.entry(*knob).or_default().push((&writer.name, writer.pid));
        }
    }
    let several = by_knob.into_iter().filter(|(_, writers)| writers.iter().any(|(name, _)| *name != writers[0].0));
    several.map(|(knob, writers)| {
        let what = match knob {
            WriterKnob::IrqAffinity => "affinity of interrupts",
            WriterKnob::Rps => "RPS",
            WriterKnob::Xps => "XPS",
            WriterKnob::LaterDevices => "later devices",
            WriterKnob::Sysctls => "sysctls",
        };
        let names: Vec<&str> = writers.iter().map(|(name, _)| *name).collect();
        Finding {
            id: FindingId::SeveralWriters,
            severity: Severity::Info,
            subject: what.to_owned(),
            title: format!("{} write the same settings", names.join(" and ")),
            evidence: writers.iter().map(|(name, pid)| setting(*name, format!("pid {pid}"), "/proc")).collect(),
            remedies: vec![
                Remedy::new(
                    "leave each setting to one of them, and ban it in the others",
                    Gain::Unknown("what they undo of each other was not watched".into()),
                )
                .not_when("they are told apart already, each with its own devices"),
            ],
        }
    })
    .collect()
}

/// Containers' traffic on one CPU, while `rps_default_mask` leaves later veths without RPS.
fn containers(seen: &Seen<'_>) -> Option<Finding> {
    let snapshot = seen.after();
    let mask = snapshot.net.rps_default_mask.as_ref().filter(|mask| mask.is_empty())?;
    let veths = snapshot.netdevs.iter().filter(|netdev| netdev.driver.as_deref() == Some("veth")).count();
    let mut backlog: BTreeMap<CpuId, u64> = BTreeMap::new();
    for poll in seen.observation.attribution.polls.iter().filter(|poll| poll.netdev.is_empty()) {
        let packets: &mut u64 = backlog.entry(poll.cpu).or_default();
        *packets = sum([*packets, poll.packets]);
    }
    let all = sum(backlog.values().copied());
    let (cpu, most) = backlog.into_iter().max_by_key(|(_, packets)| *packets)?;
    let softirq = seen.softirq(cpu)?.0;
    let near = snapshot.topology.llc_of(cpu).and(&snapshot.topology.housekeeping());
    let idle = |cpu: &CpuId| seen.rates.cpus.get(cpu).and_then(|rates| rates.shares).is_some_and(|s| s.idle >= 0.7);
    let room: CpuSet = near.iter().filter(|other| *other != cpu && idle(other)).collect();
    if veths < 2 || (most as f64) < 0.9 * all as f64 || softirq < 0.5 || room.is_empty() {
        return None;
    }
    let change = seen.change(knobs::RpsDefaultMask, room.clone(), "containers made later share their receive work");
    Some(Finding {
        id: FindingId::ContainersOnOneCpu,
        severity: Severity::Info,
        subject: format!("cpu{cpu}"),
        title: format!("it does the receive work of {veths} veths, and CPUs beside it are idle"),
        evidence: vec![
            Evidence::new("of the backlog's packets", Measure::Share(most as f64 / all.max(1) as f64), "tp_btf/napi_poll"),
            Evidence::new("its softirq", Measure::Share(softirq), "eBPF or /proc/stat"),
            setting("idle CPUs of its cache", room.to_string(), "/proc/stat"),
            setting("RPS of devices made later", if mask.is_empty() { "off".into() } else { mask.to_string() }, "net.core.rps_default_mask"),
        ],
        remedies: vec![
            Remedy::new(
                format!("net.core.rps_default_mask {room}: veths made from then on spread over these"),
                Gain::Unknown("what the interrupts to other CPUs cost on this host is not measured".into()),
            )
            .costs("an inter-processor interrupt for each batch of packets")
            .not_when("it is a virtual machine with dear interrupts between CPUs, or the containers have but one flow")
            .by(change),
        ],
    })
}

/// What was read and holds nothing up: connections, and what bounds them.
fn looked_at(seen: &Seen<'_>) -> Vec<Evidence> {
    let mut evidence = Vec::new();
    let connections = seen.connections();
    if !connections.is_empty() {
        evidence.push(Evidence::new("connections looked at", Measure::Count(connections.len() as u64), "sock_diag"));
    }
    let shown = [
        ("net.ipv4.tcp_rmem", "receive buffer: least, default, most"),
        ("net.ipv4.tcp_wmem", "send buffer: least, default, most"),
        ("net.core.netdev_max_backlog", "packets that may wait for a CPU by RPS, veth, lo"),
        ("net.core.netdev_budget", "packets in one softirq, of all devices"),
    ];
    let sysctls = &seen.after().net.sysctls;
    evidence.extend(shown.iter().filter_map(|(name, what)| {
        let words: Vec<&str> = sysctls.get(*name)?.split_whitespace().collect();
        Some(setting(*what, words.join(" "), *name))
    }));
    evidence
}
