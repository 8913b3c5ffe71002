//! Guard rails: how bad a candidate may get, derived from measurements of the current state.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use crate::stats::{median, rank_below_quantile};
use netsilo_model::derive::rates::{CpuRates, Rates, rates};
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::snapshot::runqueue::RunqueueLatency;
use serde::{Deserialize, Serialize};

use crate::comparison::Better;
use crate::race::rules::RaceRules;
use crate::workload::{WorkloadMeasure, packets_per_s};

/// Maximum number of values from which a limit is computed: the newest of the current state.
const MOST_VALUES: usize = 64;

/// Minimum number of values of the current state for a limit.
const LEAST_VALUES: usize = 4;

/// Minimum number of waits for a bound of their 99th percentile. On a busy machine a part of a
/// window has this many, so a candidate that makes readers wait is reverted as soon as one that
/// loses packets.
const FEWEST_WAITS: u64 = 100;

/// Probability that the bound is above the 99th percentile.
const BOUND_ERROR: f64 = 0.01;

/// What one part of a window showed; `None` for what was not measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Peek {
    /// The objective, in its own unit.
    pub objective: Option<f64>,
    /// Packets lost before a reader got them, per packet received.
    pub lost: Option<f64>,
    /// TCP segments retransmitted, per segment sent.
    pub retransmitted: Option<f64>,
    /// A lower bound of the 99th percentile of the run-queue latency of socket readers, in
    /// nanoseconds.
    pub runqueue_p99_ns: Option<f64>,
    /// Packets that the netdevs received, per second.
    pub received_per_s: Option<f64>,
}

/// A quantity with a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Rail {
    /// The objective.
    Objective,
    /// [`Peek::lost`].
    Drops,
    /// [`Peek::retransmitted`].
    Retransmits,
    /// [`Peek::runqueue_p99_ns`].
    RunqueueLatency,
    /// [`Peek::received_per_s`]. Its limit is half of the smaller value of two consecutive parts.
    /// While the traffic is below its limit, the other rails show nothing, because they are shares
    /// of the traffic.
    Traffic,
}

/// A limit that a candidate broke.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Breach {
    /// The quantity.
    pub rail: Rail,
    /// The measured value, in the unit of the quantity.
    pub value: f64,
    /// The limit, in the same unit.
    pub limit: f64,
}

impl Rail {
    /// All rails.
    pub const ALL: [Self; 5] =
        [Self::Objective, Self::Drops, Self::Retransmits, Self::RunqueueLatency, Self::Traffic];

    pub(super) fn value(self, peek: &Peek) -> Option<f64> {
        match self {
            Self::Objective => peek.objective,
            Self::Drops => peek.lost,
            Self::Retransmits => peek.retransmitted,
            Self::RunqueueLatency => peek.runqueue_p99_ns,
            Self::Traffic => peek.received_per_s,
        }
    }

    /// How far a value may be beyond the worst value of the current state.
    fn tolerated(self, rules: &RaceRules, values: &[f64], worst: f64) -> Option<f64> {
        if self == Self::Traffic {
            return Some(worst.abs() / 2.0);
        }
        Some(rules.never_worse * median(values)?.abs() + self.negligible())
    }

    /// A difference from the current state that never counts, in the unit of the quantity: one
    /// packet in a thousand, a tenth of a millisecond.
    fn negligible(self) -> f64 {
        match self {
            Self::Objective | Self::Traffic => 0.0,
            Self::Drops | Self::Retransmits => 1e-3,
            Self::RunqueueLatency => 1e5,
        }
    }
}

impl fmt::Display for Rail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Objective => "objective",
            Self::Drops => "packet loss",
            Self::Retransmits => "TCP retransmits",
            Self::RunqueueLatency => "run-queue latency",
            Self::Traffic => "packets received per second",
        })
    }
}

impl Peek {
    /// What an observation shows, including the objective if it is measured on the live workload.
    ///
    /// `waits` collects the waits of the parts of a window until there are enough for a bound.
    pub fn from_observation(
        observation: &Observation,
        measure: Option<WorkloadMeasure>,
        waits: &mut Waits,
    ) -> Self {
        let rates = rates(&observation.before, &observation.after);
        let received = packets_per_s(observation, &rates);
        Self {
            received_per_s: Some(received),
            objective: measure.and_then(|measure| measure.compute(observation).ok()),
            lost: share(lost_per_s(&rates), received),
            retransmitted: share(
                protocol(&rates, "TcpRetransSegs"),
                protocol(&rates, "TcpOutSegs"),
            ),
            runqueue_p99_ns: waits.take(observation.attribution.runqueue_latency.as_ref()),
        }
    }
}

/// The waits for a CPU since the last bound. One part of a window may have too few of them.
#[derive(Debug, Clone, Default)]
pub struct Waits(RunqueueLatency);

impl Waits {
    /// Adds the waits of a part. Once there are enough, returns the lower bound of their 99th
    /// percentile and starts again.
    fn take(&mut self, part: Option<&RunqueueLatency>) -> Option<f64> {
        self.0.append(part?.clone());
        let count = self.0.count();
        if count < FEWEST_WAITS {
            return None;
        }
        std::mem::take(&mut self.0).ranked_ns(rank_below_quantile(count, 0.99, BOUND_ERROR)?)
    }
}

