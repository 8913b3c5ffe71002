//! Placement on topologies of real and regular machines: near the optimum, and within the rules.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "only the library is pure; this reads files"
)]
#![allow(clippy::unwrap_used, reason = "tests")]

mod exact;
mod generated;
mod problems;
use netsilo_dev::synth::hwloc;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use netsilo_decide::place::model::Model;
use netsilo_decide::place::{AlgorithmName, Capacity, Completion, Suggestion, Vector, suggest};
use netsilo_model::cost::solver;
use netsilo_model::cost::weights::{ByDistance, Costs};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::{NodeId, Topology};
use netsilo_model::snapshot::subject::Subject;
use netsilo_model::synthetic::grid::Grid;
use problems::{Numbers, Work, gap, total};

/// All topologies of the fixtures, and some regular ones.
static TOPOLOGIES: LazyLock<Vec<(String, Topology)>> = LazyLock::new(|| {
    let names = std::fs::read_dir(hwloc::fixtures())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> =
        names.filter_map(|name| Some(name.strip_suffix(".tar.bz2")?.to_owned())).collect();
    names.sort();
    assert!(names.len() >= 11, "the fixtures of the real machines are missing");
    let real = names.into_iter().map(|name| (name.clone(), hwloc::read(&name).unwrap()));
    let grids = [
        Grid { l2s: 4, ..Grid::default() },
        Grid { nodes: 2, l2s: 4, threads: 2, ..Grid::default() },
        Grid { nodes: 2, llcs: 4, l2s: 4, threads: 2, siblings_apart: true, ..Grid::default() },
    ];
    real.chain(grids.map(|grid| (format!("{grid:?}"), grid.topology()))).collect()
});

/// The CPU of each vector after the suggestions.
fn placed(work: &Work, suggestions: &[Suggestion]) -> Vec<Option<CpuId>> {
    work.vectors.iter().zip(suggestions).map(|(vector, it)| it.cpu().or(vector.present)).collect()
}

#[test]
fn the_solver_is_within_half_a_per_cent_of_the_optimum_on_average_and_three_at_worst() {
    let mut gaps: Vec<(f64, String)> = Vec::new();
    for (name, topology) in TOPOLOGIES.iter() {
        for seed in 0..16 {
            let (vectors, cpus) = [(3, 8), (4, 8), (5, 6), (6, 6)][seed as usize % 4];
            let work = Work::new(topology, seed, vectors, cpus);
            let capacity = work.capacity(topology);
            let model = Model::new(&capacity, &work.vectors);
            let found: Vec<usize> =
                solver::solve(&model.problem).into_iter().map(Option::unwrap).collect();
            let spread = suggest(AlgorithmName::Spread, &capacity, &work.vectors);
            let spread: Vec<usize> = placed(&work, &spread)
                .into_iter()
                .map(|cpu| model.cpus.binary_search(&cpu.unwrap()).unwrap())
                .collect();
            let best = exact::solve(&model.problem);
            let [found, spread, best] = [found, spread, best].map(|at| total(&model.problem, &at));
            assert!(
                best <= found + 1e3 && best <= spread + 1e3,
                "{name} {seed}: not the optimum: {best} {found} {spread}"
            );
            gaps.push((gap(found, best, spread), format!("{name}, seed {seed}")));
        }
    }
    gaps.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mean = gaps.iter().map(|(gap, _)| gap).sum::<f64>() / gaps.len() as f64;
    let (worst, where_) = gaps.last().unwrap();
    assert!(gaps.len() >= 100);
    gaps.iter().rev().take(6).for_each(|g| eprintln!("{g:?}"));
    assert!(mean <= 0.005 && *worst <= 0.03, "mean {mean:.4}, worst {worst:.4} ({where_})");
}

