//! The weights of the cost model: the cost of a cache line, a wakeup and a crowded CPU, by the
//! distance between two CPUs.
//!
//! All costs are in CPU-nanoseconds. The cost of a placement is in CPU-nanoseconds per second: CPU
//! time that one second of traffic takes on all CPUs together, beyond the part that is the same on
//! every CPU. `docs/judging.md` lists the default weights with their sources.

use serde::{Deserialize, Serialize};

use crate::cost::assumed::Assumed;
use crate::machine::topology::Distance;

/// Weights of the cost model; `Default` is the documented list of default weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Costs {
    /// Time for a CPU to get a cache line that another CPU has just written, in nanoseconds.
    pub line_ns: ByDistance,
    /// CPU time of the inter-processor interrupt of a wakeup, on both CPUs together, in
    /// nanoseconds: the cost beyond a wakeup on the same CPU.
    pub ipi_ns: ByDistance,
    /// Cache lines per packet that the protocol writes and the reader reads: `struct sk_buff` (4),
    /// its `skb_shared_info` (1), the header (1), the socket's receive queue and counters (2).
    pub lines_per_packet: f64,
    /// Cache lines per packet that the device writes and the poll reads: the descriptor and the
    /// header.
    pub device_lines_per_packet: f64,
    /// What nothing measures; no option sets it.
    #[serde(skip)]
    pub assumed: Assumed,
    /// Source of the weights.
    pub source: CostSource,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            line_ns: ByDistance {
                same_cpu: 0.0,
                smt: 10.0,
                l2: 25.0,
                llc: 50.0,
                node: 85.0,
                remote: 135.0,
            },
            ipi_ns: ByDistance {
                same_cpu: 0.0,
                smt: 1000.0,
                l2: 1100.0,
                llc: 1200.0,
                node: 1400.0,
                remote: 2000.0,
            },
            lines_per_packet: 8.0,
            device_lines_per_packet: 2.0,
            assumed: Assumed::default(),
            source: CostSource::Default,
        }
    }
}

impl Costs {
    /// Factor on the cost of an inter-processor interrupt in a virtual machine without interrupt
    /// hardware of its own: the interrupt exits the guest twice.
    pub const VIRTUAL_IPI_FACTOR: f64 = 5.0;

    /// The default weights for a virtual machine.
    pub fn for_virtual_machine() -> Self {
        let defaults = Self::default();
        Self { ipi_ns: defaults.ipi_ns.map(|ns| ns * Self::VIRTUAL_IPI_FACTOR), ..defaults }
    }

    /// Checks weights that the operator gave; the error names the first value outside 0 to
    /// 1000000000.
    pub fn check(&self) -> Result<(), String> {
        let by_distance = [("line_ns", &self.line_ns), ("ipi_ns", &self.ipi_ns)]
            .into_iter()
            .flat_map(|(name, values)| {
                Distance::ALL.map(|distance| {
                    (format!("{name} of {}", distance.label()), values.at(distance))
                })
            });
        let lines = [
            ("lines_per_packet", self.lines_per_packet),
            ("device_lines_per_packet", self.device_lines_per_packet),
        ];
        let mut all = by_distance.chain(lines.map(|(name, value)| (name.to_owned(), value)));
        match all.find(|(_, value)| !(0.0..=1e9).contains(value)) {
            Some((name, value)) => {
                Err(format!("{name} is {value}: give a number from 0 to 1000000000"))
            }
            None => Ok(()),
        }
    }

    /// Source of the weights, in words.
    pub fn source_in_words(&self) -> String {
        match &self.source {
            CostSource::Default => "default costs (see netsilo calibrate)".into(),
            CostSource::Measured { when, .. } => {
                format!("distance costs measured on this machine ({when})")
            }
            CostSource::Configured => "distance costs as configured".into(),
        }
    }
}

/// Source of the weights.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CostSource {
    /// The documented default weights.
    #[default]
    #[serde(rename = "table")]
    Default,
    /// Measured by `netsilo calibrate`.
    Measured {
        /// Time of the measurement (RFC 3339, UTC).
        when: String,
        /// The measured machine: host name, CPU model, kernel.
        machine: String,
        /// Distances that this machine does not have, or that could not be measured: they keep the
        /// default weights.
        #[serde(rename = "from_table")]
        defaulted: Vec<Distance>,
    },
    /// Given by the operator.
    Configured,
}

/// One value per distance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the distances' names")]
pub struct ByDistance {
    pub same_cpu: f64,
    pub smt: f64,
    pub l2: f64,
    pub llc: f64,
    pub node: f64,
    pub remote: f64,
}

impl ByDistance {
    /// The value of a distance.
    #[inline]
    pub fn at(&self, distance: Distance) -> f64 {
        match distance {
            Distance::SameCpu => self.same_cpu,
            Distance::Smt => self.smt,
            Distance::L2 => self.l2,
            Distance::Llc => self.llc,
            Distance::Node => self.node,
            Distance::Remote => self.remote,
        }
    }

    /// Mutable access to the value of a distance.
    pub fn at_mut(&mut self, distance: Distance) -> &mut f64 {
        match distance {
            Distance::SameCpu => &mut self.same_cpu,
            Distance::Smt => &mut self.smt,
            Distance::L2 => &mut self.l2,
            Distance::Llc => &mut self.llc,
            Distance::Node => &mut self.node,
            Distance::Remote => &mut self.remote,
        }
    }

    /// Applies a function to each value.
    pub fn map(mut self, f: impl Fn(f64) -> f64) -> Self {
        for distance in Distance::ALL {
            let value = self.at_mut(distance);
            *value = f(*value);
        }
        self
    }
}