fn share(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

fn protocol(rates: &Rates, counter: &str) -> f64 {
    rates.protocols.get(counter).copied().unwrap_or(0.0)
}

/// Packets lost per second: by the device, at the backlog, at full sockets.
fn lost_per_s(rates: &Rates) -> f64 {
    let of_netdevs = rates.netdevs.values().flat_map(|counters| {
        ["rx_dropped", "rx_missed_errors"].map(|name| counters.get(name).copied().unwrap_or(0.0))
    });
    let backlog = |cpu: &CpuRates| cpu.softnet.and_then(|it| it.dropped_per_s).unwrap_or(0.0);
    let sockets = ["UdpRcvbufErrors", "Udp6RcvbufErrors", "TcpExtTCPBacklogDrop"];
    of_netdevs.sum::<f64>()
        + rates.cpus.values().map(backlog).sum::<f64>()
        + sockets.map(|name| protocol(rates, name)).iter().sum::<f64>()
}

/// The newest values of the current state. Signs are changed so that higher is worse.
#[derive(Debug, Clone, Default)]
pub(super) struct Limits {
    values: BTreeMap<Rail, VecDeque<f64>>,
    /// The traffic of the last part.
    received: Option<f64>,
}

impl Limits {
    /// Adds measurements of the current state.
    pub(super) fn learn(&mut self, rules: &RaceRules, peek: &Peek) {
        for rail in Rail::ALL {
            let value = if rail == Rail::Traffic { self.steady(peek) } else { rail.value(peek) };
            let Some(value) = value else { continue };
            let values = self.values.entry(rail).or_default();
            values.push_back(turned(rules, rail, value));
            if values.len() > MOST_VALUES {
                values.pop_front();
            }
        }
    }

    /// The larger traffic of the last two parts. One part without traffic is only a pause of the
    /// sender, and a candidate is also dropped only after two parts.
    fn steady(&mut self, peek: &Peek) -> Option<f64> {
        let before = std::mem::replace(&mut self.received, peek.received_per_s);
        Some(before?.max(peek.received_per_s?))
    }

    /// The limits that a part of a window breaks. If the traffic breaks its limit, only that one.
    ///
    /// A limit is the worst value of the current state, plus the tolerated share of its median,
    /// plus the difference that never counts. For the traffic it is half of the smallest value.
    pub(super) fn broken(&self, rules: &RaceRules, peek: &Peek) -> Vec<Breach> {
        let broken = |rail: Rail| {
            let (values, value) = (self.values.get(&rail)?, rail.value(peek)?);
            if values.len() < LEAST_VALUES {
                return None;
            }
            let values: Vec<f64> = values.iter().copied().collect();
            let worst = values.iter().copied().reduce(f64::max)?;
            let tolerated = rail.tolerated(rules, &values, worst)?;
            let limit = turned(rules, rail, worst + tolerated);
            let breach = Breach { rail, value, limit };
            breach.is_broken_by(rules, peek).then_some(breach)
        };
        match broken(Rail::Traffic) {
            Some(breach) => vec![breach],
            None => Rail::ALL.into_iter().filter_map(broken).collect(),
        }
    }
}

impl Breach {
    /// A window whose objective is worse than the worst window of the current state by more than is
    /// tolerated.
    pub(super) fn of_window(rules: &RaceRules, present: &[f64], value: f64) -> Option<Self> {
        let rail = Rail::Objective;
        let present: Vec<f64> = present.iter().map(|it| turned(rules, rail, *it)).collect();
        let worst = present.iter().copied().reduce(f64::max)?;
        let most = worst + rail.tolerated(rules, &present, worst)?;
        let breach = Self { rail, value, limit: turned(rules, rail, most) };
        (turned(rules, rail, value) > most).then_some(breach)
    }

    /// Whether a part of a window also breaks the limit of this breach.
    pub(super) fn is_broken_by(&self, rules: &RaceRules, peek: &Peek) -> bool {
        let turned = |value| turned(rules, self.rail, value);
        self.rail.value(peek).is_some_and(|value| turned(value) > turned(self.limit))
    }
}

/// The value with its sign changed so that higher is worse. Applying it twice gives the value
/// again.
fn turned(rules: &RaceRules, rail: Rail, value: f64) -> f64 {
    let higher_is_better = match rail {
        Rail::Objective => rules.better == Better::Higher,
        Rail::Traffic => true,
        Rail::Drops | Rail::Retransmits | Rail::RunqueueLatency => false,
    };
    if higher_is_better { -value } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objective(value: f64) -> Peek {
        Peek { objective: Some(value), ..Peek::default() }
    }

    fn learnt(rules: &RaceRules, values: &[f64]) -> Limits {
        let mut limits = Limits::default();
        values.iter().for_each(|value| limits.learn(rules, &objective(*value)));
        limits
    }

    #[test]
    fn a_limit_is_beyond_the_worst_value_of_the_present_state() {
        let rules = RaceRules { never_worse: 0.05, ..RaceRules::default() };
        let limits = learnt(&rules, &[100.0, 104.0, 98.0, 100.0]);
        let broken = |value: f64| limits.broken(&rules, &objective(value)).pop();
        assert_eq!(broken(109.0), None);
        let breach = broken(109.5).unwrap();
        assert_eq!((breach.rail, breach.value, breach.limit), (Rail::Objective, 109.5, 109.0));
        let rate = RaceRules { better: Better::Higher, ..rules };
        let limits = learnt(&rate, &[100.0, 104.0, 98.0, 100.0]);
        assert!(limits.broken(&rate, &objective(93.5)).is_empty());
        assert_eq!(limits.broken(&rate, &objective(92.5))[0].limit, 93.0);
    }

    #[test]
    fn few_values_and_quantities_without_a_value_have_no_limit() {
        let rules = RaceRules::default();
        assert!(learnt(&rules, &[1.0; 3]).broken(&rules, &objective(9.0)).is_empty());
        assert!(learnt(&rules, &[1.0; 4]).broken(&rules, &Peek::default()).is_empty());
    }

    #[test]
    fn traffic_that_stops_breaks_its_limit_unless_it_stopped_before() {
        let rules = RaceRules::default();
        let received = |per_s: f64| Peek { received_per_s: Some(per_s), ..Peek::default() };
        let mut limits = Limits::default();
        for per_s in [900.0, 800.0, 1000.0, 0.0, 1000.0] {
            limits.learn(&rules, &received(per_s));
        }
        assert!(limits.broken(&rules, &received(451.0)).is_empty());
        let breach = limits.broken(&rules, &received(0.0)).pop();
        assert_eq!(breach, Some(Breach { rail: Rail::Traffic, value: 0.0, limit: 450.0 }));
        (0..2).for_each(|_| limits.learn(&rules, &received(0.0)));
        assert!(limits.broken(&rules, &received(0.0)).is_empty());
    }

    #[test]
    fn without_traffic_a_stray_packet_that_is_lost_is_no_loss_of_the_candidate() {
        let rules = RaceRules::default();
        let loads = |per_s, lost, cost| Peek {
            received_per_s: Some(per_s),
            lost: Some(lost),
            objective: Some(cost),
            ..Peek::default()
        };
        let mut limits = Limits::default();
        (0..5).for_each(|_| limits.learn(&rules, &loads(1000.0, 0.0, 1.0)));
        let rails =
            |peek| limits.broken(&rules, &peek).iter().map(|it| it.rail).collect::<Vec<_>>();
        assert_eq!(rails(loads(1.0, 1.0, 900.0)), [Rail::Traffic]);
        assert_eq!(rails(loads(1000.0, 1.0, 900.0)), [Rail::Objective, Rail::Drops]);
    }

    #[test]
    fn waits_of_several_parts_give_one_bound() {
        let part = |short: u64, long: u64| RunqueueLatency {
            waits: [(5000, short), (9_000_000, long)].into(),
        };
        let mut waits = Waits::default();
        assert_eq!(waits.take(Some(&part(50, 0))), None);
        assert_eq!(waits.take(None), None);
        let is = |bound: Option<f64>, ns: f64| {
            assert!((bound.unwrap() - ns).abs() < ns / 16.0, "{bound:?}");
        };
        // of 100 waits, four long ones may be chance, five are not
        is(waits.take(Some(&part(46, 4))), 5000.0);
        // the next bound needs new waits
        assert_eq!(waits.take(Some(&part(99, 0))), None);
        is(waits.take(Some(&part(0, 5))), 9_000_000.0);
    }

    #[test]
    fn a_candidate_that_makes_readers_wait_is_out_after_two_parts_of_a_busy_server() {
        let rules = RaceRules::default();
        let mut waits = Waits::default();
        let mut peek = |long: u64| {
            let part = RunqueueLatency { waits: [(50_000, 100), (8_000_000, long)].into() };
            Peek { runqueue_p99_ns: waits.take(Some(&part)), ..Peek::default() }
        };
        let mut limits = Limits::default();
        (0..4).for_each(|_| limits.learn(&rules, &peek(1)));
        let broken = |peek: Peek| limits.broken(&rules, &peek).iter().map(|it| it.rail).collect();
        let both: [Vec<Rail>; 2] = [broken(peek(20)), broken(peek(20))];
        assert_eq!(both, [[Rail::RunqueueLatency], [Rail::RunqueueLatency]]);
    }

    #[test]
    fn a_loss_below_one_packet_in_a_thousand_never_counts() {
        let rules = RaceRules::default();
        let lost = |lost: f64| Peek { lost: Some(lost), ..Peek::default() };
        let mut limits = Limits::default();
        (0..4).for_each(|_| limits.learn(&rules, &lost(0.0)));
        assert!(limits.broken(&rules, &lost(0.0009)).is_empty());
        assert_eq!(limits.broken(&rules, &lost(0.01))[0].rail, Rail::Drops);
    }
}
