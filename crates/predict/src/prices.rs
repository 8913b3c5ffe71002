//! What the steps of a packet cost (ns): by the machine's weights where distances are known, else
//! from the parameters.

use netsilo_model::cost::weights::Costs;
use netsilo_model::machine::topology::Distance;

use crate::assumptions::Assumptions;
use crate::parameters::Values;
use crate::scenario::Machine;

/// What the steps cost, under one set of assumptions.
#[derive(Debug, Clone)]
pub(crate) struct Prices {
    pub(crate) values: Values,
    /// Costs by distance; `None` where distances are not known.
    pub(crate) costs: Option<Costs>,
    /// Nanoseconds of one cycle of the parameters.
    pub(crate) unit: f64,
    /// The same of one that is spent on a byte.
    pub(crate) byte_unit: f64,
    /// Factor on IPIs where they have no cost by distance.
    pub(crate) ipi: f64,
    /// What is assumed of the costs.
    pub(crate) assumptions: Assumptions,
    /// How much slower a CPU is whose sibling is always busy, as a share.
    pub(crate) slower: f64,
    enqueue: f64,
    /// What depends on the distance, in its order.
    crossing: [Crossing; 6],
}

/// What a packet costs that crosses from one CPU to another.
#[derive(Debug, Clone, Copy, Default)]
struct Crossing {
    backlog: f64,
    /// To send an IPI, and as much to receive it: where it has a cost by distance.
    ipi: f64,
    lines: f64,
}

impl Prices {
    /// The prices of a machine, without distances.
    pub(crate) fn new(machine: &Machine, values: Values) -> Self {
        Self {
            values,
            costs: None,
            unit: values.ns_per_cycle(machine),
            byte_unit: values.ns_per_byte_cycle(machine),
            ipi: values.ipi_factor(machine),
            assumptions: Assumptions::default(),
            slower: 0.0,
            enqueue: 0.0,
            crossing: [Crossing::default(); 6],
        }
        .under(Assumptions::default())
    }

    /// The same under these assumptions.
    pub(crate) fn under(self, assumptions: Assumptions) -> Self {
        let smt = assumptions.smt.unwrap_or(self.values.smt);
        let mut prices = Self { assumptions, slower: (2.0 / smt - 1.0).max(0.0), ..self };
        prices.enqueue = prices.values.rps_enqueue * prices.unit * assumptions.crossing;
        prices.crossing = Distance::ALL.map(|distance| prices.of_crossing(distance));
        prices
    }

    fn of_crossing(&self, distance: Distance) -> Crossing {
        let lines = |count| self.lines_of(distance, count);
        let dequeue = self.values.backlog * self.unit + lines(|it| it.lines_per_packet / 2.0);
        let ipi = self.costs.as_ref().map_or(0.0, |costs| costs.ipi_ns.at(distance) / 2.0);
        let factor = self.assumptions.crossing;
        Crossing {
            backlog: dequeue * factor,
            ipi: ipi * factor,
            lines: lines(|it| it.lines_per_packet) * factor,
        }
    }

    /// The time of this many cycles of the parameters.
    pub(crate) fn ns(&self, cycles: f64) -> f64 {
        cycles * self.unit
    }

    /// The cycles that take as long as these, which are spent on bytes.
    pub(crate) fn of_bytes(&self, cycles: f64) -> f64 {
        cycles * self.byte_unit / self.unit
    }

    /// The lines of a packet that another CPU wrote: the descriptor's, or the packet's own.
    fn lines_of(&self, distance: Distance, count: fn(&Costs) -> f64) -> f64 {
        self.costs.as_ref().map_or(0.0, |costs| count(costs) * costs.line_ns.at(distance))
    }

    /// What a poll costs before its first packet: the interrupt; for a kthread also its wakeup from
    /// another CPU, with the switches to it and back.
    pub(crate) fn begin_poll(&self, is_threaded: bool) -> f64 {
        let Values { interrupt, wakeup, idle_switch, .. } = self.values;
        let (send, receive) = self.reschedule(Distance::Llc);
        let kthread = (wakeup + idle_switch) * self.unit + send + receive;
        let kthread = if is_threaded { kthread } else { 0.0 };
        (interrupt * self.unit + kthread) * self.assumptions.polls
    }

    /// RPS's enqueue to another CPU, per packet.
    #[inline]
    pub(crate) fn enqueue(&self) -> f64 {
        self.enqueue
    }

    /// RPS's dequeue there, per packet, with the lines that it gets from the CPU that polled.
    #[inline]
    pub(crate) fn backlog(&self, distance: Distance) -> f64 {
        self.crossing[distance as usize].backlog
    }

    /// An IPI: to send, and to receive. `asleep` is the share of the time in which the other CPU
    /// idles.
    #[inline]
    pub(crate) fn ipi(&self, distance: Distance, asleep: f64) -> (f64, f64) {
        if self.costs.is_some() {
            let Crossing { ipi, .. } = self.crossing[distance as usize];
            return (ipi, ipi);
        }
        let send = self.values.ipi_send + asleep * self.values.ipi_sleeper;
        (send * self.unit * self.ipi * self.assumptions.crossing, self.receive())
    }

    /// To receive an IPI, where they have no cost by distance.
    pub(crate) fn receive(&self) -> f64 {
        self.values.ipi_receive * self.unit * self.ipi * self.assumptions.crossing
    }

    /// The interrupt that wakes an idle CPU for a woken thread: cost to send, and to receive.
    pub(crate) fn reschedule(&self, distance: Distance) -> (f64, f64) {
        if self.costs.is_some() {
            return self.ipi(distance, 0.0);
        }
        let send = self.values.reschedule * self.unit * self.ipi;
        (send * self.assumptions.crossing, self.receive())
    }

    /// The lines of a packet that the protocol wrote, for its reader.
    #[inline]
    pub(crate) fn lines(&self, distance: Distance) -> f64 {
        self.crossing[distance as usize].lines
    }

    /// The completion of a sent packet, with the lines that it gets from the CPU that sent.
    pub(crate) fn completion(&self, distance: Distance) -> f64 {
        let lines = self.lines_of(distance, |it| it.lines_per_packet / 2.0);
        self.values.completion * self.unit + lines * self.assumptions.crossing
    }

    /// The lines of a packet that the device wrote, for the poll.
    pub(crate) fn device_lines(&self, is_far: bool) -> f64 {
        let distance = if is_far { Distance::Remote } else { Distance::Node };
        self.lines_of(distance, |it| it.device_lines_per_packet)
    }

    /// How much slower a CPU is whose sibling is busy for this share of the time: at most 1.
    #[inline]
    pub(crate) fn slow(&self, sibling_busy: f64) -> f64 {
        1.0 + self.slower * sibling_busy
    }
}