#[test]
fn every_algorithm_places_on_allowed_cpus_only_and_then_settles() {
    for (name, topology) in TOPOLOGIES.iter() {
        for seed in 0..if topology.cpus.len() > 64 { 2 } else { 8 } {
            let cpus = topology.housekeeping().len();
            let mut work = Work::new(topology, 100 + seed, 1 + seed as usize * 2, cpus);
            for algorithm in AlgorithmName::ALL {
                let suggestions = suggest(*algorithm, &work.capacity(topology), &work.vectors);
                assert_eq!(suggestions.len(), work.vectors.len());
                for cpu in suggestions.iter().filter_map(Suggestion::cpu) {
                    assert!(
                        topology.housekeeping().contains(cpu),
                        "{algorithm} on {name}, seed {seed}: cpu {cpu}"
                    );
                }
                let at = placed(&work, &suggestions);
                let before: Vec<Option<CpuId>> =
                    work.vectors.iter().map(|vector| vector.present).collect();
                work.vectors.iter_mut().zip(&at).for_each(|(vector, at)| vector.present = *at);
                let again = suggest(*algorithm, &work.capacity(topology), &work.vectors);
                let moved =
                    again.iter().find(|suggestion| matches!(suggestion, Suggestion::Move(..)));
                assert!(
                    moved.is_none(),
                    "{algorithm} on {name}, seed {seed}, is not settled: {moved:?}"
                );
                work.vectors.iter_mut().zip(before).for_each(|(vector, at)| vector.present = at);
            }
        }
    }
}

/// No core has two queues of half a CPU or more while another is free.
///
/// The rule is for algorithms that place by load. `rfs-max-weight`, `same-cpu` and `driver-hint`
/// follow fixed targets, and `dedicated` packs on purpose.
#[test]
fn no_two_heavy_queues_share_a_core_while_a_free_one_is_on_the_same_llc() {
    for (name, topology) in TOPOLOGIES.iter() {
        for seed in 0..if topology.cpus.len() > 64 { 2 } else { 12 } {
            let cpus = topology.housekeeping().len();
            let mut work = Work::new(topology, 200 + seed, 8, cpus);
            for (index, vector) in work.vectors.iter_mut().enumerate() {
                vector.load = [0.5, 0.6, 0.05][index % 3];
                vector.completed_by.clear();
            }
            for algorithm in
                [AlgorithmName::Auto, AlgorithmName::NearConsumer, AlgorithmName::LeastLoaded]
            {
                let capacity = work.capacity(topology);
                let suggestions = suggest(algorithm, &capacity, &work.vectors);
                let at = placed(&work, &suggestions);
                let mut cores: BTreeMap<CpuId, Vec<usize>> = BTreeMap::new();
                for (index, cpu) in
                    at.iter().enumerate().filter_map(|(index, cpu)| Some((index, (*cpu)?)))
                {
                    cores.entry(topology.core_of(cpu).lowest().unwrap()).or_default().push(index);
                }
                let taken: CpuSet = at.iter().flatten().copied().collect();
                let readers: CpuSet =
                    work.vectors.iter().flat_map(|vector| vector.read_on.keys().copied()).collect();
                for (core, on_it) in &cores {
                    let heavy = on_it.iter().filter(|index| work.vectors[**index].load >= 0.5);
                    let moved =
                        on_it.iter().any(|index| work.vectors[*index].present != at[*index]);
                    let busier = |cpu: CpuId| work.busy[&cpu] > 0.15;
                    let near = topology.llc_of(*core).and(&topology.housekeeping());
                    let free = near.iter().find(|cpu| {
                        let core = topology.core_of(*cpu).and(&topology.online);
                        let slow = topology.cpus[cpu].kind
                            != topology.cpus[&core.lowest().unwrap()].kind
                            || topology.cpus[cpu].kind
                                == netsilo_model::machine::topology::CoreKind::Efficiency
                            || topology.cpus[cpu].capacity.is_some_and(|capacity| capacity < 1024);
                        !core.intersects(&taken)
                            && !core.intersects(&readers)
                            && !core.iter().any(busier)
                            && !slow
                    });
                    assert!(
                        heavy.count() < 2 || !moved || free.is_none(),
                        "{algorithm} on {name}, seed {seed}: \
                         two heavy queues on the core of cpu {core}, \
                         while cpu {free:?} is free"
                    );
                }
            }
        }
    }
}

