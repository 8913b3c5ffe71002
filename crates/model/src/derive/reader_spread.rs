//! The share of a queue's data that is read in one place: the potential gain of polling near that
//! place.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::machine::cpuset::CpuId;
use crate::machine::topology::Topology;

/// The share of a queue's data that is read in one place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReaderSpread {
    /// Share of the bytes read on the CPU that reads most.
    pub cpu: f64,
    /// Share of the bytes read under the last-level cache that reads most.
    pub llc: f64,
    /// Number of CPUs that read.
    pub cpus: usize,
}

impl ReaderSpread {
    /// Readers are spread if the busiest CPU reads less than this share of the bytes.
    const SPREAD_CPU: f64 = 0.5;
    /// With several last-level caches, the busiest cache must also read less than this share.
    const SPREAD_LLC: f64 = 0.65;

    /// Computes the concentration of bytes by reading CPU; `None` if nothing was read.
    pub fn from_reads(read_on: &BTreeMap<CpuId, f64>, topology: &Topology) -> Option<Self> {
        let all: f64 = read_on.values().sum();
        let most = |sums: &mut dyn Iterator<Item = f64>| sums.fold(0.0, f64::max) / all;
        let mut llcs: BTreeMap<Option<CpuId>, f64> = BTreeMap::new();
        for (cpu, bytes) in read_on {
            *llcs.entry(topology.llc_of(*cpu).lowest()).or_default() += bytes;
        }
        let [cpu, llc] = [most(&mut read_on.values().copied()), most(&mut llcs.values().copied())];
        (all > 0.0).then_some(Self {
            cpu,
            llc,
            cpus: read_on.values().filter(|bytes| **bytes > 0.0).count(),
        })
    }

    /// Whether the readers are so spread that the polling CPU hardly matters.
    pub fn is_spread(self, llcs: usize) -> bool {
        self.cpu < Self::SPREAD_CPU && (llcs < 2 || self.llc < Self::SPREAD_LLC)
    }
}
