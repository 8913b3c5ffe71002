use proptest::prelude::*;

use super::*;
use crate::cost::solver::solve;
use crate::synthetic::grid::Grid;

/// Least cost of all placements, by trying each.
fn optimum(problem: &Problem) -> f64 {
    let width = problem.places.len();
    let all = width.pow(problem.items.len() as u32);
    let placement = |mut number: usize| -> Vec<usize> {
        let mut digit = |_| (number % width, number /= width).0;
        problem.items.iter().map(&mut digit).collect()
    };
    (0..all)
        .map(placement)
        .map(|at| problem.cost(&at) + problem.moving(&at))
        .fold(f64::INFINITY, f64::min)
}

fn places(grid: Grid, busy: &[f64]) -> Vec<CpuPlace> {
    let topology = grid.topology();
    let first = |cpus: &crate::machine::cpuset::CpuSet| cpus.lowest().map_or(0, |cpu| cpu.0);
    let levels = |cpu: &crate::machine::topology::Cpu| {
        [first(&cpu.siblings), first(&cpu.l2), first(&cpu.llc), cpu.node.map_or(0, |node| node.0)]
    };
    let place = |(cpu, busy)| CpuPlace { levels: levels(cpu), busy, slowdown: 1.0 };
    topology.cpus.values().zip(busy.iter().copied().cycle()).map(place).collect()
}

prop_compose! {
    fn problems()(
        grid in prop_oneof![
            Just(Grid { nodes: 2, l2s: 2, threads: 2, ..Grid::default() }),
            Just(Grid { nodes: 1, llcs: 2, l2s: 2, cores: 1, ..Grid::default() }),
            Just(Grid { nodes: 2, l2s: 3, ..Grid::default() }),
        ],
        busy in prop::collection::vec(prop_oneof![Just(0.0), 0.0..0.95], 8),
        items in prop::collection::vec(
            (0.01..0.9f64, 0usize..4, prop::option::of(0usize..4)),
            1..5,
        ),
        readers in prop::collection::vec((0usize..4, 1e3..1e6f64, 0.0..1e5f64), 5),
        pair in prop::option::of(1e3..1e6f64),
        senders in any::<bool>(),
        threaded in any::<bool>(),
    ) -> Problem {
        let places = places(grid, &busy);
        let costs = crate::cost::weights::Costs::default();
        let (line, ipi) = (costs.line_ns, costs.ipi_ns);
        let mut problem = Problem { places, ..Problem::default() };
        for (n, (load, _, home)) in items.iter().enumerate() {
            let turns = if threaded && n % 2 == 0 { 5e8 } else { 0.0 };
            problem.items.push(Item { load: *load, turns, home: *home, moving: 5e6 + load * 1e8 });
            let (reader, packets, wakeups) = readers[n];
            let cost = |at| {
                let distance = problem.distance(at, reader);
                packets * 8.0 * line.at(distance) + wakeups * ipi.at(distance)
            };
            let row: Vec<f32> = (0..problem.places.len()).map(|at| cost(at) as f32).collect();
            problem.fixed.extend(row);
        }
        if let (Some(rate), true) = (pair, problem.items.len() > 1) {
            let cost = line.map(|ns| ns * 8.0 * rate);
            // Half of the places send through another tx queue, whose vector is none of these.
            let half = problem.places.len() / 2;
            problem.senders.push((0..problem.places.len()).map(|place| place < half).collect());
            problem.pairs.push(Pair { from: 0, to: 1, cost, senders: senders.then_some(0) });
        }
        problem
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 200 } else { 4000 }))]

    #[test]
    fn the_cost_is_close_to_the_optimum(problem in problems()) {
        let at: Vec<usize> = solve(&problem).into_iter().map(Option::unwrap).collect();
        let (found, best) = (problem.cost(&at) + problem.moving(&at), optimum(&problem));
        // 0.3% of a CPU, or 3%.
        prop_assert!(found <= best * 1.03 + 3e6, "{found} for {best}: {at:?}");
    }

    #[test]
    fn solving_the_answer_again_moves_nothing(problem in problems()) {
        let at = solve(&problem);
        let mut settled = problem;
        for (item, place) in settled.items.iter_mut().zip(&at) {
            item.home = *place;
        }
        prop_assert_eq!(solve(&settled), at);
    }
}

#[test]
fn items_are_placed_only_on_allowed_places() {
    let places = places(Grid { l2s: 2, ..Grid::default() }, &[0.0]);
    let free = f32::INFINITY;
    let items = vec![Item { load: 0.5, home: Some(0), moving: 1e9, ..Item::default() }; 3];
    let problem = Problem {
        places,
        items,
        fixed: vec![free, 0.0, free, free, 0.0, free],
        ..Problem::default()
    };
    assert_eq!(solve(&problem), [Some(1), None, Some(0)]);
}

#[test]
fn crowding_cost_is_convex() {
    let steps: Vec<f64> = (0..14)
        .map(|tenth| Assumed::default().pressure(f64::from(tenth) / 10.0, f64::from(tenth) / 20.0))
        .collect();
    assert!(steps.windows(3).all(|w| w[2] - w[1] >= w[1] - w[0] - 1e-12), "{steps:?}");
    assert_eq!(Assumed::default().pressure(0.8, 0.2), 0.0);
}
