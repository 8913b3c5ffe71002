//! CPUs that are alike: each polls as many packets of the same kinds and processes as many, and the
//! other threads of its core do too. They stay alike, so one of them stands for all: with 512 CPUs
//! a prediction takes two polling CPUs instead of 256.

use std::collections::BTreeMap;

use netsilo_model::machine::cpuset::CpuId;

use crate::demands::Demands;
use crate::live::flows::hashed;
use crate::live::unknowns::End;
use crate::loads::Parts;
use crate::placement::{Placement, Shares};

/// Packets of one kind that are polled on CPUs that are alike.
pub(crate) struct Polled {
    pub(crate) cpus: Vec<usize>,
    /// For each unit of work, on all these CPUs.
    pub(crate) packets: f64,
    pub(crate) parts: Parts,
    /// On the first of the CPUs.
    pub(crate) placed: Placement,
}

/// The CPUs that run the protocol, where it does not stay on the CPU that polls.
pub(crate) fn targets(demands: &Demands) -> Option<Shares> {
    let is_steered = demands.streams.iter().any(|it| it.parts.protocol > 0.0);
    (is_steered && !demands.targets.is_empty())
        .then(|| hashed(demands.targets.clone(), None, End::Likely))
}

/// The packets of `demands`, by kind and by CPUs that are alike. `processes` are the shares of the
/// packets that each CPU processes, `siblings` the other threads of its core.
pub(crate) fn polled(demands: &Demands, processes: &[f64], siblings: &[Vec<usize>]) -> Vec<Polled> {
    let mut kinds: Vec<BTreeMap<[u64; 2], f64>> = vec![BTreeMap::new(); processes.len()];
    for stream in &demands.streams {
        let kind = [stream.parts.poll.to_bits(), stream.parts.protocol.to_bits()];
        *kinds[stream.cpu].entry(kind).or_default() += stream.packets;
    }
    // Sums of equal shares differ in the last bits.
    let rounded = |it: &f64| (it * 1e9).round() as u64;
    let may = &demands.tasks.cpus;
    let own = |cpu: usize| {
        let kinds: Vec<_> = kinds[cpu].iter().map(|(kind, it)| (*kind, rounded(it))).collect();
        let may_run = may.is_empty() || may.contains(CpuId(cpu as u32));
        (kinds, rounded(&processes[cpu]), may_run)
    };
    let mut alike: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for cpu in (0..processes.len()).filter(|cpu| !kinds[*cpu].is_empty()) {
        let mut others: Vec<_> = siblings[cpu].iter().map(|other| own(*other)).collect();
        others.sort_unstable();
        alike.entry((own(cpu), others)).or_default().push(cpu);
    }
    let targets = targets(demands);
    let mut polled = Vec::new();
    for cpus in alike.into_values() {
        for (kind, packets) in &kinds[cpus[0]] {
            let [poll, protocol] = kind.map(f64::from_bits);
            let placed = Placement {
                poll: [(CpuId(cpus[0] as u32), 1.0)].into(),
                protocol: targets.clone().filter(|_| protocol > 0.0),
                steered: 0.0,
                batch: 1.0,
                begun: 1.0,
                is_threaded: false,
            };
            polled.push(Polled {
                packets: packets * cpus.len() as f64,
                parts: Parts { poll, begin: 0.0, protocol },
                placed,
                cpus: cpus.clone(),
            });
        }
    }
    polled
}
