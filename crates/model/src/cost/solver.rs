//! Finds a placement of nearly least cost, by local search from the present placement and from an
//! empty one.
//!
//! A step moves one item to its best place or exchanges two items. Once no step gains, the search
//! fixes one item after another at its next best places and lets the others move again, within
//! [`WORK`]. Nothing is random, so the same problem has the same answer. The answer is
//! stable: solved again with everything where the answer put it, nothing moves, because the solver
//! repeats from its own answer until it finds no better one.

use std::borrow::Cow;
use std::rc::Rc;

use crate::cost::problem::{Pair, Problem, SECOND_NS};

/// Least gain of a step (ns/s), so that rounding never decides.
const LEAST: f64 = 1.0;

/// A placement built from an empty one must be cheaper by this share than the one reached from the
/// present placement.
const REBUILD_GAIN: f64 = 0.01;

/// Most restarts from the solver's own answer.
const ROUNDS: usize = 4;

/// Most rounds of one local search; it ends earlier when no step gains.
const SWEEPS: usize = 32;

/// Approximate limit on price computations for holding items elsewhere; large problems skip that
/// step.
const WORK: usize = 20_000;

/// Number of places at which an item is held.
const HOLDS: usize = 4;

/// Solves the problem: a place for each item; `None` for an item without an allowed place.
pub fn solve(problem: &Problem) -> Vec<Option<usize>> {
    let items = problem.items.len();
    let (problem, map) = without_unplaceable_items(problem);
    let mut rebuilt = None;
    let mut homes: Vec<Option<usize>> = problem.items.iter().map(|item| item.home).collect();
    let mut best = search(&problem, &homes, &mut rebuilt);
    for _ in 0..ROUNDS {
        let reached: Vec<Option<usize>> = best.iter().copied().map(Some).collect();
        if homes == reached {
            break;
        }
        homes = reached;
        best = search(&problem, &homes, &mut rebuilt);
    }
    let mut places = vec![None; items];
    for (item, place) in map.into_iter().zip(best) {
        places[item] = Some(place);
    }
    places
}

/// Returns the problem without items that have no allowed place, and the indices of the remaining
/// items.
fn without_unplaceable_items(problem: &Problem) -> (Cow<'_, Problem>, Vec<usize>) {
    let width = problem.places.len();
    let row = |item: usize| &problem.fixed[item * width..(item + 1) * width];
    let placeable: Vec<usize> = (0..problem.items.len())
        .filter(|item| row(*item).iter().any(|cost| cost.is_finite()))
        .collect();
    if placeable.len() == problem.items.len() {
        return (Cow::Borrowed(problem), placeable);
    }
    let number = |item: usize| placeable.iter().position(|known| *known == item);
    let pair = |pair: &Pair| Some(Pair { from: number(pair.from)?, to: number(pair.to)?, ..*pair });
    let reduced = Problem {
        places: problem.places.clone(),
        items: placeable.iter().map(|item| problem.items[*item].clone()).collect(),
        fixed: placeable.iter().flat_map(|item| row(*item)).copied().collect(),
        beyond: if problem.beyond.is_empty() {
            Vec::new()
        } else {
            let row = |item: &usize| &problem.beyond[item * width..(item + 1) * width];
            placeable.iter().flat_map(row).copied().collect()
        },
        pairs: problem.pairs.iter().filter_map(pair).collect(),
        senders: problem.senders.clone(),
        assumed: problem.assumed,
        smt_loss: problem.smt_loss,
    };
    (Cow::Owned(reduced), placeable)
}

/// Finds the best placement without regard to moving costs.
fn from_nothing(problem: &Problem) -> Vec<usize> {
    let mut search = Search::new(problem, None);
    search.put_in_order(&search.heaviest_first());
    search.descend();
    search.at
}

