//! Waits until interrupts arrive on their new CPUs.
//!
//! On x86 a new affinity takes effect with the next interrupt. That interrupt still arrives on the
//! old CPU and is then moved (`irq_move_irq`); until then `effective_affinity` shows the old CPU.
//! So the interrupt counters are compared. Without new interrupts the result is
//! [`Arrival::NoTraffic`].

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::parse::per_cpu_count::per_cpu_count;
use serde::Serialize;

use crate::transaction::kernel::Kernel;

/// Default time to wait for interrupts.
pub const LIMIT: Duration = Duration::from_secs(2);

/// The interval between reads of the counters.
const STEP: Duration = Duration::from_millis(20);

/// Least number of interrupts elsewhere that show that a new affinity is ignored.
const ENOUGH: u64 = 20;

/// Where an interrupt arrived after it was moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Arrival {
    /// On this CPU, which was requested.
    Arrived(CpuId),
    /// No interrupt occurred.
    NoTraffic,
    /// Only on this CPU, which was not requested; it may move with its next interrupt.
    StillElsewhere(CpuId),
    /// Only on this CPU, again and again: its controller accepted the affinity and ignores it.
    Ignored(CpuId),
    /// The counters cannot be read.
    Unknown(String),
}

/// Interrupts that were moved, with their counters just after the write.
#[derive(Debug)]
pub struct Moved {
    irqs: Vec<MovedIrq>,
    possible: io::Result<CpuSet>,
}

#[derive(Debug)]
struct MovedIrq {
    irq: Irq,
    cpus: CpuSet,
    before: io::Result<BTreeMap<CpuId, u64>>,
}

impl Moved {
    /// Records the counters of interrupts and their requested CPUs.
    pub fn note(kernel: &dyn Kernel, irqs: impl IntoIterator<Item = (Irq, CpuSet)>) -> Self {
        let possible = possible(kernel);
        let moved = |(irq, cpus)| MovedIrq { irq, cpus, before: counts(kernel, irq, &possible) };
        Self { irqs: irqs.into_iter().map(moved).collect(), possible }
    }

    /// Number of interrupts.
    pub fn len(&self) -> usize {
        self.irqs.len()
    }

    /// Whether no interrupt was moved.
    pub fn is_empty(&self) -> bool {
        self.irqs.is_empty()
    }

    /// Waits until each interrupt has arrived on a requested CPU, or the time is over. The time
    /// limit applies to all interrupts together.
    ///
    /// `watch` receives each result.
    pub fn wait(
        self,
        kernel: &dyn Kernel,
        limit: Duration,
        watch: &mut dyn FnMut(Irq, &Arrival),
    ) -> Vec<(Irq, Arrival)> {
        let end = kernel.now() + limit;
        let mut known: BTreeMap<Irq, Arrival> = BTreeMap::new();
        loop {
            let over = kernel.now() >= end;
            for moved in &self.irqs {
                if known.contains_key(&moved.irq) {
                    continue;
                }
                let arrival = moved.arrival(kernel, &self.possible);
                if over || matches!(arrival, Arrival::Arrived(_) | Arrival::Unknown(_)) {
                    watch(moved.irq, &arrival);
                    known.insert(moved.irq, arrival);
                }
            }
            if known.len() == self.irqs.len() {
                return known.into_iter().collect();
            }
            kernel.pause(STEP);
        }
    }
}

impl MovedIrq {
    fn arrival(&self, kernel: &dyn Kernel, possible: &io::Result<CpuSet>) -> Arrival {
        let (before, now) = match (&self.before, counts(kernel, self.irq, possible)) {
            (Ok(before), Ok(now)) => (before, now),
            (Err(e), _) => return Arrival::Unknown(e.to_string()),
            (_, Err(e)) => return Arrival::Unknown(e.to_string()),
        };
        // Counters wrap at 32 bits, so any difference counts as growth.
        let grown: CpuSet = now
            .iter()
            .filter(|&(cpu, n)| before.get(cpu) != Some(n))
            .map(|(&cpu, _)| cpu)
            .collect();
        let grew = |(cpu, now): (&CpuId, &u64)| {
            now.wrapping_sub(before.get(cpu).copied().unwrap_or(0)) & u64::from(u32::MAX)
        };
        let many = now.iter().map(grew).fold(0, u64::saturating_add) >= ENOUGH;
        match (grown.and(&self.cpus).lowest(), grown.lowest()) {
            (Some(there), _) => Arrival::Arrived(there),
            (None, Some(elsewhere)) if many => Arrival::Ignored(elsewhere),
            (None, Some(elsewhere)) => Arrival::StillElsewhere(elsewhere),
            (None, None) => Arrival::NoTraffic,
        }
    }
}

fn possible(kernel: &dyn Kernel) -> io::Result<CpuSet> {
    let possible = kernel.read("/sys/devices/system/cpu/possible")?;
    CpuSet::parse_list(&possible).map_err(io::Error::other)
}

fn counts(
    kernel: &dyn Kernel,
    irq: Irq,
    possible: &io::Result<CpuSet>,
) -> io::Result<BTreeMap<CpuId, u64>> {
    let possible = possible.as_ref().map_err(|error| io::Error::other(error.to_string()))?;
    let text = kernel.read(&format!("/sys/kernel/irq/{irq}/per_cpu_count"))?;
    per_cpu_count(&text, possible).map_err(io::Error::other)
}
