//! One core: the cost of sets of items on it, and which sets are worth their cost.
//!
//! CPUs of different cores do not crowd each other, so cores interact only through pairs of items
//! and because each item is on one core.

use std::time::Instant;

use netsilo_model::cost::problem::{Problem, SECOND_NS};

/// The library gets costs in hundredths of a CPU, so that its tolerances are suitable.
pub(crate) const UNIT: f64 = SECOND_NS / 100.0;

/// Number of sets examined between two clock reads.
const LOOK: usize = 4096;

/// Items on the places of one core, and their cost without pairs; a column of the program.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Column {
    pub(crate) core: usize,
    /// Items by number, each with its place.
    pub(crate) sites: Vec<(usize, usize)>,
    pub(crate) cost: f64,
}

/// The problem split by cores.
pub(crate) struct Ground<'a> {
    pub(crate) problem: &'a Problem,
    /// The places of each core.
    pub(crate) cores: Vec<Vec<usize>>,
}

impl<'a> Ground<'a> {
    pub(crate) fn of(problem: &'a Problem) -> Self {
        let items = problem.items.len();
        let open = |place: &usize| (0..items).any(|item| problem.fixed(item, *place).is_finite());
        let mut cores = std::collections::BTreeMap::<u32, Vec<usize>>::new();
        for place in (0..problem.places.len()).filter(open) {
            cores.entry(problem.places[place].levels[0]).or_default().push(place);
        }
        Self { problem, cores: cores.into_values().collect() }
    }

    /// The columns of a placement.
    pub(crate) fn columns(&self, at: &[usize]) -> Vec<Column> {
        let column = |(core, places): (usize, &Vec<usize>)| {
            let sites = at.iter().copied().enumerate().filter(|(_, place)| places.contains(place));
            self.column(core, sites.collect())
        };
        self.cores
            .iter()
            .enumerate()
            .map(column)
            .filter(|column| !column.sites.is_empty())
            .collect()
    }

    fn column(&self, core: usize, sites: Vec<(usize, usize)>) -> Column {
        let mut crowd = Crowd::of(self, core);
        let cost = sites.iter().map(|(item, place)| crowd.sit(*item, crowd.thread(*place))).sum();
        Column { core, sites, cost }
    }
}

/// The CPUs of a core, with some items on them.
struct Crowd<'a> {
    problem: &'a Problem,
    places: &'a [usize],
    /// Load of the items on each CPU.
    loads: Vec<f64>,
}

impl<'a> Crowd<'a> {
    fn of(ground: &'a Ground<'a>, core: usize) -> Self {
        let (problem, places) = (ground.problem, ground.cores[core].as_slice());
        Self { problem, places, loads: vec![0.0; places.len()] }
    }

    fn thread(&self, place: usize) -> usize {
        self.places.iter().position(|at| *at == place).unwrap()
    }

    /// The cost of one more item on this thread.
    fn price(&self, item: usize, thread: usize) -> f64 {
        let (place, before) = (self.places[thread], self.loads[thread]);
        let load = self.problem.load(item, place);
        let beside = self.loads.iter().sum::<f64>() - before;
        let busy = self.problem.places[place].busy + before;
        let known = &self.problem.items[item];
        let moving = if known.home.is_some_and(|home| home != place) { known.moving } else { 0.0 };
        let assumed = &self.problem.assumed;
        let crowd = assumed.pressure(busy + load, before + load) - assumed.pressure(busy, before)
            + assumed.smt_loss * load * beside;
        (self.problem.fixed(item, place) + moving + crowd * SECOND_NS) / UNIT
    }

    fn sit(&mut self, item: usize, thread: usize) -> f64 {
        let price = self.price(item, thread);
        self.loads[thread] += self.problem.load(item, self.places[thread]);
        price
    }

    fn leave(&mut self, item: usize, thread: usize) {
        self.loads[thread] -= self.problem.load(item, self.places[thread]);
    }
}