/// Returns the better of two local searches: from `homes`, and from a placement built from nothing.
///
/// `rebuilt` caches the placement built from nothing.
fn search(
    problem: &Problem,
    homes: &[Option<usize>],
    rebuilt: &mut Option<Vec<usize>>,
) -> Vec<usize> {
    let mut home = Search::new(problem, Some(homes));
    let empty = home.clone();
    home.put_at_homes(homes);
    home.descend();
    let stay = home.total();
    let enough = stay - (REBUILD_GAIN * stay).max(LEAST);
    if empty.least() >= enough {
        return home.at;
    }
    let rebuilt = rebuilt.get_or_insert_with(|| from_nothing(problem));
    if home.at == *rebuilt {
        return home.at;
    }
    let mut other = empty;
    rebuilt.iter().enumerate().for_each(|(item, place)| other.put(item, *place));
    other.descend();
    if other.total() < enough { other.at } else { home.at }
}

/// A placement that the local search improves.
#[derive(Clone)]
struct Search<'a> {
    problem: &'a Problem,
    /// The place that each item pays to leave ([`crate::cost::problem::Item::moving`]); `None` if
    /// moving costs nothing.
    homes: Option<&'a [Option<usize>]>,
    /// Number of allowed places, summed over all items.
    choices: usize,
    at: Vec<usize>,
    /// Load of the items on each CPU.
    loads: Vec<f64>,
    /// [`crate::cost::problem::Item::turns`] of the items on each CPU.
    turns: Vec<f64>,
    /// Crowding cost of the first share of load added to each CPU (ns/s).
    crowd: Vec<f64>,
    /// The other CPUs of each CPU's core.
    siblings: Rc<[Vec<usize>]>,
    /// The pairs of each item.
    pairs: Rc<[Vec<Pair>]>,
}

const NOWHERE: usize = usize::MAX;

impl<'a> Search<'a> {
    fn new(problem: &'a Problem, homes: Option<&'a [Option<usize>]>) -> Self {
        let mut siblings = vec![Vec::new(); problem.places.len()];
        for core in problem.cores().iter().filter(|core| core.len() > 1) {
            for place in core {
                siblings[*place] = core.iter().copied().filter(|other| other != place).collect();
            }
        }
        let mut pairs = vec![Vec::new(); problem.items.len()];
        for pair in problem.pairs.iter().filter(|pair| pair.from != pair.to) {
            pairs[pair.from].push(*pair);
            pairs[pair.to].push(*pair);
        }
        let crowd = vec![0.0; problem.places.len()];
        let choices = problem.fixed.iter().filter(|cost| cost.is_finite()).count();
        let mut search = Self {
            problem,
            homes,
            choices,
            at: vec![NOWHERE; problem.items.len()],
            loads: vec![0.0; problem.places.len()],
            turns: vec![0.0; problem.places.len()],
            crowd,
            siblings: siblings.into(),
            pairs: pairs.into(),
        };
        (0..problem.places.len()).for_each(|place| search.update_crowd(place));
        search
    }

    fn update_crowd(&mut self, place: usize) {
        let load = self.loads[place];
        let busy = self.problem.places[place].busy + load;
        let assumed = &self.problem.assumed;
        let first = assumed.slope(busy, load) + self.problem.smt_loss * self.beside(place);
        self.crowd[place] = first * SECOND_NS;
    }

    /// Updates what more load would cost a CPU and its core.
    fn update_core(&mut self, place: usize) {
        self.update_crowd(place);
        for other in 0..self.siblings[place].len() {
            self.update_crowd(self.siblings[place][other]);
        }
    }

    /// Load of the items on the other threads of a CPU's core.
    fn beside(&self, place: usize) -> f64 {
        self.siblings[place].iter().map(|other| self.loads[*other]).sum()
    }

    /// Lower bound of the cost of any placement, computed while no item is placed.
    ///
    /// Each item counts at its cheapest place as if it were alone; items already there only make
    /// the next one more expensive.
    fn least(&self) -> f64 {
        let cheapest = |item: usize| {
            let prices =
                self.row(item).zip(&self.crowd).map(|((alone, load), crowd)| alone + crowd * load);
            prices.fold(f64::INFINITY, f64::min)
        };
        (0..self.at.len()).map(cheapest).sum()
    }

