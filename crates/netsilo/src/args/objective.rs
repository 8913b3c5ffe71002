//! What a search improves: a measure of the live workload, or the number printed by a command.

use netsilo_trial::comparison::{Better, Scale};
use netsilo_trial::workload::WorkloadMeasure;

/// What a search improves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Objective {
    /// A measure of the live workload.
    Live(WorkloadMeasure),
    /// A command's number: transactions per second.
    Transactions,
    /// The number printed by a command: an amount per second.
    Throughput,
    /// A command's number: a time.
    Latency,
}

impl Objective {
    /// All objectives.
    pub(crate) const ALL: [Self; 8] = [
        Self::Live(WorkloadMeasure::CpuPerMegabyte),
        Self::Live(WorkloadMeasure::RunqueueLatency),
        Self::Live(WorkloadMeasure::IpisPerPacket),
        Self::Live(WorkloadMeasure::SoftirqsPerPacket),
        Self::Live(WorkloadMeasure::Locality),
        Self::Transactions,
        Self::Throughput,
        Self::Latency,
    ];

    /// The name on the command line.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Live(measure) => measure.as_str(),
            Self::Transactions => "transactions",
            Self::Throughput => "throughput",
            Self::Latency => "latency",
        }
    }

    /// The measure of the live workload, or `None` if a command prints the number.
    pub(crate) fn live(self) -> Option<WorkloadMeasure> {
        match self {
            Self::Live(measure) => Some(measure),
            Self::Transactions | Self::Throughput | Self::Latency => None,
        }
    }

    /// Which direction is better.
    pub(crate) fn better(self) -> Better {
        match self {
            Self::Live(measure) => measure.better(),
            Self::Transactions | Self::Throughput => Better::Higher,
            Self::Latency => Better::Lower,
        }
    }

    /// How two values are compared.
    pub(crate) fn scale(self) -> Scale {
        self.live().map_or(Scale::Ratio, WorkloadMeasure::scale)
    }

    /// Whether plans follow outcomes with this objective. A plan improves time and throughput. A
    /// count of interrupts or the locality alone may improve while these get worse.
    pub(crate) fn guides_plans(self) -> bool {
        match self {
            Self::Live(measure) => measure.is_time(),
            Self::Transactions | Self::Throughput | Self::Latency => true,
        }
    }

    /// The unit; `None` when unknown.
    pub(crate) fn unit(self) -> Option<&'static str> {
        self.live().filter(|measure| measure.is_time()).map(|_| "ns")
    }
}
