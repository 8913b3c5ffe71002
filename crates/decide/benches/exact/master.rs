//! The least cost of a placement, or what it cannot be less than.
//!
//! Dantzig and Wolfe: one column for each set of items that a core may be given, of which only
//! those are made that pay. The linear program over the columns so far says what each item is worth
//! where; sets that cost a core less than they are worth become columns; when there are none any
//! more, no placement costs less than that program's optimum. Of a placement better than the best
//! known each column costs at most the difference beyond its worth: the integer program over all of
//! these finds it, or proves that there is none.

use std::time::{Duration, Instant};

use good_lp::solvers::{DualValues as _, SolutionStatus, SolutionWithDual as _};
use good_lp::variable::ProblemVariables;
use good_lp::{
    Expression, Solution as _, SolverModel as _, Variable, WithInitialSolution as _, highs,
    variable,
};
use netsilo_model::cost::problem::Problem;

use crate::pairs::Ties;
use crate::problems::total;
use crate::sets::Column;
use crate::sets::Ground;
use crate::sets::Sets;
use crate::sets::UNIT;

/// A set has to pay so much to become a column, in hundredths of a CPU.
const PAYS: f64 = 1e-6;

/// Columns for each core in one round.
const ROUND: usize = 24;

/// More columns than these are not given to the integer program.
const COLUMNS: usize = 60_000;

/// What is known of the least cost, in ns/s.
pub(crate) struct Answer {
    /// The best placement that is known costs so much.
    pub(crate) best: f64,
    /// None costs less.
    pub(crate) least: f64,
}

impl Answer {
    /// The best one is the best of all, but for a billionth of a CPU.
    pub(crate) fn is_optimum(&self) -> bool {
        self.best - self.least <= 1e-7 * UNIT + 1e-9 * self.best.abs()
    }
}

struct Master<'a> {
    ground: Ground<'a>,
    ties: Ties,
    until: Instant,
    columns: Vec<Column>,
    /// The best placement that is known.
    at: Vec<usize>,
}

/// What the linear program says.
struct Relaxed {
    cost: f64,
    /// Of each item on each place.
    worth: Vec<f64>,
    /// What it would save to have one more of a core.
    of_cores: Vec<f64>,
}

/// The best that can be known in a given time, from some placements.
pub(crate) fn solve(problem: &Problem, known: &[Vec<usize>], limit: Duration) -> Answer {
    let ground = Ground::of(problem);
    let at = known
        .iter()
        .min_by(|a, b| total(problem, a).total_cmp(&total(problem, b)))
        .unwrap()
        .clone();
    let until = Instant::now() + limit;
    let mut master = Master { ties: Ties::of(problem), ground, until, columns: Vec::new(), at };
    known.iter().for_each(|at| master.columns.extend(master.ground.columns(at)));
    let (bound, last) = master.bound();
    let mut least = bound * UNIT;
    if let Some(last) = last {
        // what there is may hold something better already: then less has to be looked at
        master.whole(&master.columns.clone());
        if let Some(columns) = master.all_within(&last)
            && master.whole(&columns)
        {
            least = total(problem, &master.at);
        }
    }
    let best = total(problem, &master.at);
    Answer { best, least: least.min(best) }
}