    /// Cost of the placement, beyond the crowding that exists without the items.
    fn total(&self) -> f64 {
        let alone: f64 =
            self.at.iter().enumerate().map(|(item, place)| self.alone(item, *place)).sum();
        let assumed = &self.problem.assumed;
        let loads = || self.loads.iter().enumerate();
        let crowd: f64 = loads()
            .map(|(place, load)| assumed.pressure(self.problem.places[place].busy + load, *load))
            .sum();
        // Each pair is counted from both ends.
        let beside: f64 = loads().map(|(place, load)| load * self.beside(place)).sum::<f64>() / 2.0;
        let pair = |pair: &Pair| self.problem.handed(pair, self.at[pair.from], self.at[pair.to]);
        let pairs: f64 = self.pairs.iter().flatten().map(pair).sum::<f64>() / 2.0;
        let waits = self.problem.waits(self.at.iter().copied().enumerate(), &self.loads);
        alone + (crowd + self.problem.smt_loss * beside) * SECOND_NS + waits + pairs
    }

    fn put(&mut self, item: usize, place: usize) {
        self.add(item, place);
        self.update_core(place);
    }

    fn leave(&mut self, item: usize) -> usize {
        let place = self.take(item);
        self.update_core(place);
        place
    }

    /// [`Self::put`] without what more load would cost: until [`Self::update_core`], prices are
    /// known, but not the best place.
    fn add(&mut self, item: usize, place: usize) {
        self.at[item] = place;
        self.turns[place] += self.problem.items[item].turns;
        self.loads[place] += self.problem.load(item, place);
    }

    /// [`Self::leave`], with the same restriction.
    fn take(&mut self, item: usize) -> usize {
        let place = std::mem::replace(&mut self.at[item], NOWHERE);
        self.turns[place] -= self.problem.items[item].turns;
        self.loads[place] -= self.problem.load(item, place);
        place
    }

    /// Cost of an item on a place, independent of other items, including the move from its home.
    fn alone(&self, item: usize, place: usize) -> f64 {
        let home = self.homes.and_then(|homes| homes[item]);
        let is_moved = home.is_some_and(|home| home != place);
        let moving = if is_moved { self.problem.items[item].moving } else { 0.0 };
        self.problem.fixed(item, place) + moving
    }

    /// [`Self::alone`] and [`Problem::load`] for all places.
    fn row(&self, item: usize) -> impl Iterator<Item = (f64, f64)> {
        let both = move |place| (self.alone(item, place), self.problem.load(item, place));
        (0..self.loads.len()).map(both)
    }

    /// Full cost of adding an item that is not placed.
    fn price(&self, item: usize, place: usize) -> f64 {
        let load = self.problem.load(item, place);
        let before = self.loads[place];
        let busy = self.problem.places[place].busy + before;
        let assumed = &self.problem.assumed;
        let crowd = assumed.pressure(busy + load, before + load) - assumed.pressure(busy, before)
            + self.problem.smt_loss * load * self.beside(place);
        let pair = |pair: &Pair| match (pair.from == item, self.at[pair.from], self.at[pair.to]) {
            (true, _, NOWHERE) | (false, NOWHERE, _) => 0.0,
            (true, _, to) => self.problem.handed(pair, place, to),
            (false, from, _) => self.problem.handed(pair, from, place),
        };
        let pairs: f64 = self.pairs[item].iter().map(pair).sum();
        let waits = self.problem.items[item].turns * before + load * self.turns[place];
        self.alone(item, place) + crowd * SECOND_NS + waits + pairs
    }

    /// Returns the best place for an item that is not placed, with its price; `at` if no place is
    /// better.
    fn best(&self, item: usize, at: Option<usize>) -> (usize, f64) {
        let mut best =
            at.map_or((NOWHERE, f64::INFINITY), |place| (place, self.price(item, place)));
        for (place, ((alone, load), crowd)) in self.row(item).zip(&self.crowd).enumerate() {
            // Each item present makes the next one more expensive, and pairs only add cost.
            if alone < best.1 - LEAST && alone + crowd * load < best.1 - LEAST {
                let price = self.price(item, place);
                if price < best.1 - LEAST {
                    best = (place, price);
                }
            }
        }
        best
    }

    fn put_at_homes(&mut self, homes: &[Option<usize>]) {
        let mut order = self.heaviest_first();
        order.retain(|item| match homes[*item] {
            Some(home) if self.problem.fixed(*item, home).is_finite() => {
                self.put(*item, home);
                false
            }
            _ => true,
        });
        self.put_in_order(&order);
    }

