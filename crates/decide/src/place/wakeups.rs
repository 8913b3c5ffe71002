//! How often a vector wakes its readers and its kthread is woken, and how dear a wakeup is.

use netsilo_model::cost::assumed::Assumed;
use netsilo_model::cost::problem::SECOND_NS;
use netsilo_model::derive::wakeups::WakeupRate;
use netsilo_model::machine::cpuset::CpuId;

use crate::place::capacity::Capacity;
use crate::place::vector::Vector;

impl Vector {
    /// Time per second for which its kthread would wait for its turn on a CPU that always runs
    /// something else (ns/s); 0 without a kthread.
    pub(super) fn turns(&self, assumed: &Assumed) -> f64 {
        if self.threaded { (self.polls_per_s * assumed.turn_ns).min(SECOND_NS) } else { 0.0 }
    }

    /// Wakeups per second of readers that sleep on a CPU: the counted rate, or else one per poll
    /// that finds them asleep.
    pub(super) fn wakeups_from(&self, cpu: CpuId, share: f64, capacity: &Capacity<'_>) -> f64 {
        match self.counted_wakeups(cpu) {
            Some(wakeups) => wakeups,
            None => self.deliveries(share) * capacity.idle(cpu),
        }
    }

    /// The cost of a mean wakeup on a CPU, relative to that of one that finds it idle.
    pub(super) fn ipi_share(&self, cpu: CpuId, capacity: &Capacity<'_>) -> f64 {
        let idle = || Some(self.idle_wakeups_on.as_ref()?.get(&cpu)? / self.counted_wakeups(cpu)?);
        let idle = idle().filter(|share| share.is_finite()).unwrap_or(1.0).clamp(0.0, 1.0);
        idle + (1.0 - idle) * capacity.busy_wakeup
    }

    /// What one counted wakeup of its kthread by this CPU costs on another CPU, relative to one
    /// that finds that CPU idle: as counted there. If the kthread is on the waker's own CPU now, it
    /// is as expected on its reader's CPU, which is taken as idle if there is none.
    pub(super) fn ipi_of_kthread(
        &self,
        by: CpuId,
        rate: WakeupRate,
        capacity: &Capacity<'_>,
    ) -> f64 {
        let reader = self.main_reader();
        let (needed, idle) = match self.measured_on {
            Some(there) if there != by => (1.0, rate.idle_per_s / rate.per_s),
            Some(_) => {
                (self.asleep(reader, capacity), reader.map_or(1.0, |cpu| capacity.idle(cpu)))
            }
            // On several CPUs, so that some wakeups were from another one.
            None => (1.0, reader.map_or(1.0, |cpu| capacity.idle(cpu))),
        };
        let idle = if idle.is_finite() { idle.clamp(0.0, 1.0) } else { 1.0 };
        needed * (idle + (1.0 - idle) * capacity.busy_wakeup)
    }

    /// Share of the time in which its kthread would sleep if it shared a CPU with a reader: packets
    /// that find it awake wake nobody. It shares that CPU with the other work, so what it does
    /// takes longer by the same ratio (processor sharing).
    fn asleep(&self, reader: Option<CpuId>, capacity: &Capacity<'_>) -> f64 {
        let busy = reader.map_or(0.0, |cpu| 1.0 - capacity.idle(cpu));
        let load = reader.map_or(self.load, |cpu| capacity.load_on(cpu, self));
        let awake = load / capacity.dilation / (1.0 - busy / capacity.dilation);
        if awake.is_finite() { (1.0 - awake).max(0.0) } else { 0.0 }
    }

    /// Share of the polls that find the readers on a CPU asleep, so that they and the poll never
    /// want the CPU at the same time; `share` of the packets go there.
    pub(super) fn finds_asleep(&self, cpu: CpuId, share: f64, capacity: &Capacity<'_>) -> f64 {
        match self.counted_wakeups(cpu) {
            Some(wakeups) if wakeups > 0.0 => (wakeups / self.deliveries(share)).min(1.0),
            Some(_) => 0.0,
            None => capacity.idle(cpu),
        }
    }

    fn counted_wakeups(&self, cpu: CpuId) -> Option<f64> {
        let counted = self.wakeups_on.as_ref().filter(|_| self.rps_targets.is_empty())?;
        Some(counted.get(&cpu).copied().unwrap_or(0.0))
    }

    /// Polls per second that deliver packets to the readers of this share.
    fn deliveries(&self, share: f64) -> f64 {
        self.polls_per_s.min(self.packets_per_s) * share
    }
}
