//! What settings would do to counts: which CPUs poll and process packets, IPIs, interrupts.
//!
//! Counts need no cost, so that they can be forecast where no CPU has a speed of its own, as in an
//! emulated guest.

use std::collections::BTreeMap;

use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::snapshot::host::{Ipi, Snapshot};
use serde::{Deserialize, Serialize};

use crate::assumptions::{Assumptions, End};
use crate::live::loads::Routed;
use crate::live::work::{Queue, Work};
use crate::loads::Loads;
use crate::parameters::Values;
use crate::placement::Placement;
use crate::prices::Prices;

/// Counts of all queues of a machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// Shares of the packets by the CPU that polls.
    pub polled: BTreeMap<CpuId, f64>,
    /// Shares of the packets by the CPU that runs the protocol.
    pub processed: BTreeMap<CpuId, f64>,
    /// Inter-processor interrupts for each packet.
    pub ipis: f64,
    /// Interrupts of the queues for each packet.
    pub interrupts: f64,
}

impl Counts {
    /// What was counted.
    pub fn seen(work: &Work<'_>) -> Self {
        let analysis = work.analysis;
        let packets = work.packets_per_s().max(f64::MIN_POSITIVE);
        let mut counts = Self::default();
        for queue in &work.queues {
            let share = queue.packets / packets;
            add(&mut counts.polled, queue.polled.iter(), share);
            let processed = &queue.silo.protocol_cpus;
            if processed.is_empty() {
                add(&mut counts.processed, queue.polled.iter(), share);
            } else {
                let processed = processed.iter().map(|(cpu, share)| (*cpu, *share));
                add(&mut counts.processed, processed, share);
            }
            let interrupts: f64 =
                queue.silo.interrupts_per_s.iter().flat_map(|it| it.values()).sum();
            counts.interrupts += interrupts / packets;
        }
        let total = |snapshot: &Snapshot| -> u64 {
            // those that RPS and wakeups raise
            let rows = [Ipi::FunctionCall, Ipi::Reschedule].map(|kind| snapshot.ipis(kind));
            rows.iter().flatten().flat_map(|row| row.values()).sum()
        };
        let observation = analysis.observation;
        let grown = total(&observation.after).saturating_sub(total(&observation.before));
        counts.ipis = analysis.per_s(grown) / packets;
        counts
    }

    /// Predicts the counts under other settings: what was counted, plus what the model says of
    /// these settings, less what it says of the present ones.
    pub fn forecast(work: &Work<'_>, settings: &Snapshot, values: &Values) -> Self {
        let packets = work.packets_per_s().max(f64::MIN_POSITIVE);
        let (seen, mut counts) = (Self::seen(work), Self::default());
        let (old, new) = (
            ipis(work, values, |number| Placement::present(work, number)),
            ipis(work, values, |number| Placement::new(work, number, settings, End::Likely)),
        );
        for (number, queue) in work.queues.iter().enumerate() {
            let placed = Placement::new(work, number, settings, End::Likely);
            let share = queue.packets / packets;
            add(&mut counts.polled, placed.poll.iter(), share);
            add(&mut counts.processed, placed.protocol().iter(), share);
            let polls = queue.batch / placed.batch;
            let interrupts: f64 =
                queue.silo.interrupts_per_s.iter().flat_map(|it| it.values()).sum();
            counts.interrupts += polls * interrupts / packets;
        }
        counts.ipis = (seen.ipis + (new - old) / packets).max(0.0);
        counts
    }

    /// The share of the packets that these counts have on another CPU than the other ones: 0 to 1.
    pub fn misplaced(mine: &BTreeMap<CpuId, f64>, others: &BTreeMap<CpuId, f64>) -> f64 {
        let of =
            |shares: &BTreeMap<CpuId, f64>, cpu: &CpuId| shares.get(cpu).copied().unwrap_or(0.0);
        let cpus: std::collections::BTreeSet<&CpuId> = mine.keys().chain(others.keys()).collect();
        cpus.into_iter().map(|cpu| (of(mine, cpu) - of(others, cpu)).abs()).sum::<f64>() / 2.0
    }
}

fn add(
    sum: &mut BTreeMap<CpuId, f64>,
    shares: impl Iterator<Item = (CpuId, f64)> + Clone,
    part: f64,
) {
    let all: f64 = shares.clone().map(|(_, share)| share).sum();
    for (cpu, share) in shares {
        *sum.entry(cpu).or_default() += part * share / all.max(f64::MIN_POSITIVE);
    }
}

/// IPIs per second of RPS and of wakeups, as the model has them.
fn ipis(work: &Work<'_>, values: &Values, placement: impl Fn(usize) -> Placement) -> f64 {
    /// Time of a packet where it was not measured (ns); IPIs do not depend on it.
    const ANY: f64 = 1000.0;
    let prices = Prices::observed(work.analysis, *values, Assumptions::default());
    let mut loads = Loads::default();
    for (number, queue) in work.queues.iter().enumerate() {
        let queue = Queue { ns: queue.ns.or(Some(ANY)), ..queue.clone() };
        let placed = Routed::new(work, &queue, placement(number));
        let parts = placed.parts(work, &prices, &queue);
        placed.add(&mut loads, &prices, &queue, parts, (&placed, placed.placement.batch));
    }
    loads.ipis
}
