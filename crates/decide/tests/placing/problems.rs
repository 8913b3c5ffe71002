//! Synthetic work on a given machine: vectors, their readers, and busy CPUs.
//!
//! The same seed gives the same work.

use std::collections::BTreeMap;

use netsilo_decide::place::{Capacity, Completion, Vector};
use netsilo_model::cost::problem::{Problem, SECOND_NS};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::wakeups::WakeupRate;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::{NodeId, Topology};
use netsilo_model::snapshot::subject::Subject;

/// Pseudo-random numbers (splitmix64).
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// From 0 to 1.
    pub(crate) fn share(&mut self) -> f64 {
        self.next() as f64 / u64::MAX as f64
    }

    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// The work on a machine.
pub(crate) struct Work {
    pub(crate) vectors: Vec<Vector>,
    pub(crate) busy: BTreeMap<CpuId, f64>,
    pub(crate) costs: Costs,
}

impl Work {
    /// This many vectors on this many of the machine's CPUs, or on all if it has fewer.
    pub(crate) fn new(topology: &Topology, seed: u64, vectors: usize, cpus: usize) -> Self {
        let mut numbers = Numbers(seed);
        let online: Vec<CpuId> = topology.housekeeping().iter().collect();
        let mut pool = CpuSet::new();
        while pool.len() < cpus.min(online.len()) {
            // Adjacent CPUs, so that even a small part of a large machine has shared caches.
            let first = numbers.below(online.len());
            pool = online[first..(first + 4).min(online.len())]
                .iter()
                .copied()
                .collect::<CpuSet>()
                .or(&pool);
        }
        let pool: CpuSet = pool.iter().take(cpus).collect();
        let allowed: Vec<CpuId> = pool.iter().collect();
        let application = numbers.one_of(&[0.1, 0.4, 0.9]);
        let busy = online.iter().map(|cpu| (*cpu, numbers.share() * application)).collect();
        let nodes: Vec<NodeId> = topology.nodes.keys().copied().collect();
        let device = (!nodes.is_empty()).then(|| numbers.one_of(&nodes));
        let vector = |index| {
            let packets = 10f64.powf(3.0 + 3.0 * numbers.share());
            let ns_per_packet = 300.0 + 1700.0 * numbers.share();
            let load = (packets * ns_per_packet / SECOND_NS).min(0.9);
            let readers = numbers.one_of(&[1, 1, 1, 2, 4]);
            let read_on: BTreeMap<CpuId, f64> = (0..readers)
                .map(|_| (numbers.one_of(&allowed), 1e6 * numbers.share().max(0.1)))
                .collect();
            let present = (numbers.share() < 0.7).then(|| numbers.one_of(&allowed));
            Vector {
                label: Subject::Queue("eth0".into(), index as u32),
                node: device,
                pool: pool.clone(),
                present,
                measured_on: present,
                traffic: true,
                load,
                packets_per_s: packets,
                polls_per_s: packets * (0.1 + 0.9 * numbers.share()),
                read_on,
                ..Vector::default()
            }
        };
        let mut vectors: Vec<Vector> = (0..vectors).map(vector).collect();
        // One machine in four polls in kthreads. One or two CPUs wake each kthread.
        if numbers.share() < 0.25 {
            for vector in &mut vectors {
                vector.threaded = true;
                vector.wakeups_on = Some(BTreeMap::new());
                for _ in 0..2 {
                    let per_s = vector.polls_per_s / 2.0 * numbers.share();
                    let rate = WakeupRate { per_s, idle_per_s: per_s * numbers.share() };
                    vector.woken_by.insert(numbers.one_of(&allowed), rate);
                }
            }
        }
        // One machine in three forwards: half of the packets of the first vectors leave by the last
        // ones.
        if numbers.share() < 0.33 {
            let count = vectors.len();
            for (from, vector) in vectors.iter_mut().enumerate().take(count / 2) {
                let packets_per_s = vector.packets_per_s / 2.0;
                let to = count - 1 - from;
                vector.completed_by = vec![Completion {
                    to,
                    queue: Subject::default(),
                    packets_per_s,
                    senders: None,
                }];
            }
        }
        let costs =
            if numbers.share() < 0.5 { Costs::default() } else { Costs::for_virtual_machine() };
        Self { vectors, busy, costs }
    }

    pub(crate) fn capacity<'a>(&'a self, topology: &'a Topology) -> Capacity<'a> {
        Capacity {
            topology,
            costs: self.costs.clone(),
            source: String::new(),
            busy: self.busy.clone(),
            busy_wakeup: 1.0,
            smt_loss: 0.75,
            dilation: 1.0,
            seconds: 1.0,
        }
    }
}

/// The cost of a placement, including the cost of moving to it.
pub(crate) fn total(problem: &Problem, at: &[usize]) -> f64 {
    problem.cost(at) + problem.moving(at)
}

/// How far a cost is from the optimum, as a share of the distance of `spread`. In CPUs if `spread`
/// is optimal.
pub(crate) fn gap(cost: f64, least: f64, spread: f64) -> f64 {
    let whole = spread - least;
    if whole < 0.001 * SECOND_NS { (cost - least) / SECOND_NS } else { (cost - least) / whole }
}
