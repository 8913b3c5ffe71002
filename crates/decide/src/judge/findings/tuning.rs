//! Findings on settings of the network stack that limit connections, and on programs that write the
//! same settings.

use std::collections::BTreeMap;

use netsilo_model::change::{Words, knobs};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::drivers::name::has_driver;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::snapshot::audit::Connection;
use netsilo_model::snapshot::host::OwnedKnob;
use netsilo_model::snapshot::subject::Subject;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::builders::{no_problem, setting, sum};
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;
use crate::judge::findings::judged::Judged;

/// Minimum bytes in the interval for which a connection is judged.
const ENOUGH_BYTES: u64 = 1_000_000;
/// From this used share of a window, the window counts as the limit.
const WINDOW_FULL: f64 = 0.7;
/// From this share of the time with data to send, a wait for buffer space is reported.
const HELD_UP: f64 = 0.1;

pub(super) fn find(judged: &Judged<'_>) -> Vec<Finding> {
    let analysis = judged.analysis;
    let mut found: Vec<Finding> = Vec::new();
    found.extend(receive_buffer(analysis));
    found.extend(send_buffer(analysis));
    found.extend(peer_window(analysis));
    found.extend(several_writers(analysis));
    found.extend(containers(analysis));
    if found.is_empty() {
        found.extend(no_problem(
            FindingId::TuningFits,
            "no setting of the network stack limits a connection",
            looked_at(analysis),
        ));
    }
    found
}

/// Minimum, default and maximum in bytes, as in `tcp_rmem` and `tcp_wmem`.
fn triple(analysis: &Analysis<'_>, name: &str) -> Option<[u64; 3]> {
    let text = analysis.after().net.sysctls.get(name)?;
    let numbers: Vec<u64> =
        text.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    numbers.try_into().ok()
}

/// Connections limited by one cause, largest value first.
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
        Evidence::new(
            "connections limited this way",
            Measure::Count(self.connections.len() as u64),
            "sock_diag",
        )
    }
}

fn subject(connection: &Connection) -> Subject {
    connection.netdev.clone().map_or(Subject::Machine, Subject::Netdev)
}

/// Doubles the maximum size of a buffer.
fn doubled(
    analysis: &Analysis<'_>,
    name: &str,
    [min, default, max]: [u64; 3],
    reason: &str,
) -> Vec<netsilo_model::change::Change> {
    let knob = knobs::Sysctl { name: name.to_owned() };
    analysis.change(knob, Words::new(&format!("{min} {default} {}", max.saturating_mul(2))), reason)
}

