//! The distance that data travels to its readers, per queue and in total.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::derive::silo::Silos;
use crate::machine::topology::Distance;

/// Distances from the CPU that ran the protocol to the CPU that reads the data.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Locality {
    /// Bytes per second that the shares refer to.
    pub bytes_per_s: f64,
    /// Share of the bytes by distance; these shares and `unknown` add up to 1.
    pub shares: BTreeMap<Distance, f64>,
    /// Share of the bytes with an unknown protocol CPU.
    pub unknown: f64,
}

impl Silos {
    /// Locality of all bytes that arrived on a queue.
    pub fn locality(&self) -> Locality {
        let all: f64 = self.queues.iter().filter_map(|silo| silo.bytes_per_s).sum();
        let mut total = Locality { bytes_per_s: all, ..Locality::default() };
        for locality in
            self.queues.iter().map(|silo| &silo.locality).filter(|l| l.bytes_per_s > 0.0)
        {
            let part = locality.bytes_per_s / all;
            total.unknown += locality.unknown * part;
            for (distance, share) in &locality.shares {
                *total.shares.entry(*distance).or_default() += share * part;
            }
        }
        total
    }
}
