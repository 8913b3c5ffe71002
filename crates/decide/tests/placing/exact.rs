//! The placement with the lowest cost, by integer programming. It is the reference for the solver
//! on small problems.

use std::collections::BTreeMap;

use good_lp::{Expression, ProblemVariables, Solution, SolverModel, Variable, microlp, variable};
use netsilo_model::cost::assumed::Assumed;
use netsilo_model::cost::problem::{Problem, SECOND_NS};
use netsilo_model::machine::topology::Distance;

/// The library gets costs in hundredths of a CPU, because its tolerances suit that range.
const UNIT: f64 = SECOND_NS / 100.0;

/// The optimal placement.
pub(crate) fn solve(problem: &Problem) -> Vec<usize> {
    let mut program = Program::default();
    let (items, places) = (problem.items.len(), problem.places.len());
    let mut is_at: BTreeMap<(usize, usize), Variable> = BTreeMap::new();
    for item in 0..items {
        for place in (0..places).filter(|place| problem.fixed(item, *place).is_finite()) {
            let chosen = program.variables.add(variable().binary());
            let moved = problem.items[item].home.is_some_and(|home| home != place);
            let moving = if moved { problem.items[item].moving } else { 0.0 };
            program.cost += chosen * ((problem.fixed(item, place) + moving) / UNIT);
            is_at.insert((item, place), chosen);
        }
    }
    for place in 0..places {
        crowding(problem, place, &is_at, &mut program);
    }
    for a in 0..items {
        for b in a + 1..items {
            together(problem, a, b, &is_at, &mut program);
        }
    }
    let mut model = program.variables.minimise(program.cost).using(microlp);
    for item in 0..items {
        let places: Expression =
            is_at.range((item, 0)..(item + 1, 0)).map(|(_, chosen)| *chosen).sum();
        model = model.with(places.eq(1));
    }
    for (left, right) in program.at_most {
        model = model.with(left.leq(right));
    }
    let solution = model.solve().unwrap();
    let chosen = |item| {
        is_at.range((item, 0)..(item + 1, 0)).find(|(_, chosen)| solution.value(**chosen) > 0.5)
    };
    (0..items).map(|item| chosen(item).unwrap().0.1).collect()
}

#[derive(Default)]
struct Program {
    variables: ProblemVariables,
    cost: Expression,
    /// Pairs in which the left value is at most the right one.
    at_most: Vec<(Expression, Expression)>,
}

/// The cost of load beyond each threshold of a CPU.
fn crowding(
    problem: &Problem,
    place: usize,
    is_at: &BTreeMap<(usize, usize), Variable>,
    program: &mut Program,
) {
    let here = || is_at.iter().filter(|((_, at), _)| *at == place);
    let busy = problem.places[place].busy;
    let load: Expression =
        here().map(|((item, _), chosen)| *chosen * problem.load(*item, place)).sum();
    let Assumed { full, queued, .. } = problem.assumed;
    let steps = full.map(|step| (step, busy)).into_iter().chain(queued.map(|step| (step, 0.0)));
    for ((from, slope), busy) in steps {
        let beyond = program.variables.add(variable().min(0.0));
        program.cost +=
            beyond * (slope * SECOND_NS / UNIT) - (busy - from).max(0.0) * slope * SECOND_NS / UNIT;
        program.at_most.push((load.clone() + (busy - from), beyond.into()));
    }
}

/// The cost that depends on the places of two items: on one CPU, where kthreads wait for each
/// other's turns; on two threads of a core; and for packets passed between them.
fn together(
    problem: &Problem,
    a: usize,
    b: usize,
    is_at: &BTreeMap<(usize, usize), Variable>,
    program: &mut Program,
) {
    let handed =
        problem.pairs.iter().filter(|pair| [(a, b), (b, a)].contains(&(pair.from, pair.to)));
    let handed: Vec<_> = handed.collect();
    for ((_, x), at_x) in is_at.range((a, 0)..(a + 1, 0)) {
        for ((_, y), at_y) in is_at.range((b, 0)..(b + 1, 0)) {
            let distance = problem.distance(*x, *y);
            let at = |item: usize| if item == a { *x } else { *y };
            let handed = handed.iter().map(|it| problem.handed(it, at(it.from), at(it.to)));
            let mut cost: f64 = handed.sum();
            let (load_a, load_b) = (problem.load(a, *x), problem.load(b, *y));
            cost += match distance {
                Distance::SameCpu => {
                    problem.items[a].turns * load_b + problem.items[b].turns * load_a
                }
                Distance::Smt => problem.smt_loss * load_a * load_b * SECOND_NS,
                _ => 0.0,
            };
            if cost > 0.0 {
                let both = program.variables.add(variable().min(0.0));
                program.cost += both * (cost / UNIT);
                program.at_most.push((*at_x + *at_y - 1, both.into()));
            }
        }
    }
}