/// Receivers whose window is full and whose buffer has reached the maximum of `tcp_rmem`.
fn receive_buffer(analysis: &Analysis<'_>) -> Option<Finding> {
    const RMEM: &str = "net.ipv4.tcp_rmem";
    let limits = triple(analysis, RMEM)?;
    let full = |(old, new): (&'_ Connection, &'_ Connection)| {
        let bytes = new
            .bytes_received
            .checked_sub(old.bytes_received)
            .filter(|bytes| *bytes >= ENOUGH_BYTES)?;
        let window = f64::from(new.rcv_wnd.unwrap_or(new.rcv_ssthresh));
        let in_flight = analysis.per_s(bytes) * f64::from(new.rcv_rtt_usecs) / 1e6;
        let at_most = u64::from(new.rcvbuf_bytes?) >= limits[2];
        (at_most && window > 0.0 && in_flight >= WINDOW_FULL * window)
            .then(|| analysis.per_s(bytes))
    };
    let all = analysis.connections();
    let held =
        HeldUp::of(all.iter().filter_map(|(old, new)| Some((*new, full((old, new))?))).collect())?;
    let (worst, rate) = held.first();
    let window = u64::from(worst.rcv_wnd.unwrap_or(worst.rcv_ssthresh));
    let speed = speed_of(analysis, worst).filter(|speed| *speed > rate);
    let gain = match speed {
        Some(speed) => Gain::AtMost {
            measure: Measure::BytesPerSecond(speed - rate),
            of: "the connection's receive rate".into(),
            basis: "the link's rate minus the connection's current rate".into(),
        },
        None => Gain::Unknown("the link's rate is not known".into()),
    };
    Some(Finding {
        id: FindingId::ReceiveBufferSmall,
        severity: Severity::Warning,
        subject: subject(worst),
        title: "a connection fills its receive window, and its buffer has reached its limit".into(),
        evidence: vec![
            Evidence::new("receive rate", Measure::BytesPerSecond(rate), "tcpi_bytes_received"),
            Evidence::new(
                "round-trip time",
                Measure::Nanoseconds(f64::from(worst.rcv_rtt_usecs) * 1e3),
                "tcpi_rcv_rtt",
            ),
            Evidence::new(
                "receive window",
                Measure::Bytes(window),
                "tcpi_rcv_wnd, tcpi_rcv_ssthresh",
            ),
            Evidence::new(
                "receive buffer",
                Measure::Bytes(worst.rcvbuf_bytes.unwrap_or(0).into()),
                "sk_rcvbuf",
            ),
            Evidence::new("maximum buffer", Measure::Bytes(limits[2]), RMEM),
            held.count(),
        ],
        remedies: vec![
            Remedy::new(
                format!("{RMEM}: raise the maximum to {}", limits[2].saturating_mul(2)),
                gain,
            )
            .costs("up to that much memory for each connection that needs it, within tcp_mem")
            .not_when("the reader is slow: then data waits in a buffer of any size")
            .by(doubled(analysis, RMEM, limits, "a connection fills its window")),
        ],
    })
}

/// The rate of a connection's link in bytes per second.
fn speed_of(analysis: &Analysis<'_>, connection: &Connection) -> Option<f64> {
    let netdev = analysis.after().netdevs.named(connection.netdev.as_deref()?)?;
    Some(f64::from(netdev.speed_mbps?) * 125_000.0)
}

/// The share of a connection's sending time in which `limited` (microseconds) delayed it; `None` if
/// it was sending for less than a tenth of the interval.
fn held_up(
    analysis: &Analysis<'_>,
    old: &Connection,
    new: &Connection,
    limited: fn(&Connection) -> u64,
) -> Option<f64> {
    let busy = new.busy_usecs.checked_sub(old.busy_usecs)? as f64 / 1e6;
    let limited = limited(new).checked_sub(limited(old))? as f64 / 1e6;
    let long = busy >= 0.1 * analysis.rates.elapsed.as_secs_f64() && busy > 0.0;
    long.then(|| (limited / busy).min(1.0))
}

/// Senders that wait for space in a send buffer that has reached the maximum of `tcp_wmem`.
fn send_buffer(analysis: &Analysis<'_>) -> Option<Finding> {
    const WMEM: &str = "net.ipv4.tcp_wmem";
    let limits = triple(analysis, WMEM)?;
    let held = |old: &Connection, new: &Connection| {
        let share = held_up(analysis, old, new, |connection| connection.sndbuf_limited_usecs)?;
        (share >= HELD_UP && u64::from(new.sndbuf_bytes?) >= limits[2]).then_some(share)
    };
    let all = analysis.connections();
    let held =
        HeldUp::of(all.iter().filter_map(|(old, new)| Some((*new, held(old, new)?))).collect())?;
    let (worst, share) = held.first();
    Some(Finding {
        id: FindingId::SendBufferSmall,
        severity: Severity::Warning,
        subject: subject(worst),
        title: "a connection waits for space in its send buffer, which has reached its limit"
            .into(),
        evidence: vec![
            Evidence::new(
                "limited by the send buffer, share of sending time",
                Measure::Share(share),
                "tcpi_sndbuf_limited, tcpi_busy_time",
            ),
            Evidence::new(
                "send buffer",
                Measure::Bytes(worst.sndbuf_bytes.unwrap_or(0).into()),
                "sk_sndbuf",
            ),
            Evidence::new("maximum buffer", Measure::Bytes(limits[2]), WMEM),
            Evidence::new(
                "round-trip time",
                Measure::Nanoseconds(f64::from(worst.rtt_usecs) * 1e3),
                "tcpi_rtt",
            ),
            Evidence::new(
                "congestion window in segments",
                Measure::Count(worst.snd_cwnd.into()),
                "tcpi_snd_cwnd",
            ),
            held.count(),
        ],
        remedies: vec![
            Remedy::new(
                format!("{WMEM}: raise the maximum to {}", limits[2].saturating_mul(2)),
                Gain::AtMost {
                    measure: Measure::Share(share),
                    of: "the connection's sending time".into(),
                    basis: "all the time in which the connection waited for buffer space".into(),
                },
            )
            .costs("up to that much memory for each connection that needs it, within tcp_mem")
            .not_when("the program sets SO_SNDBUF itself: then that value applies")
            .by(doubled(
                analysis,
                WMEM,
                limits,
                "a connection waits for space in its send buffer",
            )),
        ],
    })
}