impl Master<'_> {
    /// Makes columns until none pays; says below what no placement is (hundredths of a CPU), and
    /// the last prices unless time ran out.
    fn bound(&mut self) -> (f64, Option<Relaxed>) {
        let mut bound = f64::NEG_INFINITY;
        loop {
            let Some(relaxed) = self.relaxed() else { return (bound, None) };
            let mut new = Vec::new();
            let (mut below, mut out_of_time) = (0.0, false);
            for core in 0..self.ground.cores.len() {
                let wanted = (-PAYS, ROUND);
                let sets = Sets::of(
                    &self.ground,
                    core,
                    &relaxed.worth,
                    wanted,
                    relaxed.of_cores[core],
                    self.until,
                );
                out_of_time |= sets.out_of_time;
                below += sets.least().unwrap_or(0.0);
                new.extend(sets.columns(&self.ground, core));
            }
            if !out_of_time {
                // those of one core that are not found pay less than PAYS each
                bound = bound.max(relaxed.cost + below - PAYS * self.ground.cores.len() as f64);
            }
            if new.is_empty() && !out_of_time {
                return (bound, Some(relaxed));
            }
            if out_of_time || Instant::now() > self.until {
                return (bound, None);
            }
            self.columns.append(&mut new);
        }
    }

    /// All columns that a placement better than the best known may have; `None` if they are too
    /// many.
    fn all_within(&self, relaxed: &Relaxed) -> Option<Vec<Column>> {
        let slack = total(self.ground.problem, &self.at) / UNIT - relaxed.cost
            + PAYS * self.ground.cores.len() as f64;
        let present = self.ground.columns(&self.at);
        let mut all = present.clone();
        for core in 0..self.ground.cores.len() {
            let wanted = (slack, COLUMNS);
            let sets = Sets::of(
                &self.ground,
                core,
                &relaxed.worth,
                wanted,
                relaxed.of_cores[core],
                self.until,
            );
            if sets.too_many || sets.out_of_time || all.len() > COLUMNS {
                return None;
            }
            all.extend(sets.columns(&self.ground, core).filter(|column| !present.contains(column)));
        }
        Some(all)
    }

    /// The program over the columns that there are, of which parts may be chosen; `None` if time
    /// runs out.
    fn relaxed(&self) -> Option<Relaxed> {
        let program = Program::of(&self.ground, &self.ties, &self.columns, false);
        let (cost, rows) = (program.cost.clone(), program.rows);
        let mut model = program.variables.minimise(program.cost).using(highs);
        let rows: Vec<_> = rows.into_iter().map(|row| model.add_constraint(row)).collect();
        let left = self.until.saturating_duration_since(Instant::now());
        let mut solution = model.set_time_limit(left.as_secs_f64()).solve().ok()?;
        if matches!(solution.status(), SolutionStatus::TimeLimit) {
            return None;
        }
        let value = solution.eval(cost);
        let dual = solution.compute_dual();
        let dual: Vec<f64> = rows.into_iter().map(|row| dual.dual(row)).collect();
        let items = self.ground.problem.items.len();
        let (of_items, rest) = dual.split_at(items);
        let (of_cores, of_ties) = rest.split_at(self.ground.cores.len());
        let shown = of_items.iter().chain(of_cores).sum::<f64>() + self.ties.apart;
        assert!(
            (shown - value).abs() <= 1e-5 * (1.0 + value.abs()),
            "the prices do not add up: {shown} for {value}"
        );
        let places = self.ground.problem.places.len();
        let at = |item: usize, place: usize| {
            of_items[item] - self.ties.rows_of(item, place).map(|row| of_ties[row]).sum::<f64>()
        };
        let worth = (0..items).flat_map(|item| (0..places).map(move |place| (item, place)));
        let worth = worth.map(|(item, place)| at(item, place)).collect();
        Some(Relaxed { cost: value, worth, of_cores: of_cores.iter().map(|dual| -dual).collect() })
    }

    /// Looks for the best placement of these columns; true if there is no better one of them than
    /// the best known afterwards.
    fn whole(&mut self, columns: &[Column]) -> bool {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let program = Program::of(&self.ground, &self.ties, columns, true);
        let present = self.ground.columns(&self.at);
        let start: Vec<(Variable, f64)> = program
            .chosen
            .iter()
            .zip(columns)
            .map(|(chosen, column)| (*chosen, f64::from(u8::from(present.contains(column)))))
            .collect();
        let chosen = program.chosen;
        let model = program.variables.minimise(program.cost).using(highs).with_all(program.rows);
        let model = model
            .set_mip_rel_gap(0.0)
            .unwrap()
            .set_time_limit(left.as_secs_f64())
            .with_initial_solution(start);
        let Ok(solution) = model.solve() else { return false };
        let mut at = vec![usize::MAX; self.ground.problem.items.len()];
        for (_, column) in
            chosen.iter().zip(columns).filter(|(chosen, _)| solution.value(**chosen) > 0.5)
        {
            column.sites.iter().for_each(|(item, place)| at[*item] = *place);
        }
        if total(self.ground.problem, &at) < total(self.ground.problem, &self.at) {
            self.at = at;
        }
        !matches!(solution.status(), SolutionStatus::TimeLimit)
    }
}

/// Which columns to choose.
struct Program {
    variables: ProblemVariables,
    chosen: Vec<Variable>,
    cost: Expression,
    /// Each item is somewhere; each core has one column at most; pairs save where both are.
    rows: Vec<good_lp::Constraint>,
}

impl Program {
    fn of(ground: &Ground<'_>, ties: &Ties, columns: &[Column], whole: bool) -> Self {
        let mut variables = ProblemVariables::new();
        let mut cost = Expression::from(ties.apart);
        let mut items = vec![Expression::default(); ground.problem.items.len()];
        let mut cores = vec![Expression::default(); ground.cores.len()];
        let mut tied = vec![Expression::default(); ties.rows];
        let mut chosen = Vec::with_capacity(columns.len());
        for column in columns {
            let one = variables.add(if whole { variable().binary() } else { variable().min(0.0) });
            chosen.push(one);
            cost.add_mul(column.cost, one);
            cores[column.core].add_mul(1.0, one);
            for (item, place) in &column.sites {
                items[*item].add_mul(1.0, one);
                ties.rows_of(*item, *place).for_each(|row| tied[row].add_mul(-1.0, one));
            }
        }
        for tie in &ties.ties {
            let saved = variables.add(variable().min(0.0));
            cost.add_mul(-tie.saving, saved);
            tie.rows.iter().for_each(|row| tied[*row].add_mul(1.0, saved));
        }
        let rows = items.into_iter().map(|row| row.eq(1.0));
        let rows = rows
            .chain(cores.into_iter().map(|row| row.leq(1.0)))
            .chain(tied.into_iter().map(|row| row.leq(0.0)));
        Self { variables, chosen, cost, rows: rows.collect() }
    }
}
