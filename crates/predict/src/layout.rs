//! Where the packets of a scenario are polled and processed.
//!
//! CPUs are alike if they, and the other threads of their cores, poll and process the same numbers
//! of packets of each kind. One CPU is computed for all that are alike.

use std::collections::BTreeMap;

use netsilo_model::machine::cpuset::CpuId;

use crate::assumptions::End;
use crate::demands::Demands;
use crate::flows::hashed;
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

/// CPUs and packets.
pub(crate) struct Layout {
    /// For each CPU, the others of its core.
    pub(crate) siblings: Vec<Vec<usize>>,
    /// For each CPU, the shares of the packets that it polls and processes.
    pub(crate) polls: Vec<f64>,
    pub(crate) processes: Vec<f64>,
    /// CPUs that RPS or RFS takes packets to.
    pub(crate) targets: Vec<usize>,
    pub(crate) polled: Vec<Polled>,
}

impl Layout {
    /// `cores` is the core of each CPU.
    pub(crate) fn new(cores: &[u32], demands: &Demands) -> Self {
        let mut polls = vec![0.0; cores.len()];
        for stream in demands.streams.iter().filter(|it| it.parts.protocol > 0.0) {
            polls[stream.cpu] += stream.packets / demands.packets;
        }
        let is_steered = polls.iter().any(|share| *share > 0.0) && !demands.targets.is_empty();
        let protocol = is_steered.then(|| hashed(demands.targets.clone(), None, End::Likely));
        let mut processes = if is_steered { vec![0.0; cores.len()] } else { polls.clone() };
        for (cpu, share) in protocol.iter().flat_map(Shares::iter) {
            processes[cpu.0 as usize] = share;
        }
        let siblings = siblings(cores);
        let kinds = kinds(demands, cores.len());
        let mut polled = Vec::new();
        for cpus in alike(demands, &kinds, &processes, &siblings) {
            let here = CpuId(cpus[0] as u32);
            polled.extend(kinds[cpus[0]].iter().map(|(kind, packets)| {
                let [poll, after] = kind.map(f64::from_bits);
                Polled {
                    cpus: cpus.clone(),
                    packets: packets * cpus.len() as f64,
                    parts: Parts { poll, begin: 0.0, protocol: after },
                    placed: Placement {
                        poll: Shares::one(here),
                        protocol: protocol.clone().filter(|_| after > 0.0),
                        steered: 0.0,
                        batch: 1.0,
                        begun: 1.0,
                        is_threaded: false,
                    },
                }
            }));
        }
        let targets = protocol.iter().flat_map(Shares::cpus);
        let targets = targets.map(|cpu| cpu.0 as usize).collect();
        Self { siblings, polls, processes, targets, polled }
    }
}

fn siblings(cores: &[u32]) -> Vec<Vec<usize>> {
    let mut of_core: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (cpu, core) in cores.iter().enumerate() {
        of_core.entry(*core).or_default().push(cpu);
    }
    let others = |(cpu, core): (usize, &u32)| {
        of_core[core].iter().copied().filter(|other| *other != cpu).collect()
    };
    cores.iter().enumerate().map(others).collect()
}

/// Packets by the times of their poll and their protocol, as bits.
type Kinds = BTreeMap<[u64; 2], f64>;

/// What each CPU polls.
fn kinds(demands: &Demands, cpus: usize) -> Vec<Kinds> {
    let mut kinds = vec![Kinds::new(); cpus];
    for stream in &demands.streams {
        let kind = [stream.parts.poll, stream.parts.protocol].map(f64::to_bits);
        *kinds[stream.cpu].entry(kind).or_default() += stream.packets;
    }
    kinds
}

/// The CPUs that poll, in groups that are alike.
fn alike(
    demands: &Demands,
    kinds: &[Kinds],
    processes: &[f64],
    siblings: &[Vec<usize>],
) -> Vec<Vec<usize>> {
    // Sums of equal shares differ in the last bits.
    let rounded = |share: &f64| (share * 1e9).round() as u64;
    let may = &demands.tasks.cpus;
    let own = |cpu: usize| {
        let kinds: Vec<_> = kinds[cpu].iter().map(|(kind, it)| (*kind, rounded(it))).collect();
        let may_run = may.is_empty() || may.contains(CpuId(cpu as u32));
        (kinds, rounded(&processes[cpu]), may_run)
    };
    let mut alike: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for cpu in (0..kinds.len()).filter(|cpu| !kinds[*cpu].is_empty()) {
        let mut others: Vec<_> = siblings[cpu].iter().map(|other| own(*other)).collect();
        others.sort_unstable();
        alike.entry((own(cpu), others)).or_default().push(cpu);
    }
    alike.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file;
    use crate::parameters::Table;

    /// A round of the fixed point takes a step for each of these and each target.
    #[test]
    fn cpus_512_with_256_queues_take_as_many_steps_as_two_polling_cpus() {
        let text = include_str!("../../../cases/predict/request-response.toml");
        let changes = [
            ("machine.cores", "128"),
            ("nic.queues", "256"),
            ("settings.rps_rfs.irq", "0-255"),
            ("settings.rps_rfs.rps", "0-511"),
        ];
        let changes = changes.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let file::Described { scenario, settings } = file::parse(text, &changes, &[]).unwrap();
        let scenario = scenario.under(&settings["rps_rfs"]);
        let values = Table::built_in().unwrap().values();
        let demands = Demands::new(&scenario, &settings["rps_rfs"], &values);
        let layout = Layout::new(&scenario.machine.cores, &demands);
        // CPU 0 completes what queue 0 sends, to which the hash of bnx2 brings nothing.
        let polls = |it: &Polled| (it.cpus.len(), it.placed.protocol.is_some());
        let polled: Vec<_> = layout.polled.iter().map(polls).collect();
        assert_eq!(polled, [(1, false), (255, false), (255, true)]);
        assert_eq!(layout.targets.len(), 512);
        assert!((layout.processes.iter().sum::<f64>() - 1.0).abs() < 1e-9);
    }
}
