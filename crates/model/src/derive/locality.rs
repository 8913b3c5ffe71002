//! The distance that data travels to its readers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::machine::topology::Distance;

/// Distances from the CPU that ran the protocol to the CPU that reads the data.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Locality {
    /// Bytes per second that the shares refer to.
    pub bytes_per_s: f64,
    /// Share of the bytes by distance; these shares and `unknown` add up to 1.
    pub shares: BTreeMap<Distance, f64>,
    /// Share of the bytes with an unknown protocol CPU.
    pub unknown: f64,
}
