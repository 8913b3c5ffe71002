//! What the steps cost on an observed machine, and how a packet's time divides into them.

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::receive_work::Bounds;
use netsilo_model::derive::seen_costs::machine_costs;

use crate::assumptions::Assumptions;
use crate::live::work::Queue;
use crate::parameters::Values;
use crate::prices::Prices;
use crate::scenario::{Kernel, Machine, USUAL_CLOCK};

/// Least and greatest share of softirq time after driver and GRO, where it was not sampled
/// (evidence/verdicts.md).
const PROTOCOL: (f64, f64) = (0.3, 0.85);

/// The same for packets of at most [`SMALL_BYTES`], which GRO cannot merge.
const PROTOCOL_OF_SMALL: (f64, f64) = (0.45, 0.85);

/// Mean packet size in bytes up to which packets are small.
const SMALL_BYTES: f64 = 512.0;

impl Prices {
    /// The prices of an observed machine, under these assumptions.
    pub(crate) fn observed(
        analysis: &Analysis<'_>,
        values: Values,
        assumptions: Assumptions,
    ) -> Self {
        let mut prices = Self::new(&machine(analysis), values);
        prices.costs = Some(machine_costs(analysis).costs);
        prices.under(assumptions)
    }

    /// Share of a packet's softirq time after driver and GRO.
    pub(crate) fn protocol_share(&self, queue: &Queue<'_>, sampled: Option<Bounds>) -> f64 {
        let Bounds { least, likely, most } = self.protocol_bounds(queue, sampled);
        self.assumptions.division.of([least, likely, most])
    }

    /// The likely share, and the ends of its range.
    pub(crate) fn protocol_bounds(&self, queue: &Queue<'_>, sampled: Option<Bounds>) -> Bounds {
        sampled.unwrap_or_else(|| self.usual_share(queue))
    }

    /// The same where it was not sampled.
    fn usual_share(&self, queue: &Queue<'_>) -> Bounds {
        let values = &self.values;
        let protocol = if queue.is_forwarded() {
            values.forward
        } else {
            queue.udp * values.udp
                + (1.0 - queue.udp) * values.tcp
                + values.wakeup * queue.wakeups.values().sum::<f64>() / queue.packets
        };
        let poll = values.poll
            + values.poll_byte * queue.bytes
            + values.completion
            + values.interrupt / queue.batch;
        let likely = protocol / (poll + protocol);
        // Packets of unknown size may be large.
        let is_small = queue.bytes > 0.0 && queue.bytes <= SMALL_BYTES;
        let (least, most) = if is_small { PROTOCOL_OF_SMALL } else { PROTOCOL };
        Bounds { least: likely.min(least), likely, most: likely.max(most) }
    }
}

/// The machine as the parameters need it.
fn machine(analysis: &Analysis<'_>) -> Machine {
    let snapshot = analysis.after();
    let clocks = snapshot.audit.as_ref().map(|audit| &audit.cpus);
    let clock = clocks.and_then(|cpus| {
        let fastest = cpus.values().filter_map(|cpu| cpu.max_khz).max()?;
        Some(fastest as f64 / 1e6)
    });
    Machine {
        cores: Vec::new(),
        ghz: clock.unwrap_or(USUAL_CLOCK),
        kernel: Kernel::of(&snapshot.machine.release).unwrap_or(Kernel::Recent),
        is_virtual: snapshot.machine.virtual_machine == Some(true),
    }
}
