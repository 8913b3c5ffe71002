//! Quality and speed of placement, measured by the cost model.
//!
//! Compares the solver, `spread`, a balancer's least-loaded rule and a vendor script's round-robin
//! with the optimum, where the optimum can be computed. Also measures the solver at 512 CPUs.
//!
//! `cargo bench -p netsilo-decide --bench placing`.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "only the library is pure; this reads files"
)]
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

#[path = "../tests/placing/exact.rs"]
mod exact;
#[path = "../tests/placing/problems.rs"]
mod problems;
use netsilo_dev::synth::hwloc;
#[path = "synthetic/ways.rs"]
mod ways;

use std::time::{Duration, Instant};

use netsilo_decide::place::model::Model;
use netsilo_model::cost::solver;
use netsilo_model::synthetic::grid::Grid;
use problems::{Work, gap, total};
use ways::{WAYS, ways};

const MACHINES: [&str; 6] = [
    "20em64t-hybrid-1p6c2t+2ca4co1t",
    "32amd64-4s2n4c-cgroup2",
    "40intel64-2g2n4c+pcilocality",
    "64amd64-4s2n4ca2co",
    "128arm-2pa2n8cluster4co",
    "256ppc-8n8s4t",
];
const SEEDS: u64 = 16;

fn main() {
    quality();
    speed();
}

fn quality() {
    println!(
        "cost in % of a CPU beyond the optimum, mean of {SEEDS} problems of 3 to 6 queues \
         on 6 to 8 CPUs of each machine"
    );
    let [solver, spread, least_loaded, round_robin] = WAYS;
    println!(
        "{:32} {:>9} {solver:>8} {spread:>8} {least_loaded:>12} {round_robin:>11} {:>9} {:>9}",
        "machine", "optimum", "gap mean", "gap worst"
    );
    let mut all: Vec<f64> = Vec::new();
    for name in MACHINES {
        let topology = hwloc::read(name).unwrap();
        let (mut sums, mut gaps) = ([0.0; 5], Vec::new());
        for seed in 0..SEEDS {
            let (vectors, cpus) = [(3, 8), (4, 8), (5, 6), (6, 6)][seed as usize % 4];
            let work = Work::new(&topology, 1000 + seed, vectors, cpus);
            let capacity = work.capacity(&topology);
            let model = Model::new(&capacity, &work.vectors);
            let best = total(&model.problem, &exact::solve(&model.problem));
            let costs = ways(&work, &topology, &model).map(|at| total(&model.problem, &at));
            sums[0] += best;
            sums[1..].iter_mut().zip(costs).for_each(|(sum, cost)| *sum += cost - best);
            gaps.push(gap(costs[0], best, costs[1]));
        }
        let [best, found, spread, least, round] = sums.map(|sum| sum / SEEDS as f64 / 1e7);
        let (mean, worst) = mean_and_worst(&gaps);
        println!(
            "{name:32} {best:9.2} {found:8.3} {spread:8.2} {least:12.2} {round:11.2} \
             {:8.3}% {:8.3}%",
            mean * 100.0,
            worst * 100.0
        );
        all.extend(gaps);
    }
    let (mean, worst) = mean_and_worst(&all);
    println!(
        "gap over all {}: mean {:.3}%, worst {:.3}%\n",
        all.len(),
        mean * 100.0,
        worst * 100.0
    );
}

fn mean_and_worst(gaps: &[f64]) -> (f64, f64) {
    (gaps.iter().sum::<f64>() / gaps.len() as f64, gaps.iter().copied().fold(0.0, f64::max))
}

fn speed() {
    println!(
        "{:>5} {:>7} {:>12} {:>12} {:>12}",
        "CPUs", "queues", "model", "solver", "both, worst"
    );
    for (nodes, llcs, cores, queues) in
        [(1, 1, 4, 8), (2, 1, 16, 64), (2, 4, 8, 128), (4, 8, 8, 256)]
    {
        let topology = Grid { nodes, llcs, l2s: cores, threads: 2, ..Grid::default() }.topology();
        let (mut modelled, mut solved) = (Vec::new(), Vec::new());
        for seed in 0..15 {
            let work = Work::new(&topology, 2000 + seed, queues, topology.online.len());
            let capacity = work.capacity(&topology);
            let start = Instant::now();
            let model = Model::new(&capacity, &work.vectors);
            modelled.push(start.elapsed());
            let start = Instant::now();
            std::hint::black_box(solver::solve(&model.problem));
            solved.push(start.elapsed());
        }
        let both: Vec<Duration> = modelled.iter().zip(&solved).map(|(a, b)| *a + *b).collect();
        println!(
            "{:5} {queues:7} {:>12.1?} {:>12.1?} {:>12.1?}",
            topology.online.len(),
            median(modelled),
            median(solved),
            both.into_iter().max().unwrap()
        );
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
