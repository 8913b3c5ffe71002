//! The daemon's metrics in the Prometheus text format: base units, and labels with a fixed set of
//! values.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;

use netsilo_decide::control::ControllerState;
use netsilo_decide::judge::ledger::Ledger;
use netsilo_model::derive::drop_class::DropClass;
use netsilo_model::derive::drop_judge::DropJudge;
use netsilo_model::machine::topology::Distance;
use netsilo_model::snapshot::drops::DroppedPackets;
use netsilo_model::snapshot::observation::Observation;
use netsilo_trial::stats::Estimate;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::Serialize;

use crate::tell::status::{Mode, Status};

type Float = Gauge<f64, AtomicU64>;
type Seconds = Counter<f64, AtomicU64>;
type ByLabel = Family<Vec<(&'static str, &'static str)>, Float>;
type BytesByLabel = Family<Vec<(&'static str, &'static str)>, Seconds>;
type PacketsByLabel = Family<Vec<(&'static str, String)>, Counter>;

/// Reasons of dropped packets with a series each. With one series for other reasons of each class
/// and stage (18 at most), there are at most 64.
const MOST_REASONS: usize = 46;

/// Sums of the windows since the start.
#[derive(Debug, Clone, Default)]
pub(crate) struct WindowSums {
    read: BytesByLabel,
    dropped: PacketsByLabel,
    /// Class, stage and reason of dropped packets that have a series.
    reasons: BTreeSet<Vec<(&'static str, String)>>,
    drops_counted: Seconds,
    elsewhere: PacketsByLabel,
    judge: DropJudge,
}

impl WindowSums {
    /// Adds the packets that the kernel dropped in a window.
    pub(crate) fn add_drops(&mut self, observation: &Observation) {
        let attribution = &observation.attribution;
        self.judge.learn(observation);
        self.drops_counted.inc_by(attribution.drops_elapsed.as_secs_f64());
        for drop in &attribution.drops {
            let mut labels = drop_labels(&self.judge, drop);
            if self.reasons.len() < MOST_REASONS {
                self.reasons.insert(labels.clone());
            }
            if !self.reasons.contains(&labels) {
                labels[2].1 = "other".into();
            }
            self.dropped.get_or_create(&labels).inc_by(drop.packets);
        }
    }

    /// Adds what other network namespaces lost.
    pub(crate) fn add_elsewhere(&self, ledger: &Ledger) {
        for stage in ledger.stages.iter().filter(|stage| stage.elsewhere > 0) {
            let labels = vec![("stage", label(stage.stage))];
            self.elsewhere.get_or_create(&labels).inc_by(stage.elsewhere);
        }
    }

    /// Adds the bytes of a window of this many seconds.
    pub(crate) fn add_read(
        &self,
        locality: &netsilo_model::derive::locality::Locality,
        seconds: f64,
    ) {
        let bytes = locality.bytes_per_s * seconds;
        for distance in Distance::ALL {
            let share = locality.shares.get(&distance).copied().unwrap_or(0.0);
            self.read.get_or_create(&vec![("distance", word(distance))]).inc_by(bytes * share);
        }
        self.read.get_or_create(&vec![("distance", "unknown")]).inc_by(bytes * locality.unknown);
    }
}

/// Its class, the stage where it was lost, and the kernel's reason.
fn drop_labels(judge: &DropJudge, drop: &DroppedPackets) -> Vec<(&'static str, String)> {
    let class = judge.class(drop);
    let stage = judge.lost_at(drop).filter(|_| class == DropClass::Lost);
    let reason = if drop.reason.is_empty() { "NOT_SPECIFIED" } else { &drop.reason };
    vec![
        ("class", label(class)),
        ("stage", stage.map_or_else(|| "none".to_owned(), label)),
        ("reason", reason.to_owned()),
    ]
}

/// The name of an enum's value, in the words of labels: `not_for_us`.
fn label(value: impl Serialize) -> String {
    let name = serde_json::to_value(value).unwrap_or_default();
    name.as_str().unwrap_or_default().replace('-', "_")
}

fn word(distance: Distance) -> &'static str {
    match distance {
        Distance::SameCpu => "same_cpu",
        other => other.label(),
    }
}

/// The measured change, and the ends of its interval.
fn bounds(change: Estimate) -> [(&'static str, f64); 3] {
    [("low", change.low), ("value", change.value), ("high", change.high)]
}

const STATES: [(&str, ControllerState); 5] = [
    ("observing", ControllerState::Observing),
    ("settling", ControllerState::Settling),
    ("verifying", ControllerState::Verifying),
    ("hold_off", ControllerState::HoldOff),
    ("settled", ControllerState::Settled),
];

/// Renders all metrics as text.
pub(crate) fn render(status: &Status, sums: &WindowSums, last_window_seconds: f64) -> String {
    let mut registry = Registry::default();
    let mut gauge = |name: &str, help: &str, value: f64| {
        let gauge = Float::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    };
    let mode = |mode: bool| f64::from(u8::from(mode));
    gauge(
        "netsilo_placing",
        "Whether the daemon writes knobs (not hints only, not observe only)",
        mode(status.mode == Mode::Placing),
    );
    gauge(
        "netsilo_config_reload_success",
        "Whether the newest configuration was accepted",
        mode(status.config.error.is_none()),
    );
    gauge(
        "netsilo_vectors",
        "Interrupts and NAPI kthreads with a placement",
        status.placements.len() as f64,
    );
    let elsewhere = status.placements.iter().filter(|placement| placement.moves).count();
    gauge(
        "netsilo_vectors_elsewhere",
        "Interrupts and NAPI kthreads that are not at their placement",
        elsewhere as f64,
    );
    gauge(
        "netsilo_pending_changes",
        "Changes that are planned but not in effect",
        status.pending.len() as f64,
    );
    gauge("netsilo_held_changes", "Changes that are planned but held", status.held.len() as f64);
    gauge(
        "netsilo_conflicts",
        "Knobs left alone because another program wrote them",
        status.conflicts.len() as f64,
    );
    gauge(
        "netsilo_window_duration_seconds",
        "Length of the last observation window",
        last_window_seconds,
    );
    gauge(
        "netsilo_counting_window_seconds",
        "How long eBPF is attached in a cycle",
        status.counting.window.as_secs_f64(),
    );
    gauge(
        "netsilo_own_share",
        "Share of the machine's CPU time that netsilo and its eBPF programs used in the last cycle",
        status.counting.share,
    );
    gauge(
        "process_resident_memory_bytes",
        "Memory of this process in RAM",
        status.own.resident_bytes.unwrap_or(0) as f64,
    );
    gauge(
        "netsilo_outcome_followed",
        "Whether the placements follow a measured outcome, not the cost model",
        mode(status.measured.is_some()),
    );
    if let Some(namespaces) = &status.namespaces {
        gauge(
            "netsilo_namespaces",
            "Other network namespaces that were found",
            namespaces.found as f64,
        );
        gauge(
            "netsilo_namespaces_read",
            "Other network namespaces whose counters could be read",
            namespaces.read as f64,
        );
        let age = namespaces.oldest_s.unwrap_or(f64::NAN);
        gauge("netsilo_namespaces_age_seconds", "Age of the oldest of these readings", age);
    }
    if let Some(measured) = &status.measured {
        gauge(
            "netsilo_outcome_age_seconds",
            "Age of the outcome when the plan was made",
            measured.age_s as f64,
        );
    }
    let change = ByLabel::default();
    let interval = status.measured.as_ref().and_then(|measured| measured.best.change);
    for (bound, value) in interval.into_iter().flat_map(bounds) {
        change.get_or_create(&vec![("bound", bound)]).set(value);
    }
    registry.register(
        "netsilo_outcome_change",
        "Measured change of the objective by the best candidate of the outcome, and its interval",
        change,
    );
    let state = ByLabel::default();
    for (name, this) in STATES {
        state.get_or_create(&vec![("state", name)]).set(mode(status.state == this));
    }
    registry.register("netsilo_state", "1 for the current state of the controller", state);
    registry.register(
        "netsilo_read_bytes",
        "Bytes read, by distance between the CPU of the protocol work and the reader's CPU",
        sums.read.clone(),
    );
    registry.register(
        "netsilo_dropped_packets",
        "Packets that the kernel dropped, by what it means, the stage where they were lost, and \
         the kernel's reason; a lower bound, and an estimate above 100,000/s of one CPU",
        sums.dropped.clone(),
    );
    registry.register(
        "netsilo_namespaces_lost_packets",
        "Packets that other network namespaces lost, by their counters",
        sums.elsewhere.clone(),
    );
    registry.register(
        "netsilo_drops_counted_seconds",
        "How long dropped packets were counted, also between windows",
        sums.drops_counted.clone(),
    );
    let mut counter = |name: &str, help: &str, value: f64| {
        let counter = Seconds::default();
        counter.inc_by(value);
        registry.register(name, help, counter);
    };
    let totals = &status.totals;
    counter("netsilo_windows", "Observation windows completed", status.windows as f64);
    counter(
        "netsilo_changes",
        "Knobs written, including reverts and reapplied changes",
        totals.changes as f64,
    );
    counter(
        "netsilo_reverts",
        "Changes reverted because they made the placement worse",
        totals.reverts as f64,
    );
    counter(
        "netsilo_reapplied",
        "Changes written again after a device reset (drift)",
        totals.reapplied as f64,
    );
    counter("netsilo_refused", "Writes that the kernel refused", totals.refused as f64);
    counter(
        "netsilo_yielded",
        "How often a knob was left alone because another program wrote it",
        totals.yielded as f64,
    );
    counter(
        "netsilo_kernel_events",
        "Kernel events about netdevs, channels, rings, CPUs and suspends",
        totals.events as f64,
    );
    counter("netsilo_hint_writes", "Hint files written or removed", totals.hints as f64);
    counter(
        "netsilo_config_reloads",
        "Configurations accepted after the start",
        totals.reloads as f64,
    );
    counter(
        "netsilo_config_reload_failures",
        "Configurations rejected after the start",
        totals.bad_reloads as f64,
    );
    counter(
        "process_cpu_seconds",
        "CPU time of this process, user and system",
        status.own.cpu.as_secs_f64(),
    );
    counter(
        "netsilo_counting_cpu_seconds",
        "CPU time of the eBPF programs, which run in other threads' time",
        status.counting.programs.as_secs_f64(),
    );
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode_registry(&mut text, &registry);
    plain(&text)
}

/// Converts OpenMetrics to the older text format, which promtool checks and every version of
/// Prometheus reads. In OpenMetrics the name of a counter lacks the `_total` of its samples, and a
/// help text ends with a full stop.
fn plain(text: &str) -> String {
    let counters: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut plain = String::new();
    for line in text.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words.as_slice() {
            ["#", kind, name, rest] if counters.contains(name) => {
                plain += &format!("# {kind} {name}_total {rest}\n")
            }
            _ => plain += &format!("{line}\n"),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use netsilo_decide::judge::ledger::StageLosses;
    use netsilo_decide::plan::measured_outcome::{BestCandidate, MeasuredBasis};
    use netsilo_model::drivers::loss_stage::LossStage;
    use netsilo_model::synthetic::scene::Scene;

    use super::*;
    use crate::tell::status::NamespacesStatus;

    /// A status while the daemon follows an outcome.
    fn following() -> Status {
        let best = BestCandidate {
            name: "spread".into(),
            change: Some(Estimate { value: -0.12, low: -0.18, high: -0.06 }),
            relative: true,
        };
        let measured = MeasuredBasis {
            outcome: "20260102T030405Z".into(),
            age_s: 10_800,
            objective: "cpu-per-megabyte".into(),
            load: vec![],
            windows: 120,
            won: true,
            best,
        };
        let status = Status::first(std::time::Duration::ZERO, Mode::Placing, vec![]);
        let namespaces = Some(NamespacesStatus::default());
        Status { measured: Some(measured), namespaces, ..status }
    }

    #[test]
    fn the_page_of_the_daemon_rules_and_dashboards_name_metrics_that_exist() {
        let files = [
            include_str!("../../../../docs/daemon.md"),
            include_str!("../../../../contrib/prometheus/rules.yml"),
            include_str!("../../../../contrib/prometheus/dashboard-host.json"),
            include_str!("../../../../contrib/prometheus/dashboard-fleet.json"),
        ];
        let status = following();
        let mut sums = WindowSums::default();
        sums.add_read(&status.locality, 1.0);
        sums.add_drops(&window(&[("SOCKET_RCVBUFF", 1)]));
        sums.add_elsewhere(&lost_elsewhere(3));
        let text = render(&status, &sums, 1.0);
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        let words = files.iter().flat_map(|file| file.split(|c: char| !is_name(c)));
        // `host:netsilo_...` is the name of a rule
        let named: Vec<_> = words.filter(|word| word.starts_with("netsilo_")).collect();
        assert!(named.len() > 30, "{named:?}");
        for name in named {
            assert!(text.contains(&format!("# TYPE {name} ")), "the daemon has no metric {name}");
        }
    }

    /// Packets that other network namespaces lost at full sockets.
    fn lost_elsewhere(packets: u64) -> Ledger {
        let stage = StageLosses {
            stage: LossStage::Socket,
            count: packets,
            by_event: None,
            elsewhere: packets,
            per_s: 0.0,
            since_boot: packets,
            lines: Vec::new(),
        };
        Ledger { stages: vec![stage], ..Ledger::default() }
    }

    #[test]
    fn what_other_namespaces_lost_adds_up_by_stage() {
        let sums = WindowSums::default();
        for packets in [3, 4] {
            sums.add_elsewhere(&lost_elsewhere(packets));
        }
        let text = render(&following(), &sums, 1.0);
        let line = "netsilo_namespaces_lost_packets_total{stage=\"socket\"} 7\n";
        assert!(text.contains(line), "{text}");
    }

    /// A window of 10 s with these dropped packets.
    fn window(drops: &[(&str, u64)]) -> Observation {
        let drop = |(reason, packets): &(&str, u64)| DroppedPackets {
            reason: (*reason).into(),
            packets: *packets,
            ..DroppedPackets::default()
        };
        observed(drops.iter().map(drop).collect())
    }

    fn observed(drops: Vec<DroppedPackets>) -> Observation {
        let mut observation = Scene::default().observation();
        observation.attribution.drops = drops;
        observation.attribution.drops_elapsed = std::time::Duration::from_secs(10);
        observation
    }

    fn drops_of(sums: &WindowSums) -> Vec<String> {
        let text = render(&following(), sums, 1.0);
        let lines = text.lines().filter_map(|line| line.strip_prefix("netsilo_drop"));
        lines.map(str::to_owned).collect()
    }

    #[test]
    fn dropped_packets_add_up_over_windows() {
        let mut sums = WindowSums::default();
        assert_eq!(drops_of(&sums), ["s_counted_seconds_total 0.0"]);
        sums.add_drops(&window(&[("SOCKET_RCVBUFF", 5), ("SOCKET_RCVBUFF", 2), ("", 1)]));
        sums.add_drops(&window(&[("SOCKET_RCVBUFF", 10), ("NO_SOCKET", 3)]));
        let mut lines = drops_of(&sums);
        lines.sort();
        assert_eq!(
            lines,
            [
                "ped_packets_total{class=\"lost\",stage=\"socket\",reason=\"SOCKET_RCVBUFF\"} 17",
                "ped_packets_total{class=\"not_for_us\",stage=\"none\",reason=\"NO_SOCKET\"} 3",
                "ped_packets_total{class=\"unknown\",stage=\"none\",reason=\"NOT_SPECIFIED\"} 1",
                "s_counted_seconds_total 20.0",
            ]
        );
    }

    #[test]
    fn many_reasons_have_at_most_64_series_and_lose_no_packet() {
        let mut sums = WindowSums::default();
        let functions =
            ["veth_xmit", "udp_queue_rcv_one_skb", "nf_hook_slow", "unix_gc", "icmp_rcv"];
        let drop = |n: usize| DroppedPackets {
            reason: if n.is_multiple_of(3) { n.to_string() } else { format!("REASON_{n}") },
            function: functions[n % functions.len()].into(),
            packets: 1,
            ..DroppedPackets::default()
        };
        let drops = (0..2000).map(drop).collect();
        sums.add_drops(&observed(drops));
        let lines = drops_of(&sums);
        let values = lines.iter().filter(|line| line.contains('{'));
        let values: Vec<u64> =
            values.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
        assert!(values.len() > MOST_REASONS && values.len() <= 64, "{lines:#?}");
        assert_eq!(values.iter().sum::<u64>(), 2000);
    }

    #[test]
    fn an_outcome_has_its_age_and_interval_while_it_is_followed() {
        let status = Status::first(std::time::Duration::ZERO, Mode::Placing, vec![]);
        let lines = |status: &Status| {
            let text = render(status, &WindowSums::default(), 1.0);
            let lines = text.lines().filter(|line| line.starts_with("netsilo_outcome"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(lines(&status), ["netsilo_outcome_followed 0.0"]);
        let mut followed = lines(&following());
        followed.sort();
        assert_eq!(
            followed,
            [
                "netsilo_outcome_age_seconds 10800.0",
                "netsilo_outcome_change{bound=\"high\"} -0.06",
                "netsilo_outcome_change{bound=\"low\"} -0.18",
                "netsilo_outcome_change{bound=\"value\"} -0.12",
                "netsilo_outcome_followed 1.0",
            ]
        );
    }
}
