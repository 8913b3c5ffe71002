//! The counts of `bpf/runqueue.bpf.c`: how long reading threads waited for a CPU.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use libbpf_rs::MapHandle;
use netsilo_model::snapshot::runqueue::{BUCKETS, RunqueueLatency, STEPS};

use crate::bpf::layout;
use crate::bpf::table::{Mapped, mappable_array};

const _: () = assert!(layout::WAIT_BUCKETS == BUCKETS && 1 << layout::WAIT_STEPS_BITS == STEPS);

/// One histogram of monotonic counts per CPU, 8 KB each.
pub(crate) struct Waits {
    map: MapHandle,
    counts: Mapped,
    /// The sum over all CPUs at the last read.
    before: Vec<u64>,
}

impl Waits {
    pub(crate) fn new(cpus: u32) -> libbpf_rs::Result<Self> {
        let counts = cpus as usize * BUCKETS;
        let map = mappable_array("netsilo_waits", 8, counts as u32)?;
        Ok(Self { counts: Mapped::new(map.as_fd(), counts * 8)?, map, before: vec![0; BUCKETS] })
    }

    /// The map, by the name that the program uses.
    pub(crate) fn map(&self) -> libbpf_rs::Result<(&'static str, MapHandle)> {
        Ok(("waits", MapHandle::try_from(&self.map)?))
    }

    /// The counts since the last call.
    pub(crate) fn drain(&mut self) -> RunqueueLatency {
        let mut now = vec![0; BUCKETS];
        for cpu in self.counts.words().chunks_exact(BUCKETS) {
            now.iter_mut().zip(cpu).for_each(|(sum, count)| *sum += count.load(Ordering::Relaxed));
        }
        let latency = RunqueueLatency::from_counts(
            now.iter().zip(&self.before).map(|(now, before)| now - before),
        );
        self.before = now;
        latency
    }
}
