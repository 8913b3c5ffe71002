//! The weights of the cost model: what a cache line, a wakeup and a crowded CPU cost, by how far
//! apart two CPUs are.
//!
//! All costs are in CPU-nanoseconds, and those of a placement in CPU-nanoseconds per second: what
//! one second of traffic takes of all CPUs together, beyond what it would take anywhere.
//! `docs/costs.md` has the table with its sources.

use serde::{Deserialize, Serialize};

use crate::machine::topology::Distance;

/// What the model reckons with; `Default` is the documented table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Costs {
    /// Time until a CPU has a cache line that another one has just written.
    pub line_ns: ByDistance,
    /// CPU time that a wakeup takes on both CPUs, beyond one on the same CPU: the inter-processor
    /// interrupt.
    pub ipi_ns: ByDistance,
    /// Cache lines of one packet that the protocol writes and the reader reads: `struct sk_buff`
    /// (4), its `skb_shared_info` (1), the header (1), the socket's receive queue and counters (2).
    pub lines_per_packet: f64,
    /// Cache lines of one packet that the device writes and the poll reads: the descriptor and the
    /// header.
    pub device_lines_per_packet: f64,
    /// Where the weights come from.
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
            source: CostSource::Table,
        }
    }
}

impl Costs {
    /// In a virtual machine that has no interrupts of its own for it, an inter-processor interrupt
    /// leaves the guest twice.
    pub const IPI_IN_A_GUEST: f64 = 5.0;

    /// The table for a virtual machine.
    pub fn of_a_guest() -> Self {
        let table = Self::default();
        Self { ipi_ns: table.ipi_ns.map(|ns| ns * Self::IPI_IN_A_GUEST), ..table }
    }

    /// What is wrong with weights that somebody gave.
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

    /// Where the weights come from, as a person reads it.
    pub fn source_in_words(&self) -> String {
        match &self.source {
            CostSource::Table => "distances by the table (netsilo calibrate measures them)".into(),
            CostSource::Measured { when, .. } => {
                format!("distances measured on this machine ({when})")
            }
            CostSource::Configured => "distances as configured".into(),
        }
    }
}

/// Where the weights come from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CostSource {
    /// The documented table.
    #[default]
    Table,
    /// Measured by `netsilo calibrate`.
    Measured {
        /// When (RFC 3339, UTC).
        when: String,
        /// On which machine: host name, CPU model, kernel.
        machine: String,
        /// Distances that this machine does not have, or that could not be measured: they keep the
        /// table's value.
        from_table: Vec<Distance>,
    },
    /// Given by the operator.
    Configured,
}

/// One value per distance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
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

    /// The value of a distance, to be set.
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

    /// Each value through a function.
    pub fn map(mut self, f: impl Fn(f64) -> f64) -> Self {
        for distance in Distance::ALL {
            let value = self.at_mut(distance);
            *value = f(*value);
        }
        self
    }
}