/// Senders that wait for their peers' receive windows. No local setting changes those.
fn peer_window(analysis: &Analysis<'_>) -> Option<Finding> {
    let held = |old: &Connection, new: &Connection| {
        let share = held_up(analysis, old, new, |connection| connection.rwnd_limited_usecs)?;
        (share >= 0.5).then_some(share)
    };
    let all = analysis.connections();
    let held =
        HeldUp::of(all.iter().filter_map(|(old, new)| Some((*new, held(old, new)?))).collect())?;
    let (worst, share) = held.first();
    Some(Finding {
        id: FindingId::PeerWindowSmall,
        severity: Severity::Info,
        subject: subject(worst),
        title: "a peer's receive window limits a sender".into(),
        evidence: vec![
            Evidence::new(
                "limited by the peer's window, share of sending time",
                Measure::Share(share),
                "tcpi_rwnd_limited, tcpi_busy_time",
            ),
            Evidence::new(
                "round-trip time",
                Measure::Nanoseconds(f64::from(worst.rtt_usecs) * 1e3),
                "tcpi_rtt",
            ),
            Evidence::new(
                "delivery rate to the peer",
                Measure::BytesPerSecond(worst.delivery_rate as f64),
                "tcpi_delivery_rate",
            ),
            held.count(),
        ],
        remedies: vec![
            Remedy::new(
                "run netsilo check on the peer: it shows whether the peer's buffer or its reader \
                 is the limit",
                Gain::AtMost {
                    measure: Measure::Share(share),
                    of: "the connection's sending time".into(),
                    basis: "all the time in which the connection waited for the window".into(),
                },
            )
            .not_when("the peer reads as fast as it needs to"),
        ],
    })
}

/// Different programs that write the same knob.
fn several_writers(analysis: &Analysis<'_>) -> Vec<Finding> {
    let mut by_knob: BTreeMap<OwnedKnob, Vec<(&str, u32)>> = BTreeMap::new();
    for owner in &analysis.after().knob_owners {
        for knob in owner.writes.iter().filter(|knob| **knob != OwnedKnob::LaterDevices) {
            by_knob.entry(*knob).or_default().push((&owner.name, owner.pid));
        }
    }
    let several = by_knob
        .into_iter()
        .filter(|(_, writers)| writers.iter().any(|(name, _)| *name != writers[0].0));
    several
        .map(|(knob, writers)| {
            let names: Vec<&str> = writers.iter().map(|(name, _)| *name).collect();
            Finding {
                id: FindingId::SeveralWriters,
                severity: Severity::Info,
                subject: Subject::Settings(knob),
                title: format!("{} write the same settings", names.join(" and ")),
                evidence: writers
                    .iter()
                    .map(|(name, pid)| setting(*name, format!("pid {pid}"), "/proc"))
                    .collect(),
                remedies: vec![
                    Remedy::new(
                        "let one of them own each setting, and exclude it in the others",
                        Gain::Unknown(
                            "whether they overwrite each other's values was not observed".into(),
                        ),
                    )
                    .not_when("each of them is already limited to its own devices"),
                ],
            }
        })
        .collect()
}

