//! What the machine works for, and what its work takes that is the same for each load.

use hdrhistogram::Histogram;

use crate::parameters::Values;
use crate::scenario::Scenario;
use crate::simulate::events::{SECOND, Time, time};
use crate::simulate::instances::Instances;
use crate::simulate::ports::Ports;
use crate::transaction::contention;

/// What the machine works for.
pub(crate) enum Work {
    RequestResponse(Box<Instances>),
    Forward(Box<Ports>),
}

impl Work {
    /// Forgets what it has counted: the warm-up is over.
    pub(crate) fn forget(&mut self) {
        match self {
            Self::RequestResponse(instances) => instances.forget(),
            Self::Forward(ports) => ports.latencies.reset(),
        }
    }

    /// Latencies since then (ns).
    pub(crate) fn latencies(&self) -> &Histogram<u64> {
        match self {
            Self::RequestResponse(instances) => &instances.latencies,
            Self::Forward(ports) => &ports.latencies,
        }
    }
}

/// Times of work that is the same for each load (ps).
pub(crate) struct Costs {
    pub(crate) interrupt: f64,
    /// A sent frame's completion, by queue.
    pub(crate) completion: Vec<f64>,
    pub(crate) rps_enqueue: f64,
    pub(crate) backlog: f64,
    pub(crate) ipi_send: f64,
    pub(crate) ipi_sleeper: f64,
    pub(crate) ipi_receive: f64,
    pub(crate) reschedule: f64,
    pub(crate) idle_exit: Time,
    pub(crate) coalesce: Time,
    pub(crate) coalesce_frames: u32,
    /// How much slower a CPU is while another thread of its core works.
    pub(crate) contention: f64,
    /// Time after a reader without another one, as a share of the reader's time.
    pub(crate) gap: f64,
}

impl Costs {
    pub(crate) fn new(scenario: &Scenario, values: &Values, work: &Work) -> Self {
        let (machine, nic) = (&scenario.machine, &scenario.nic);
        let cycle = values.ns_per_cycle(machine) * 1e-9 * SECOND;
        let ipi = values.ipi_factor(machine) * cycle;
        Self {
            interrupt: values.interrupt * cycle,
            completion: match work {
                Work::RequestResponse(instances) => vec![instances.completion(); nic.queue_count],
                Work::Forward(ports) => ports.completion.to_vec(),
            },
            rps_enqueue: values.rps_enqueue * cycle,
            backlog: values.backlog * cycle,
            ipi_send: values.ipi_send * ipi,
            ipi_sleeper: values.ipi_sleeper * ipi,
            ipi_receive: values.ipi_receive * ipi,
            reschedule: values.reschedule * ipi,
            idle_exit: time(values.idle_exit * 1e-6),
            coalesce: time(nic.coalesce_us * 1e-6),
            coalesce_frames: nic.coalesce_frames as u32,
            contention: contention(values),
            gap: (1.0 / values.balance - 1.0).max(0.0),
        }
    }
}