/// On a machine of two equal halves, a placement and its mirror image cost the same.
#[test]
fn symmetric_work_costs_the_same_on_either_side() {
    let topology = &Grid { nodes: 2, l2s: 4, threads: 2, ..Grid::default() }.topology();
    let mirror = |cpu: CpuId| CpuId((cpu.0 + 8) % 16);
    for seed in 0..24 {
        let mut work = Work::new(topology, 300 + seed, 5, 16);
        let here = work.capacity(topology);
        let model = Model::new(&here, &work.vectors);
        let cost = |model: &Model| {
            let at: Vec<usize> =
                solver::solve(&model.problem).into_iter().map(Option::unwrap).collect();
            total(&model.problem, &at)
        };
        let one = cost(&model);
        for vector in &mut work.vectors {
            vector.present = vector.present.map(mirror);
            vector.measured_on = vector.measured_on.map(mirror);
            vector.read_on =
                vector.read_on.iter().map(|(cpu, bytes)| (mirror(*cpu), *bytes)).collect();
            vector.woken_by =
                vector.woken_by.iter().map(|(cpu, rate)| (mirror(*cpu), *rate)).collect();
            vector.node =
                vector.node.map(|node| netsilo_model::machine::topology::NodeId(1 - node.0));
        }
        work.busy = work.busy.iter().map(|(cpu, busy)| (mirror(*cpu), *busy)).collect();
        let other = cost(&Model::new(&work.capacity(topology), &work.vectors));
        assert!(
            (one - other).abs() <= one * 0.01 + 1e3,
            "seed {seed}: {one} on one side, {other} on the other"
        );
    }
}

/// These vectors on CPUs that do nothing else.
fn on_idle_cpus(topology: &Topology, vectors: Vec<Vector>) -> Work {
    let busy = topology.online.iter().map(|cpu| (cpu, 0.0)).collect();
    Work { vectors, busy, costs: Costs::default() }
}

/// A queue away from its reader wakes it a thousand times a second. A window of a hundredth of a
/// second has only ten wakeups.
#[test]
fn a_few_counted_wakeups_are_too_weak_an_evidence_for_a_move() {
    let topology = &Grid { l2s: 2, ..Grid::default() }.topology();
    let vector = Vector {
        label: Subject::Queue("eth0".into(), 0),
        pool: topology.online.clone(),
        present: Some(CpuId(0)),
        measured_on: Some(CpuId(0)),
        traffic: true,
        load: 0.01,
        packets_per_s: 1000.0,
        polls_per_s: 1000.0,
        read_on: [(CpuId(1), 1e6)].into(),
        wakeups_on: Some([(CpuId(1), 1000.0)].into()),
        ..Vector::default()
    };
    let work = on_idle_cpus(topology, vec![vector]);
    let goes_to = |seconds: f64| {
        let capacity = Capacity { seconds, ..work.capacity(topology) };
        suggest(AlgorithmName::Auto, &capacity, &work.vectors)[0].cpu()
    };
    assert_eq!([0.01, 0.1, 1.0].map(goes_to), [CpuId(0), CpuId(1), CpuId(1)].map(Some));
    assert_eq!(goes_to(0.0), Some(CpuId(1)), "as if all was known");
}