/// The sets of items with the least cost beyond their price.
pub(crate) struct Sets<'a> {
    crowd: Crowd<'a>,
    /// The price of each item at each place, row by row.
    worth: &'a [f64],
    /// Maximum cost beyond the price.
    most: f64,
    /// Maximum number of sets kept.
    keep: usize,
    until: Instant,
    looked: usize,
    taken: Vec<(usize, usize)>,
    /// Each set with its cost beyond its price.
    found: Vec<(f64, Vec<(usize, usize)>)>,
    /// More sets exist than were kept.
    pub(crate) too_many: bool,
    /// Time ran out, so better sets may exist.
    pub(crate) out_of_time: bool,
}

impl<'a> Sets<'a> {
    /// All sets that cost at most `most` beyond their price and the core's; only the best `keep` if
    /// there are more.
    pub(crate) fn of(
        ground: &'a Ground<'a>,
        core: usize,
        worth: &'a [f64],
        (most, keep): (f64, usize),
        of_the_core: f64,
        until: Instant,
    ) -> Self {
        let crowd = Crowd::of(ground, core);
        let (taken, found) = (Vec::new(), Vec::new());
        let (too_many, out_of_time) = (false, false);
        let mut sets = Self {
            crowd,
            worth,
            most,
            keep,
            until,
            looked: 0,
            taken,
            found,
            too_many,
            out_of_time,
        };
        let all: Vec<usize> = (0..ground.problem.items.len()).collect();
        sets.extend(&all, of_the_core);
        sets.found.sort_by(|a, b| a.0.total_cmp(&b.0));
        sets.too_many |= sets.found.len() > keep;
        sets.found.truncate(keep);
        sets
    }

    /// The least cost beyond the price.
    pub(crate) fn least(&self) -> Option<f64> {
        self.found.first().map(|(beyond, _)| *beyond)
    }

    pub(crate) fn columns(&self, ground: &Ground<'_>, core: usize) -> impl Iterator<Item = Column> {
        self.found.iter().map(move |(_, sites)| {
            let mut sites = sites.clone();
            sites.sort_unstable();
            ground.column(core, sites)
        })
    }

    /// Extends the current set by some of these items.
    ///
    /// Each further item costs more than the one before, so an item's current gain is an upper
    /// bound of its later gain.
    fn extend(&mut self, items: &[usize], beyond: f64) {
        self.looked += 1;
        if self.looked.is_multiple_of(LOOK) && Instant::now() > self.until {
            self.out_of_time = true;
            self.most = f64::NEG_INFINITY;
        }
        let width = self.crowd.problem.places.len();
        let gain = |item: usize, thread: usize| {
            self.worth[item * width + self.crowd.places[thread]] - self.crowd.price(item, thread)
        };
        let threads = self.crowd.places.len();
        let best = |item: usize| {
            (0..threads).map(|thread| gain(item, thread)).fold(f64::NEG_INFINITY, f64::max)
        };
        let mut gains: Vec<(f64, usize)> = items.iter().map(|item| (best(*item), *item)).collect();
        let mut left: f64 = gains.iter().map(|(gain, _)| gain.max(0.0)).sum();
        gains.retain(|(gain, _)| beyond - left - gain.min(0.0) <= self.most);
        gains.sort_by(|a, b| b.0.total_cmp(&a.0));
        let items: Vec<usize> = gains.iter().map(|(_, item)| *item).collect();
        for (n, (most, item)) in gains.into_iter().enumerate() {
            left -= most.max(0.0);
            for thread in 0..threads {
                let price = self.crowd.price(item, thread);
                let now = beyond + price - self.worth[item * width + self.crowd.places[thread]];
                if now - left > self.most {
                    continue;
                }
                self.crowd.sit(item, thread);
                self.taken.push((item, self.crowd.places[thread]));
                if now <= self.most {
                    self.keep(now);
                }
                self.extend(&items[n + 1..], now);
                self.taken.pop();
                self.crowd.leave(item, thread);
            }
        }
    }

    fn keep(&mut self, beyond: f64) {
        self.found.push((beyond, self.taken.clone()));
        if self.found.len() >= 2 * self.keep {
            self.found.sort_by(|a, b| a.0.total_cmp(&b.0));
            self.found.truncate(self.keep);
            self.too_many = true;
            self.most = self.found.last().map_or(self.most, |(beyond, _)| *beyond);
        }
    }
}
