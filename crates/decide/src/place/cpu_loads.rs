//! [`CpuLoads`]: the load of each CPU, with the vectors that an algorithm has placed so far.

use netsilo_model::machine::cpuset::{CpuId, CpuSet, MAX_CPUS};

use crate::place::capacity::Capacity;
use crate::place::vector::Vector;

/// A CPU on which work takes this many times as long is slow: more than the clocks of equal cores
/// differ.
const SLOW: f64 = 1.25;

/// Converts a share of a CPU's time to whole millionths, so that subtracting it again leaves no
/// residue that decides a tie.
pub(super) fn millionths(share: f64) -> u64 {
    // A bundle may contain any load; sums of this many millionths fit in a u64.
    (share * 1e6).round().min(1e12) as u64
}

/// The capacity, with the load of the vectors placed so far.
pub(super) struct CpuLoads<'a> {
    pub(super) capacity: &'a Capacity<'a>,
    /// By CPU number.
    pub(super) cpus: Vec<CpuLoad>,
}

/// The load of one CPU.
#[derive(Clone, Default)]
pub(super) struct CpuLoad {
    /// Online CPUs of its core.
    pub(super) core: CpuSet,
    /// Busy time in [`millionths`]: that of the capacity plus the load placed here.
    pub(super) busy: u64,
    /// Number of vectors placed here.
    pub(super) queues: usize,
}

impl<'a> CpuLoads<'a> {
    pub(super) fn new(capacity: &'a Capacity<'a>) -> Self {
        let topology = capacity.topology;
        let highest = topology.cpus.keys().next_back().copied().max(topology.online.highest());
        // A bundle may contain any CPU number.
        let count = highest.map_or(0, |cpu| cpu.0.min(MAX_CPUS - 1) + 1);
        // A CPU without data counts as busy.
        let busy = |cpu| millionths(capacity.busy.get(&cpu).copied().unwrap_or(1.0));
        let cpu_load = |cpu| CpuLoad {
            core: topology.core_of(cpu).and(&topology.online),
            busy: busy(cpu),
            queues: 0,
        };
        Self { capacity, cpus: (0..count).map(|cpu| cpu_load(CpuId(cpu))).collect() }
    }

    pub(super) fn put(&mut self, cpu: CpuId, vector: &Vector) {
        if let Some(cpu_load) = self.cpus.get_mut(cpu.0 as usize) {
            cpu_load.queues += 1;
            cpu_load.busy += millionths(self.capacity.load_on(cpu, vector));
        }
    }

    /// Removes a vector that was put there.
    pub(super) fn take(&mut self, cpu: CpuId, vector: &Vector) {
        if let Some(cpu_load) = self.cpus.get_mut(cpu.0 as usize) {
            cpu_load.queues -= 1;
            cpu_load.busy -= millionths(self.capacity.load_on(cpu, vector));
        }
    }

    /// Number of vectors placed on a CPU.
    pub(super) fn queues_at(&self, cpu: CpuId) -> usize {
        self.cpus.get(cpu.0 as usize).map_or(0, |cpu_load| cpu_load.queues)
    }

    /// Number of vectors placed on these CPUs.
    pub(super) fn queues_on(&self, cpus: &CpuSet) -> usize {
        cpus.iter().map(|cpu| self.queues_at(cpu)).sum()
    }

    /// Busy time of a CPU in [`millionths`], including the load placed there.
    pub(super) fn busy(&self, cpu: CpuId) -> u64 {
        self.cpus.get(cpu.0 as usize).map_or(millionths(1.0), |cpu_load| cpu_load.busy)
    }

    /// Busy time of a whole core in [`millionths`]; up to 1 for each of its online CPUs, more if
    /// overloaded.
    pub(super) fn core_busy(&self, cpu: CpuId) -> u64 {
        self.core(cpu).iter().map(|cpu| self.busy(cpu)).sum()
    }

    pub(super) fn core_busy_below(&self, cpu: CpuId, limit: f64) -> bool {
        self.core(cpu).iter().all(|cpu| self.busy(cpu) < millionths(limit))
    }

    /// Online CPUs of the core.
    pub(super) fn core(&self, cpu: CpuId) -> &CpuSet {
        const NONE: &CpuSet = &CpuSet::new();
        self.cpus.get(cpu.0 as usize).map_or(NONE, |cpu_load| &cpu_load.core)
    }

    pub(super) fn is_slow(&self, cpu: CpuId) -> bool {
        self.capacity.topology.slowdown(cpu) >= SLOW
    }
}