/// Two queues pass packets to a third. Its completions follow the queue that sends more. The next
/// window has other flows on each queue; that must not move the completions back and forth.
#[test]
fn completions_leave_a_senders_cpu_for_one_that_sends_more_than_twice_as_much() {
    let topology = &Grid { l2s: 4, ..Grid::default() }.topology();
    let completes_on = |present: u32, second: f64| {
        let completing =
            Vector { pool: topology.online.clone(), ..forwarding("eth1", present, 1000.0, 0.001) };
        let sender = |cpu, packets_per_s| sends_to(2, cpu, packets_per_s, 0.3);
        let vectors = vec![sender(0, 500_000.0), sender(1, second), completing];
        let work = on_idle_cpus(topology, vectors);
        suggest(AlgorithmName::Auto, &work.capacity(topology), &work.vectors)[2].cpu()
    };
    for home in [0, 1] {
        for second in [300_000.0, 480_000.0, 500_000.0, 520_000.0, 750_000.0] {
            assert_eq!(completes_on(home, second), Some(CpuId(home)), "{second}");
        }
    }
    // 2.4 times as much
    assert_eq!(completes_on(0, 1_200_000.0), Some(CpuId(1)));
    assert_eq!(completes_on(1, 208_000.0), Some(CpuId(0)));
}

/// Completions are near a sender of one packet in a hundred. The CPU of the other sender is full.
#[test]
fn a_sender_of_little_does_not_hold_completions_far_from_the_others() {
    let topology = &Grid { nodes: 1, llcs: 2, l2s: 4, ..Grid::default() }.topology();
    let placed = |little: f64| {
        let completing = Vector {
            pool: topology.online.minus(&CpuSet::from_cpu(CpuId(4))),
            ..forwarding("eth1", 0, 1000.0, 0.1)
        };
        let senders = [sends_to(2, 0, little, 0.1), sends_to(2, 4, 300_000.0, 0.6)];
        let vectors = senders.into_iter().chain([completing]).collect();
        let work = on_idle_cpus(topology, vectors);
        suggest(AlgorithmName::Auto, &work.capacity(topology), &work.vectors)[2].cpu().unwrap()
    };
    assert!((5..8).contains(&placed(3000.0).0), "{}", placed(3000.0));
    assert_eq!(placed(290_000.0), CpuId(0));
}

/// The packets of a queue that is not placed count as well.
#[test]
fn completions_stay_beside_a_sender_that_is_not_placed() {
    let topology = &Grid { l2s: 4, ..Grid::default() }.topology();
    let completes_on = |unplaced: f64| {
        let completing = Vector {
            pool: topology.online.clone(),
            sent_from: [(CpuId(0), unplaced)].into(),
            ..forwarding("eth1", 0, 1000.0, 0.001)
        };
        let work = on_idle_cpus(topology, vec![sends_to(1, 1, 300_000.0, 0.3), completing]);
        suggest(AlgorithmName::Auto, &work.capacity(topology), &work.vectors)[1].cpu()
    };
    assert_eq!([10.0, 200_000.0, 600_000.0].map(completes_on), [1, 0, 0].map(CpuId).map(Some));
}

/// A queue that may only be on this CPU and passes all its packets to the vector of this index.
fn sends_to(to: usize, cpu: u32, packets_per_s: f64, load: f64) -> Vector {
    let queue = Subject::default();
    Vector {
        pool: CpuSet::from_cpu(CpuId(cpu)),
        completed_by: vec![Completion { to, queue, packets_per_s, senders: None }],
        ..forwarding("eth0", cpu, packets_per_s, load)
    }
}

/// A queue that receives these packets on its current CPU and forwards them.
fn forwarding(netdev: &str, cpu: u32, packets_per_s: f64, load: f64) -> Vector {
    Vector {
        label: Subject::Queue(netdev.into(), cpu),
        present: Some(CpuId(cpu)),
        measured_on: Some(CpuId(cpu)),
        traffic: true,
        load,
        packets_per_s,
        polls_per_s: packets_per_s / 10.0,
        forwarded_per_s: packets_per_s,
        ..Vector::default()
    }
}

