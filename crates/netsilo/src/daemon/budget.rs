//! The daemon limits its own cost: the more CPU time the eBPF programs take, the shorter they are
//! attached.

use std::time::Duration;

use netsilo_model::snapshot::attribution::CountingCost;

/// Minimum time for which the programs are attached.
pub(crate) const SHORTEST: Duration = Duration::from_millis(10);

/// The cost of one cycle.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cycle {
    pub(crate) length: Duration,
    /// Online CPUs.
    pub(crate) cpus: usize,
    /// CPU time of the process.
    pub(crate) own: Duration,
    /// The CPU time of the eBPF programs, and how long they were attached.
    pub(crate) programs: Option<CountingCost>,
    pub(crate) attached: Duration,
}

impl Cycle {
    fn machine_seconds(&self) -> f64 {
        self.length.as_secs_f64() * self.cpus as f64
    }

    fn programs_seconds(&self) -> f64 {
        self.programs.map_or(0.0, |cost| Duration::from_nanos(cost.ns).as_secs_f64())
    }

    /// Share of the machine's CPU time used by the process and the programs.
    pub(crate) fn share(&self) -> f64 {
        (self.own.as_secs_f64() + self.programs_seconds()) / self.machine_seconds()
    }

    /// For what share of a cycle the programs may be attached within the budget. They may use what
    /// the process leaves of the budget.
    fn attachable(&self, budget: f64) -> f64 {
        let left = (budget * self.machine_seconds() - self.own.as_secs_f64()).max(0.0);
        let load = self.programs_seconds() / self.attached.as_secs_f64();
        if load > 0.0 { left / load / self.length.as_secs_f64() } else { 1.0 }
    }
}

/// How long the programs are attached in each cycle.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    attachable: f64,
}

impl Default for Budget {
    /// The whole window, until a cycle shows the cost.
    fn default() -> Self {
        Self { attachable: 1.0 }
    }
}

impl Budget {
    /// Learns from a cycle. Without a limit, the window is never shortened.
    pub(crate) fn learn(&mut self, limit: Option<f64>, cycle: &Cycle) {
        self.attachable = limit.map_or(1.0, |limit| cycle.attachable(limit));
    }

    /// The window in a cycle of this length; at most `longest`.
    pub(crate) fn window(&self, longest: Duration, cycle: Duration) -> Duration {
        let allowed = cycle.mul_f64(self.attachable.clamp(0.0, 1.0));
        allowed.max(SHORTEST).min(longest).min(cycle)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A cycle of 10 s on two CPUs, with programs that take this share of both while attached.
    fn cycle(load: f64, own: Duration, attached: Duration) -> Cycle {
        let ns = (attached.as_nanos() as f64 * 2.0 * load) as u64;
        let programs = Some(CountingCost { ns, measured: true });
        Cycle { length: 10 * SECOND, cpus: 2, own, programs, attached }
    }

    #[test]
    fn a_load_that_costs_twice_the_budget_halves_the_window() {
        let mut budget = Budget::default();
        assert_eq!(budget.window(SECOND, 10 * SECOND), SECOND);
        let cycle = cycle(0.06, Duration::ZERO, SECOND);
        assert!((cycle.share() - 0.006).abs() < 1e-6);
        budget.learn(Some(0.003), &cycle);
        let window = budget.window(SECOND, 10 * SECOND);
        assert!((window.as_secs_f64() - 0.5).abs() < 1e-6, "{window:?}");
        // a short cycle gets its share
        assert!((budget.window(SECOND, SECOND).as_secs_f64() - 0.05).abs() < 1e-6);
        budget.learn(None, &cycle);
        assert_eq!(budget.window(SECOND, 10 * SECOND), SECOND);
    }

    #[test]
    fn nothing_to_count_gives_the_whole_window() {
        let mut budget = Budget::default();
        let idle = Cycle { programs: None, ..cycle(0.0, Duration::ZERO, Duration::ZERO) };
        budget.learn(Some(0.003), &idle);
        assert_eq!(budget.window(SECOND, 10 * SECOND), SECOND);
    }

    proptest! {
        /// If the load stays the same, the process and the programs stay within the budget in the
        /// next cycle, unless the process alone or the shortest window exceeds it.
        #[test]
        fn the_next_cycle_is_within_the_budget(
            load in 0.0..1.0f64,
            own_ms in 0u64..200,
            window_ms in 10u64..10_000,
            limit in 0.0001..1.0f64,
        ) {
            let (own, attached) = (Duration::from_millis(own_ms), Duration::from_millis(window_ms));
            let mut budget = Budget::default();
            budget.learn(Some(limit), &cycle(load, own, attached));
            let window = budget.window(10 * SECOND, 10 * SECOND);
            let next = cycle(load, own, window).share();
            let own_alone = cycle(0.0, own, window).share();
            prop_assert!(next <= limit.max(own_alone) + 1e-6 || window <= SHORTEST);
        }
    }
}