/// One CPU processes the containers' traffic, and `rps_default_mask` gives new veths no RPS.
fn containers(analysis: &Analysis<'_>) -> Option<Finding> {
    let snapshot = analysis.after();
    let mask = snapshot.net.rps_default_mask.as_ref().filter(|mask| mask.is_empty())?;
    let veths = snapshot.netdevs.iter().filter(|netdev| has_driver(netdev, &["veth"])).count();
    let mut backlog: BTreeMap<CpuId, u64> = BTreeMap::new();
    for poll in analysis.observation.attribution.polls.iter().filter(|poll| poll.netdev.is_empty())
    {
        let packets: &mut u64 = backlog.entry(poll.cpu).or_default();
        *packets = sum([*packets, poll.packets]);
    }
    let all = sum(backlog.values().copied());
    let (cpu, most) = backlog.into_iter().max_by_key(|(_, packets)| *packets)?;
    let softirq = analysis.softirq(cpu)?.0;
    let near = snapshot.topology.llc_of(cpu).and(&snapshot.topology.housekeeping());
    let idle = |cpu: &CpuId| {
        analysis.rates.cpus.get(cpu).and_then(|rates| rates.shares).is_some_and(|s| s.idle >= 0.7)
    };
    let room: CpuSet = near.iter().filter(|other| *other != cpu && idle(other)).collect();
    if veths < 2 || (most as f64) < 0.9 * all as f64 || softirq < 0.5 || room.is_empty() {
        return None;
    }
    let change = analysis.change(
        knobs::RpsDefaultMask,
        room.clone(),
        "spread the receive work of containers created later",
    );
    Some(Finding {
        id: FindingId::ContainersOnOneCpu,
        severity: Severity::Info,
        subject: Subject::Cpu(cpu),
        title: format!(
            "this cpu does the receive work of {veths} veths, while cpus that share its cache are \
             idle"
        ),
        evidence: vec![
            Evidence::new(
                "share of all backlog packets",
                Measure::Share(most as f64 / all.max(1) as f64),
                "tp_btf/napi_poll",
            ),
            Evidence::new("time in softirqs", Measure::Share(softirq), "eBPF or /proc/stat"),
            setting("idle cpus that share its cache", room.to_string(), "/proc/stat"),
            setting(
                "RPS of devices created later",
                if mask.is_empty() { "off".into() } else { mask.to_string() },
                "net.core.rps_default_mask",
            ),
        ],
        remedies: vec![
            Remedy::new(
                format!(
                    "set net.core.rps_default_mask to {room}: veths created from then on use these \
                     cpus"
                ),
                Gain::Unknown(
                    "the cost of inter-processor interrupts on this host was not measured".into(),
                ),
            )
            .costs("an inter-processor interrupt for each batch of packets")
            .not_when(
                "this is a virtual machine with costly inter-processor interrupts, or the \
                 containers have only one flow",
            )
            .by(change),
        ],
    })
}

/// Evidence for "all well": the connections that were checked, and the settings that limit them.
fn looked_at(analysis: &Analysis<'_>) -> Vec<Evidence> {
    let mut evidence = Vec::new();
    let connections = analysis.connections();
    if !connections.is_empty() {
        evidence.push(Evidence::new(
            "connections checked",
            Measure::Count(connections.len() as u64),
            "sock_diag",
        ));
    }
    let shown = [
        ("net.ipv4.tcp_rmem", "receive buffer: minimum, default, maximum"),
        ("net.ipv4.tcp_wmem", "send buffer: minimum, default, maximum"),
        ("net.core.netdev_max_backlog", "backlog limit in packets, per cpu (RPS, veth, lo)"),
        ("net.core.netdev_budget", "packets in one softirq run, of all devices"),
    ];
    let sysctls = &analysis.after().net.sysctls;
    evidence.extend(shown.iter().filter_map(|(name, what)| {
        let words: Vec<&str> = sysctls.get(*name)?.split_whitespace().collect();
        Some(setting(*what, words.join(" "), *name))
    }));
    evidence
}