    fn put_in_order(&mut self, order: &[usize]) {
        for item in order {
            let (place, _) = self.best(*item, None);
            self.put(*item, place);
        }
    }

    fn heaviest_first(&self) -> Vec<usize> {
        let items = &self.problem.items;
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_unstable_by(|a, b| items[*b].load.total_cmp(&items[*a].load).then(a.cmp(b)));
        order
    }

    /// Takes steps until none gains.
    fn descend(&mut self) {
        // Work to hold one item at each place.
        let mut work = 2 * HOLDS * self.descend_but(NOWHERE);
        let mut total = self.total();
        let mut order = self.heaviest_first();
        // When one item finds an improvement, all others are tried again.
        let mut calm = 0;
        while calm < order.len() && work < WORK {
            let item = order.remove(0);
            order.push(item);
            calm += 1;
            for place in self.next_best(item) {
                let mut other = self.clone();
                other.leave(item);
                other.put(item, place);
                work += other.descend_but(item) + other.descend_but(NOWHERE);
                let now = other.total();
                if now < total - LEAST {
                    (*self, total, calm) = (other, now, 0);
                    break;
                }
            }
        }
    }

    /// Returns the next best places for an item, with all others where they are.
    fn next_best(&mut self, item: usize) -> Vec<usize> {
        let from = self.take(item);
        let places = (0..self.problem.places.len()).filter(|place| *place != from);
        let mut prices: Vec<(f64, usize)> =
            places.map(|place| (self.price(item, place), place)).collect();
        self.put(item, from);
        prices.retain(|(price, _)| price.is_finite());
        prices.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        prices.into_iter().take(HOLDS).map(|(_, place)| place).collect()
    }

    /// Takes steps with all items but one until none gains; returns the approximate number of price
    /// computations.
    fn descend_but(&mut self, held: usize) -> usize {
        let sweep = self.at.len() * self.at.len() + self.choices;
        for sweeps in 1..=SWEEPS {
            if !(self.moves(held) | self.exchanges(held)) {
                return sweeps * sweep;
            }
        }
        SWEEPS * sweep
    }

    /// Moves each item to its best place.
    fn moves(&mut self, held: usize) -> bool {
        let mut moved = false;
        for item in (0..self.at.len()).filter(|item| *item != held) {
            let from = self.leave(item);
            let (to, _) = self.best(item, Some(from));
            self.put(item, to);
            moved |= from != to;
        }
        moved
    }

    /// Exchanges two items where that gains.
    fn exchanges(&mut self, held: usize) -> bool {
        let mut moved = false;
        // Cost that each item adds now: an upper bound of what it adds while another item is away.
        let mut adds: Vec<f64> = (0..self.at.len()).map(|item| self.adds(item)).collect();
        for a in (0..self.at.len()).filter(|item| *item != held) {
            for b in (a + 1..self.at.len()).filter(|item| *item != held) {
                let (x, y) = (self.at[a], self.at[b]);
                let gains = |least: f64| least < adds[a] + adds[b] - LEAST;
                let is_possible = x != y && gains(self.alone(a, y) + self.alone(b, x));
                if is_possible && self.try_exchange(a, b) {
                    moved = true;
                    (adds[a], adds[b]) = (self.adds(a), self.adds(b));
                }
            }
        }
        moved
    }

    /// Cost that an item adds where it is.
    fn adds(&mut self, item: usize) -> f64 {
        let place = self.take(item);
        let price = self.price(item, place);
        self.put(item, place);
        price
    }

    /// Exchanges two items, if that gains.
    fn try_exchange(&mut self, a: usize, b: usize) -> bool {
        let y = self.take(b);
        let b_before = self.price(b, y);
        let x = self.take(a);
        let before = b_before + self.price(a, x);
        let a_after = self.price(a, y);
        self.add(a, y);
        let after = a_after + self.price(b, x);
        let gains = after < before - LEAST;
        if gains {
            self.add(b, x);
        } else {
            self.take(a);
            self.add(a, x);
            self.add(b, y);
        }
        self.update_core(x);
        self.update_core(y);
        gains
    }
}
