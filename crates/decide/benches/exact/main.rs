//! The quality of placement on larger problems, measured by the cost model.
//!
//! Compares the solver, `spread`, a balancer's least-loaded rule and a vendor script's round-robin
//! with the optimum, or with a lower bound if the optimum is not found in time.
//!
//! `make bench-exact`, or `cargo bench -p netsilo-sys --features highs --bench exact -- SECONDS
//! SEEDS`.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "only the library is pure; this reads files"
)]
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark"
)]

mod master;
mod pairs;
#[path = "../../tests/placing/problems.rs"]
mod problems;
mod sets;
use netsilo_synth::hwloc;
#[path = "../synthetic/ways.rs"]
mod ways;

use std::time::{Duration, Instant};

use master::solve;
use netsilo_decide::place::model::Model;
use netsilo_model::cost::problem::SECOND_NS;
use netsilo_model::cost::solver;
use netsilo_model::machine::topology::Topology;
use problems::{Work, gap, total};
use ways::{WAYS, ways};

/// Numbers of queues, and of CPUs that they may use.
const SIZES: [(usize, usize); 5] = [(16, 16), (32, 16), (32, 32), (64, 32), (64, 64)];

const MACHINES: [&str; 8] = [
    "16em64t-4s2c2t",
    "20em64t-hybrid-1p6c2t+2ca4co1t",
    "32amd64-4s2n4c-cgroup2",
    "40intel64-2g2n4c+pcilocality",
    "48amd64-4pa2n6c-sparse",
    "64amd64-4s2n4ca2co",
    "128arm-2pa2n8cluster4co",
    "256ppc-8n8s4t",
];

/// The result of one problem, in ns/s.
struct Case {
    /// Lower bound of the cost: the optimum, if a placement of this cost is known.
    least: f64,
    is_optimum: bool,
    /// Cost of the best known placement.
    best: f64,
    /// Cost of each algorithm.
    costs: [f64; 4],
    solver: Duration,
    exact: Duration,
}

impl Case {
    /// The solver's gap; an upper bound if the optimum is unknown, as the gap falls when the bound
    /// rises.
    fn gap(&self) -> f64 {
        gap(self.costs[0], self.least, self.costs[1])
    }

    /// A lower bound of the solver's gap.
    fn least_gap(&self) -> f64 {
        gap(self.costs[0], self.best, self.costs[1])
    }
}

fn main() {
    let mut numbers = std::env::args().filter_map(|word| word.parse::<u64>().ok());
    let (limit, seeds) = (numbers.next().unwrap_or(60), numbers.next().unwrap_or(1));
    println!(
        "up to {limit} s each, {seeds} problems of each machine that has the CPUs; \
         costs in % of a CPU; gap: of (spread - optimum)"
    );
    let [solver, spread, least_loaded, round_robin] = WAYS;
    println!(
        "{:>6} {:>4} {:>8} {:>8} {:>8} {solver:>8} {spread:>8} {least_loaded:>12} \
         {round_robin:>11} {:>24} {:>24} {:>9} {:>9} {:>9} {:>9}",
        "queues",
        "CPUs",
        "problems",
        "optimum",
        "known",
        "gap median, mean, worst",
        "others at most, the same",
        "at least",
        "solver",
        "exact",
        "worst"
    );
    let machines = MACHINES.map(|name| (name, hwloc::read(name).unwrap()));
    for (queues, cpus) in SIZES {
        let mut cases = Vec::new();
        for (name, topology) in
            machines.iter().filter(|(_, topology)| topology.housekeeping().len() >= cpus)
        {
            for seed in 0..seeds {
                let case = case(topology, queues, cpus, 3000 + seed, Duration::from_secs(limit));
                let (least, most) = (case.least_gap() * 100.0, case.gap() * 100.0);
                eprintln!(
                    "{queues} on {cpus} of {name}, seed {seed}: {least:.3}% .. {most:.3}%, {:.1?}",
                    case.exact
                );
                cases.push(case);
            }
        }
        row(queues, cpus, &cases);
    }
}

fn case(topology: &Topology, queues: usize, cpus: usize, seed: u64, limit: Duration) -> Case {
    let work = Work::new(topology, seed, queues, cpus);
    let capacity = work.capacity(topology);
    let model = Model::new(&capacity, &work.vectors);
    let started = Instant::now();
    std::hint::black_box(solver::solve(&model.problem));
    let solver = started.elapsed();
    let placements = ways(&work, topology, &model);
    let started = Instant::now();
    let answer = solve(&model.problem, &placements, limit);
    let costs = placements.map(|at| total(&model.problem, &at));
    let (least, best, is_optimum) = (answer.least, answer.best, answer.is_optimum());
    Case { least, is_optimum, best, costs, solver, exact: started.elapsed() }
}

fn row(queues: usize, cpus: usize, cases: &[Case]) {
    let percent = |ns: f64| ns / SECOND_NS * 100.0;
    let mean = |of: &dyn Fn(&Case) -> f64| cases.iter().map(of).sum::<f64>() / cases.len() as f64;
    let [found, spread, least_loaded, round_robin] =
        [0, 1, 2, 3].map(|way| percent(mean(&|case| case.costs[way] - case.least)));
    let known = cases.iter().filter(|case| case.is_optimum).count();
    let gaps = |optimum: bool| {
        let mut gaps: Vec<f64> = cases
            .iter()
            .filter(|case| case.is_optimum == optimum)
            .map(|case| case.gap() * 100.0)
            .collect();
        gaps.sort_by(f64::total_cmp);
        let Some(worst) = gaps.last() else { return "-".to_owned() };
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        format!("{:.3}% {mean:.3}% {worst:.3}%", gaps[gaps.len() / 2])
    };
    let at_least = cases
        .iter()
        .filter(|case| !case.is_optimum)
        .map(|case| case.least_gap() * 100.0)
        .reduce(f64::max);
    let at_least = at_least.map_or_else(|| "-".to_owned(), |gap| format!("{gap:.3}%"));
    let times = |of: fn(&Case) -> Duration| {
        let mut times: Vec<Duration> = cases.iter().map(of).collect();
        times.sort();
        (times[times.len() / 2], times[times.len() - 1])
    };
    let (solver, (exact, longest)) = (times(|case| case.solver).0, times(|case| case.exact));
    println!(
        "{queues:6} {cpus:4} {:8} {:8.2} {known:8} {found:8.3} {spread:8.2} {least_loaded:12.2} \
         {round_robin:11.2} {:>24} {:>24} {at_least:>9} {solver:>9.1?} {exact:>9.1?} \
         {longest:>9.1?}",
        cases.len(),
        percent(mean(&|case| case.least)),
        gaps(true),
        gaps(false),
    );
}
