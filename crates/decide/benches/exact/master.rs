//! The least cost of a placement, or a lower bound of it.
//!
//! Dantzig-Wolfe decomposition: there is one column for each set of items that a core may get, and
//! only improving columns are generated. The linear program over the current columns prices each
//! item at each place. A set that costs a core less than its price becomes a column. When no such
//! set is left, the program's optimum is a lower bound of any placement. In a placement better than
//! the best known one, each column costs at most the difference beyond its price. The integer
//! program over all such columns finds that placement, or proves that there is none.

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

/// Minimum gain of a set to become a column, in hundredths of a CPU.
const PAYS: f64 = 1e-6;

/// Columns per core in one round.
const ROUND: usize = 24;

/// Maximum number of columns for the integer program.
const COLUMNS: usize = 60_000;

/// Bounds of the least cost, in ns/s.
pub(crate) struct Answer {
    /// Cost of the best known placement.
    pub(crate) best: f64,
    /// Lower bound.
    pub(crate) least: f64,
}

impl Answer {
    /// Whether the best known placement is optimal, within a billionth of a CPU.
    pub(crate) fn is_optimum(&self) -> bool {
        self.best - self.least <= 1e-7 * UNIT + 1e-9 * self.best.abs()
    }
}

struct Master<'a> {
    ground: Ground<'a>,
    ties: Ties,
    until: Instant,
    columns: Vec<Column>,
    /// The best known placement.
    at: Vec<usize>,
}

/// The solution of the linear program.
struct Relaxed {
    cost: f64,
    /// The price of each item at each place.
    worth: Vec<f64>,
    /// The saving from one more core of each kind.
    of_cores: Vec<f64>,
}

/// The best bounds within the time limit, starting from known placements.
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
        // the existing columns may already have a better placement, which narrows the search
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
    /// Generates columns until none improves.
    ///
    /// Returns a lower bound (hundredths of a CPU), and the last prices unless time ran out.
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
                // each undiscovered column of a core gains less than PAYS
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

    /// All columns that a placement better than the best known may have; `None` if there are too
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

    /// Solves the program over the current columns, with fractional choices; `None` if time runs
    /// out.
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

    /// Searches the best placement of these columns; true if it proved that none is better than the
    /// best known one.
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

/// The choice of columns.
struct Program {
    variables: ProblemVariables,
    chosen: Vec<Variable>,
    cost: Expression,
    /// Each item is somewhere; each core has at most one column; pairs save where both items are.
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
