//! Completions of sent packets: XPS chooses the tx queue by the CPU that sends, and the CPU of that
//! queue's interrupt frees the packet.
//!
//! The time of polls has them already: what is added here is only what another XPS moves.

use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::{Netdev, TxQueue};

use crate::live::work::Work;
use crate::loads::Loads;
use crate::placement::Shares;
use crate::prices::Prices;

/// Packets per second that one CPU sends and one completes; negative where they no longer do.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sent {
    from: CpuId,
    to: CpuId,
    packets: f64,
}

/// What another XPS moves.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Moved(Vec<Sent>);

/// Returns what the XPS of `settings` moves; `None` if it differs from the present one and the
/// observation does not say who sends or where a tx queue completes.
pub(crate) fn moved(work: &Work<'_>, settings: &Snapshot) -> Option<Moved> {
    let now = work.settings;
    let mut moved = Vec::new();
    for new in &settings.netdevs {
        let Some(old) = now.netdevs.same(new) else { continue };
        let xps = |netdev: &Netdev| -> Vec<_> {
            netdev.tx_queues.iter().map(|tx| tx.xps_cpus.clone()).collect()
        };
        if xps(old) == xps(new) {
            continue;
        }
        let rate = work.load * work.analysis.rate(old, "tx_packets").filter(|rate| *rate > 0.0)?;
        let senders = senders(work, old)?;
        for (netdev, sign) in [(old, -1.0), (new, 1.0)] {
            for (from, share) in senders.iter() {
                let queues = queues_of(netdev, from);
                let each = sign * rate * share / queues.len() as f64;
                for queue in queues {
                    let to = completes(queue, settings)?;
                    moved.push(Sent { from, to, packets: each });
                }
            }
        }
    }
    Some(Moved(moved))
}

/// The CPUs that send through a netdev: those that read what it receives.
fn senders(work: &Work<'_>, netdev: &Netdev) -> Option<Shares> {
    let queues = work.queues.iter().filter(|queue| queue.silo.netdev.is(netdev));
    let read = queues.flat_map(|queue| {
        queue.read.iter().map(|(cpu, share)| (cpu, share * queue.packets * queue.bytes.max(1.0)))
    });
    let mut sums = Shares::default();
    read.for_each(|(cpu, weight)| sums.add(cpu, weight));
    Some(sums.normalized()).filter(|shares| !shares.is_empty())
}

/// The tx queues of a CPU; without XPS for it the flow's hash takes any.
fn queues_of(netdev: &Netdev, cpu: CpuId) -> Vec<&TxQueue> {
    let serves = |tx: &&TxQueue| tx.xps_cpus.as_ref().is_some_and(|cpus| cpus.contains(cpu));
    let its: Vec<&TxQueue> = netdev.tx_queues.iter().filter(serves).collect();
    if its.is_empty() { netdev.tx_queues.iter().collect() } else { its }
}

/// The CPU of a tx queue's interrupt.
fn completes(queue: &TxQueue, settings: &Snapshot) -> Option<CpuId> {
    let irq = settings.irqs.get(&queue.irq.as_ref()?.to)?;
    let requested = irq.requested.as_ref().map(|cpus| cpus.and(&settings.topology.online));
    let one = requested.filter(|cpus| cpus.single().is_some()).or_else(|| irq.effective.clone());
    one?.lowest()
}

impl Moved {
    pub(crate) fn is_nothing(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the time of what moved.
    pub(crate) fn add(&self, work: &Work<'_>, prices: &Prices, loads: &mut Loads) {
        let topology = &work.analysis.after().topology;
        for Sent { from, to, packets } in &self.0 {
            let ns = prices.completion(topology.distance(*from, *to));
            loads.on_mut(*to).softirq += packets * ns * topology.slowdown(*to) / 1e9;
        }
    }
}
