//! What the steps cost on the observed machine (ns): measured on it where that was done, else from
//! the parameters.

use netsilo_model::cost::weights::{CostSource, Costs};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::seen_costs::seen_ipis;
use netsilo_model::machine::topology::Distance;

use crate::live::work::Queue;
use crate::parameters::Values;
use crate::scenario::{Kernel, Machine};
use crate::transaction::contention;

/// Clock where the observation does not say it (GHz).
const USUAL_CLOCK: f64 = 2.5;

/// What the steps cost, for one draw of the parameters.
pub(crate) struct Prices<'a> {
    values: &'a Values,
    costs: &'a Costs,
    /// Nanoseconds of one cycle of the parameters.
    unit: f64,
    /// Factor on IPIs that the parameters have no distance for.
    ipi: f64,
    /// Time of a received IPI, as eBPF measured it.
    seen_ipi: Option<f64>,
    /// Whether the IPIs of this machine were measured.
    has_measured_ipis: bool,
}

impl<'a> Prices<'a> {
    /// The prices of a machine.
    pub(crate) fn new(analysis: &'a Analysis<'_>, values: &'a Values) -> Self {
        let machine = machine(analysis);
        Self {
            values,
            costs: analysis.costs,
            unit: values.ns_per_cycle(&machine),
            ipi: values.ipi_factor(&machine),
            seen_ipi: seen_ipis(analysis).map(|(ns, _)| ns),
            has_measured_ipis: analysis.costs.source != CostSource::Default,
        }
    }

    /// What a poll costs before its first packet: the interrupt, and the kthread's wakeup.
    pub(crate) fn begin_poll(&self, is_threaded: bool) -> f64 {
        let wakeup = if is_threaded { self.values.wakeup } else { 0.0 };
        (self.values.interrupt + wakeup) * self.unit
    }

    /// RPS's enqueue to another CPU, per packet.
    pub(crate) fn enqueue(&self) -> f64 {
        self.values.rps_enqueue * self.unit
    }

    /// RPS's dequeue there, per packet, with the lines that it gets from the CPU that polled.
    pub(crate) fn backlog(&self, distance: Distance) -> f64 {
        self.values.backlog * self.unit
            + self.costs.lines_per_packet / 2.0 * self.costs.line_ns.at(distance)
    }

    /// An IPI: to send, and to receive. `asleep` is the share of the time in which the other CPU
    /// idles.
    pub(crate) fn ipi(&self, distance: Distance, asleep: f64) -> (f64, f64) {
        if self.has_measured_ipis {
            let both = self.costs.ipi_ns.at(distance);
            return (both / 2.0, both / 2.0);
        }
        let send = self.values.ipi_send + asleep * self.values.ipi_sleeper;
        (send * self.unit * self.ipi, self.receive())
    }

    /// To receive an IPI.
    fn receive(&self) -> f64 {
        self.seen_ipi.unwrap_or(self.values.ipi_receive * self.unit * self.ipi)
    }

    /// The interrupt that tells an idle CPU of a woken thread: to send, and to receive.
    pub(crate) fn reschedule(&self, distance: Distance) -> (f64, f64) {
        if self.has_measured_ipis {
            return self.ipi(distance, 0.0);
        }
        (self.values.reschedule * self.unit * self.ipi, self.receive())
    }

    /// The lines of a packet that the protocol wrote, for its reader.
    pub(crate) fn lines(&self, distance: Distance) -> f64 {
        self.costs.lines_per_packet * self.costs.line_ns.at(distance)
    }

    /// The completion of a sent packet, with the lines that it gets from the CPU that sent.
    pub(crate) fn completion(&self, distance: Distance) -> f64 {
        self.values.completion * self.unit
            + self.costs.lines_per_packet / 2.0 * self.costs.line_ns.at(distance)
    }

    /// The lines of a packet that the device wrote, for the poll.
    pub(crate) fn device_lines(&self, is_far: bool) -> f64 {
        let distance = if is_far { Distance::Remote } else { Distance::Node };
        self.costs.device_lines_per_packet * self.costs.line_ns.at(distance)
    }

    /// Share of a packet's softirq time after driver and GRO.
    pub(crate) fn protocol_share(&self, queue: &Queue<'_>) -> f64 {
        let values = self.values;
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
        protocol / (poll + protocol)
    }

    /// How much slower a CPU is whose sibling is busy for this share of the time.
    pub(crate) fn slow(&self, sibling_busy: f64) -> f64 {
        1.0 + contention(self.values) * sibling_busy.min(1.0)
    }
}

/// The machine as the parameters need it.
fn machine(analysis: &Analysis<'_>) -> Machine {
    let snapshot = analysis.after();
    let major = snapshot.machine.release.split('.').next().and_then(|it| it.parse::<u32>().ok());
    let clocks = snapshot.audit.as_ref().map(|audit| &audit.cpus);
    let clock = clocks.and_then(|cpus| {
        let fastest = cpus.values().filter_map(|cpu| cpu.max_khz).max()?;
        Some(fastest as f64 / 1e6)
    });
    Machine {
        cores: Vec::new(),
        ghz: clock.unwrap_or(USUAL_CLOCK),
        kernel: if major.is_some_and(|major| major < 4) { Kernel::Old } else { Kernel::Recent },
        is_virtual: snapshot.machine.virtual_machine == Some(true),
    }
}
