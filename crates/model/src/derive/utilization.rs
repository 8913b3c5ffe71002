//! The utilization of each CPU, as every estimate of a placement or a setting takes it.

use std::collections::BTreeMap;

use crate::derive::analysis::Analysis;
use crate::derive::cpu_time::MeasuredShares;
use crate::derive::silo::Silo;
use crate::machine::cpuset::CpuId;

/// Least share of a CPU's time that counts as its own, whatever the hypervisor takes.
const LEAST_ROOM: f64 = 0.05;

/// Shares of one CPU's time, without what runs at low priority, which yields to everything.
///
/// Interrupts and softirqs are as eBPF measured them at entry and exit, else by clock ticks; the
/// rest is always by ticks. On a full CPU the two together may claim more than all time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CpuUtilization {
    /// In user mode.
    pub usr: f64,
    /// In system calls and kernel threads, but those of NAPIs.
    pub sys: f64,
    /// In the kthreads of threaded NAPIs.
    pub napi_kthreads: f64,
    /// In softirqs.
    pub softirq: f64,
    /// In handlers of device interrupts and inter-processor interrupts.
    pub hardirq: f64,
    /// In interrupts by clock ticks.
    pub booked_hardirq: f64,
    /// In softirqs by clock ticks.
    pub booked_softirq: f64,
    /// Taken by the hypervisor.
    pub steal: f64,
}

impl CpuUtilization {
    /// Time that no scheduler moves: interrupts, softirqs, and kthreads of NAPIs, each of which
    /// runs on one CPU at a time.
    pub fn bound(&self) -> f64 {
        (self.softirq + self.hardirq + self.napi_kthreads).min(1.0)
    }

    /// All time but idle and iowait.
    pub fn busy(&self) -> f64 {
        (self.usr + self.sys + self.bound()).min(1.0)
    }

    /// All that clock ticks and measurement claim, even if it is more than all time. Interrupts are
    /// as booked: measured ones contain the IPIs of the present placement, which placement prices
    /// itself.
    pub fn claimed(&self) -> f64 {
        let tasks = self.usr + self.sys + self.napi_kthreads;
        tasks + self.softirq + self.booked_hardirq
    }

    /// In interrupts and softirqs by clock ticks, as `top` and `mpstat` show it.
    pub fn booked(&self) -> f64 {
        self.booked_hardirq + self.booked_softirq
    }

    /// User and system time, within what interrupts leave.
    pub fn tasks(&self) -> (f64, f64) {
        let left = (1.0 - self.bound()) / (self.usr + self.sys).max(f64::MIN_POSITIVE);
        (self.usr * left.min(1.0), self.sys * left.min(1.0))
    }

    /// Time that the hypervisor leaves.
    pub fn room(&self) -> f64 {
        (1.0 - self.steal).max(LEAST_ROOM)
    }
}

/// The utilization of each CPU; CPUs without counters are left out.
pub fn utilization(analysis: &Analysis<'_>) -> BTreeMap<CpuId, CpuUtilization> {
    let kthreads = napi_kthreads(analysis.silos.queues.iter());
    let of_cpu = |cpu: &CpuId| {
        let shares = analysis.rates.cpus.get(cpu)?.shares?;
        let measured = MeasuredShares::of(analysis.observation, *cpu);
        let (softirq, hardirq) = measured.map_or((shares.softirq, shares.irq), |measured| {
            (measured.softirq(), measured.interrupted() - measured.softirq())
        });
        let napi_kthreads = kthreads.get(cpu).copied().unwrap_or(0.0).min(shares.sys);
        // The kernel counts user time by priority, and system time as a whole.
        let niced = shares.nice / (shares.usr + shares.nice).max(f64::MIN_POSITIVE);
        let utilization = CpuUtilization {
            usr: shares.usr,
            sys: (shares.sys - napi_kthreads) * (1.0 - niced),
            napi_kthreads,
            softirq,
            hardirq,
            booked_hardirq: shares.irq,
            booked_softirq: shares.softirq,
            steal: shares.steal,
        };
        Some((*cpu, utilization))
    };
    analysis.rates.cpus.keys().filter_map(of_cpu).collect()
}

/// The share of each CPU's time in the kthreads of these silos' NAPIs.
pub fn napi_kthreads<'a>(silos: impl Iterator<Item = &'a Silo>) -> BTreeMap<CpuId, f64> {
    let mut shares = BTreeMap::new();
    for silo in silos.filter(|silo| silo.kthread.is_some()) {
        for (cpu, share) in &silo.own_share {
            *shares.entry(*cpu).or_default() += share;
        }
    }
    shares
}