/// Each window has 35 to 65% of the packets on each queue. In 2500 plans after the first, the
/// completions of a tx queue move 15 times. They would move 62 times if they followed whichever
/// queue sends most.
#[test]
fn completions_stay_while_flows_come_and_go_on_the_queues_that_send() {
    let topology = &Grid { nodes: 2, l2s: 4, ..Grid::default() }.topology();
    let mut numbers = Numbers(7);
    let mut moved = 0;
    for world in 0..500 {
        let mut router = Router::random(1 + world % 2, &mut numbers);
        for window in 0..6 {
            let work = router.window(topology, &mut numbers);
            let suggestions = suggest(AlgorithmName::Auto, &work.capacity(topology), &work.vectors);
            for (index, to) in placed(&work, &suggestions).into_iter().flatten().enumerate() {
                let is_tx = index >= 4;
                moved += u32::from(is_tx && window > 0 && to != router.at[index]);
                router.at[index] = to;
            }
        }
    }
    assert!(moved <= 25, "{moved}");
}

/// A router on two sockets with two netdevs of two queues each. The tx queue is chosen by socket
/// (XPS).
struct Router {
    /// 1: only what eth0 receives is forwarded; 2: both ways.
    ways: usize,
    /// CPUs of the rx queues of both netdevs, then of their tx queues.
    at: [CpuId; 8],
    ns_per_packet: f64,
    /// Of each CPU, by other work.
    busy: BTreeMap<CpuId, f64>,
}

impl Router {
    const RATE: f64 = 3000.0;

    /// Receives eth0 on one socket and eth1 on both.
    fn random(ways: usize, numbers: &mut Numbers) -> Self {
        Self {
            ways,
            at: [0, 1, 4, 2, 0, 1, 4, 2].map(CpuId),
            ns_per_packet: 20e3 * 15f64.powf(numbers.share()),
            busy: (0..8).map(|cpu| (CpuId(cpu), 0.6 * numbers.share())).collect(),
        }
    }

    /// What a window sees: each queue gets 35 to 65% of the packets of its netdev.
    fn window(&self, topology: &Topology, numbers: &mut Numbers) -> Work {
        let mut rates = [0.0; 4];
        for rates in rates.chunks_mut(2).take(self.ways) {
            rates[0] = Self::RATE * (0.35 + 0.3 * numbers.share());
            rates[1] = Self::RATE - rates[0];
        }
        let socket = |cpu: CpuId| cpu.0 as usize / 4;
        let sent = |tx: usize| {
            let through = |rx: &usize| 6 - rx / 2 * 2 + socket(self.at[*rx]) == tx;
            (0..4).filter(through).map(|rx| rates[rx]).sum::<f64>()
        };
        let vector = |index: usize| {
            let (is_rx, queue) = (index < 4, index as u32 % 2);
            let name = format!("eth{}", index / 2 % 2);
            let packets = if is_rx { rates[index] } else { sent(index) };
            let completed = |queue: usize| Completion {
                to: 6 - index / 2 * 2 + queue,
                queue: Subject::default(),
                packets_per_s: rates[index],
                senders: Some(topology.nodes[&NodeId(queue as u32)].cpus.clone()),
            };
            Vector {
                label: if is_rx {
                    Subject::Queue(name, queue)
                } else {
                    Subject::TxQueue(name, queue)
                },
                pool: topology.online.clone(),
                present: Some(self.at[index]),
                measured_on: Some(self.at[index]),
                traffic: packets > 0.0,
                load: packets * self.ns_per_packet * if is_rx { 1e-9 } else { 1e-10 },
                packets_per_s: packets,
                polls_per_s: packets / 2.0,
                forwarded_per_s: if is_rx { packets } else { 0.0 },
                completed_by: if is_rx { [0, 1].map(completed).into() } else { Vec::new() },
                ..Vector::default()
            }
        };
        let mut work = on_idle_cpus(topology, (0..8).map(vector).collect());
        work.busy = self.busy.clone();
        // few packets, as in an emulated guest, so each counts for a hundred
        work.costs.line_ns =
            ByDistance { same_cpu: 0.0, smt: 1e3, l2: 2.5e3, llc: 5e3, node: 8.5e3, remote: 1e5 };
        work
    }
}
