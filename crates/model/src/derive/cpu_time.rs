//! How a CPU spent its time: sampled by clock ticks, measured by eBPF, and the difference.

use serde::{Deserialize, Serialize};

use crate::derive::rates::{Rates, Shares};
use crate::machine::cpuset::CpuId;
use crate::snapshot::host::CpuCounters;
use crate::snapshot::observation::Observation;

/// USER_HZ: ticks of `/proc/stat` per second, independent of the kernel's HZ.
const TICKS_PER_S: f64 = 100.0;

/// Least difference between ticks and measurement, as a share of the time, that is reported.
pub const MIN_DIFFERENCE: f64 = 0.10;

/// How one CPU spent its time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CpuTimeShares {
    /// Sampled at clock ticks (`/proc/stat`), as shares of all counted ticks.
    pub ticks: Option<Shares>,
    /// Share of the time in which the CPU idled: while the tick is stopped, idle time comes from a
    /// clock and is not sampled.
    pub idle: Option<f64>,
    /// Share of the time without any counted tick: the tick was stopped although the CPU did not
    /// idle.
    pub uncounted: Option<f64>,
    /// Measured at entry and exit (eBPF).
    pub measured: Option<MeasuredShares>,
}

/// Shares of the time, measured at entry and exit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MeasuredShares {
    /// In the NET_RX softirq.
    pub net_rx: f64,
    /// In the NET_TX softirq.
    pub net_tx: f64,
    /// In all other softirqs.
    pub other_softirq: f64,
    /// In handlers of device interrupts.
    pub hardirq: f64,
    /// In call-function inter-processor interrupts.
    pub ipi: f64,
    /// In reschedule inter-processor interrupts; `None` when not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reschedule: Option<f64>,
}

impl MeasuredShares {
    /// The shares of a CPU; `None` if they were not measured.
    pub fn of(observation: &Observation, cpu: CpuId) -> Option<Self> {
        let attribution = &observation.attribution;
        let elapsed = attribution.elapsed.as_secs_f64();
        let time = attribution.cpu_time.get(&cpu).filter(|_| elapsed > 0.0)?;
        let share = |nanoseconds: u64| (nanoseconds as f64 / 1e9 / elapsed).min(1.0);
        Some(Self {
            net_rx: share(time.net_rx_ns),
            net_tx: share(time.net_tx_ns),
            other_softirq: share(time.other_softirq_ns),
            hardirq: share(time.hardirq_ns),
            ipi: share(time.ipi_ns),
            reschedule: time.reschedules.map(|all| share(all.ns)),
        })
    }

    /// All softirqs.
    pub fn softirq(&self) -> f64 {
        self.net_rx + self.net_tx + self.other_softirq
    }

    /// All time that interrupts threads.
    pub fn interrupted(&self) -> f64 {
        self.softirq() + self.hardirq + self.ipi + self.reschedule.unwrap_or(0.0)
    }
}

impl CpuTimeShares {
    /// Computes the time of a CPU from an observation.
    pub fn from_observation(observation: &Observation, rates: &Rates, cpu: CpuId) -> Self {
        let elapsed = rates.elapsed.as_secs_f64();
        let counters = |of: &crate::snapshot::host::Snapshot| of.cpus.get(&cpu).cloned();
        let both = counters(&observation.before)
            .zip(counters(&observation.after))
            .filter(|_| elapsed > 0.0);
        let ticks = |(old, new): &(CpuCounters, CpuCounters)| {
            let all = |c: &CpuCounters| {
                let s = c.stat;
                [s.user, s.nice, s.system, s.idle, s.iowait, s.irq, s.softirq, s.steal]
                    .into_iter()
                    .fold(0, u64::saturating_add)
            };
            all(new).saturating_sub(all(old)) as f64 / TICKS_PER_S / elapsed
        };
        let idle = |(old, new): &(CpuCounters, CpuCounters)| {
            let idle = |c: &CpuCounters| c.stat.idle.saturating_add(c.stat.iowait);
            (idle(new).saturating_sub(idle(old)) as f64 / TICKS_PER_S / elapsed).min(1.0)
        };
        // a row that stands still shows nothing
        let both = both.filter(|both| ticks(both) > 0.0);
        Self {
            ticks: rates.cpus.get(&cpu).and_then(|rates| rates.shares),
            idle: both.as_ref().map(idle),
            uncounted: both.as_ref().map(|both| (1.0 - ticks(both)).max(0.0)),
            measured: MeasuredShares::of(observation, cpu),
        }
    }

    /// Share of the time in softirqs; the flag is true if measured, false if sampled.
    pub fn softirq(&self) -> Option<(f64, bool)> {
        self.measured.map(|it| (it.softirq(), true)).or_else(|| Some((self.ticks?.softirq, false)))
    }

    /// Share of the time in softirqs, device interrupts and IPIs.
    pub fn interrupted(&self) -> Option<f64> {
        self.measured
            .map(|it| it.interrupted())
            .or_else(|| self.ticks.map(|ticks| ticks.softirq + ticks.irq))
    }

    /// Interrupt time by ticks minus measured interrupt time, as a share of the time; `None` if one
    /// is unknown.
    pub fn tick_excess(&self) -> Option<f64> {
        let (ticks, measured) = self.ticks.zip(self.measured)?;
        Some(ticks.softirq + ticks.irq - measured.interrupted())
    }

    /// Describes the difference between ticks and measurement, if it misleads.
    pub fn difference(&self) -> Option<String> {
        let more = self.tick_excess().filter(|more| more.abs() >= MIN_DIFFERENCE)?;
        let points = (more.abs() * 100.0).round();
        let uncounted = self.uncounted.unwrap_or(0.0);
        Some(match more > 0.0 {
            true => format!(
                "clock ticks show {points} points more: work in step with the tick, such as work \
                 that timers start, is sampled more often than it runs"
            ),
            false if uncounted >= more.abs() / 2.0 => format!(
                "clock ticks show {points} points less: an idle cpu stops its tick, and the time \
                 of interrupts in that state is not counted ({:.0}% of the time is missing from \
                 its row)",
                uncounted * 100.0
            ),
            false => format!(
                "clock ticks show {points} points less: a sample falls between short interrupts, \
                 and work of ksoftirqd or of a NAPI's kthread may count as system time"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(softirq_ticks: f64, measured: f64, uncounted: f64) -> CpuTimeShares {
        CpuTimeShares {
            ticks: Some(Shares {
                softirq: softirq_ticks,
                idle: 1.0 - softirq_ticks,
                ..Shares::default()
            }),
            idle: Some(0.3),
            uncounted: Some(uncounted),
            measured: Some(MeasuredShares { net_rx: measured, ..MeasuredShares::default() }),
        }
    }

    #[test]
    fn a_small_difference_is_not_reported() {
        assert_eq!(split(0.42, 0.5, 0.0).difference(), None);
    }

    #[test]
    fn the_difference_is_named_by_its_cause() {
        let text = |it: CpuTimeShares| it.difference().unwrap();
        assert!(
            text(split(0.0, 0.4, 0.4)).contains("40% of the time is missing"),
            "{}",
            text(split(0.0, 0.4, 0.4))
        );
        assert!(text(split(0.1, 0.5, 0.0)).contains("show 40 points less: a sample falls between"));
        assert!(text(split(0.6, 0.2, 0.0)).starts_with("clock ticks show 40 points more"));
    }

    #[test]
    fn any_times_of_a_bundle_are_accepted() {
        let mut observation = crate::synthetic::scene::Scene::default().observation();
        let cpu = CpuId(0);
        let stat = &mut observation.after.cpus.get_mut(&cpu).unwrap().stat;
        (stat.idle, stat.iowait, stat.user) = (u64::MAX, u64::MAX, u64::MAX);
        let rates = crate::derive::rates::rates(&observation.before, &observation.after);
        assert_eq!(CpuTimeShares::from_observation(&observation, &rates, cpu).idle, Some(1.0));
    }

    #[test]
    fn a_row_that_stands_still_shows_no_time() {
        let mut observation = crate::synthetic::scene::Scene::default().observation();
        observation.after.cpus = observation.before.cpus.clone();
        let rates = crate::derive::rates::rates(&observation.before, &observation.after);
        let split = CpuTimeShares::from_observation(&observation, &rates, CpuId(0));
        assert_eq!((split.ticks, split.idle, split.uncounted), (None, None, None));
    }

    #[test]
    fn idle_and_missing_time_are_shares_of_the_clock_not_of_the_ticks() {
        let mut observation = crate::synthetic::scene::Scene::default().observation();
        let cpu = CpuId(0);
        let stat = &mut observation.after.cpus.get_mut(&cpu).unwrap().stat;
        (stat.idle, stat.softirq) = (600, 0);
        let rates = crate::derive::rates::rates(&observation.before, &observation.after);
        let split = CpuTimeShares::from_observation(&observation, &rates, cpu);
        assert_eq!((split.ticks.unwrap().idle, split.idle), (1.0, Some(0.6)));
        assert!((split.uncounted.unwrap() - 0.4).abs() < 1e-9);
    }
}
