//! A placement of least cost, nearly: local search from where everything is, and from a placement made from nothing.
//!
//! A step is the best move of one item or the exchange of two. Where no step gains any more, each item in turn is held
//! at each of the places next best for it while the others find theirs anew, as far as [`WORK`] allows. Nothing is
//! random, so the same problem has the same answer. And the answer is its own: asked again with everything where
//! the answer put it, the solver moves nothing, as it goes on from its own answers until it finds no better one.

use super::{Pair, Problem, SECOND_NS, SMT_LOSS, pressure};

/// A step has to gain more than this (ns/s): rounding must not decide.
const LEAST: f64 = 1.0;

/// Another placement altogether has to be better by this share of the cost than the one reached from where all is.
const ALTOGETHER: f64 = 0.01;

/// How often the search goes on from its own answer at most.
const ROUNDS: usize = 4;

/// Rounds of local search at most; each ends when nothing gains any more.
const SWEEPS: usize = 32;

/// How many prices are asked for at most while items are held elsewhere.
const WORK: usize = 200_000;

/// At how many places an item is held.
const HOLDS: usize = 4;

/// A place for each item; `None` for one that has no allowed place.
pub fn solve(problem: &Problem) -> Vec<Option<usize>> {
    let (placeable, map) = without_the_homeless(problem);
    let mut best: Vec<usize> = search(&placeable);
    for _ in 0..ROUNDS {
        let mut again = placeable.clone();
        for (item, place) in again.items.iter_mut().zip(&best) {
            item.home = Some(*place);
        }
        let next = search(&again);
        if next == best {
            break;
        }
        best = next;
    }
    let mut places = vec![None; problem.items.len()];
    for (item, place) in map.into_iter().zip(best) {
        places[item] = Some(place);
    }
    places
}

/// What each item gains by being where it is and not at its home (ns/s), all others being where they are.
pub fn gains(problem: &Problem, at: &[Option<usize>]) -> Vec<Option<f64>> {
    let mut search = Search::new(problem, false);
    for (item, place) in at.iter().enumerate() {
        place.iter().for_each(|place| search.sit(item, *place));
    }
    let mut gain = |(item, place): (usize, &Option<usize>)| {
        let (place, home) = ((*place)?, problem.items[item].home?);
        search.leave(item);
        let gain = search.price(item, home) - search.price(item, place);
        search.sit(item, place);
        gain.is_finite().then_some(gain)
    };
    at.iter().enumerate().map(&mut gain).collect()
}

/// The problem without the items that may be nowhere, and the numbers of those that are left.
fn without_the_homeless(problem: &Problem) -> (Problem, Vec<usize>) {
    let width = problem.places.len();
    let row = |item: usize| &problem.fixed[item * width..(item + 1) * width];
    let kept: Vec<usize> =
        (0..problem.items.len()).filter(|item| row(*item).iter().any(|cost| cost.is_finite())).collect();
    if kept.len() == problem.items.len() {
        return (problem.clone(), kept);
    }
    let number = |item: usize| kept.iter().position(|known| *known == item);
    let pair = |pair: &Pair| Some(Pair { from: number(pair.from)?, to: number(pair.to)?, ..*pair });
    let left = Problem {
        places: problem.places.clone(),
        items: kept.iter().map(|item| problem.items[*item].clone()).collect(),
        fixed: kept.iter().flat_map(|item| row(*item)).copied().collect(),
        pairs: problem.pairs.iter().filter_map(pair).collect(),
    };
    (left, kept)
}

fn search(problem: &Problem) -> Vec<usize> {
    let mut home = Search::new(problem, true);
    home.sit_at_home();
    home.descend();
    let mut anew = Search::new(problem, false);
    anew.sit_anew();
    anew.descend();
    let mut anew = Search { moving: true, ..anew };
    anew.descend();
    let (stay, go) = (home.total(), anew.total());
    if go < stay - (ALTOGETHER * stay).max(LEAST) { anew.at } else { home.at }
}

/// A placement on the way to a better one.
#[derive(Clone)]
struct Search<'a> {
    problem: &'a Problem,
    /// Whether leaving home costs.
    moving: bool,
    at: Vec<usize>,
    busy: Vec<f64>,
    /// The other CPUs of each CPU's core.
    siblings: Vec<Vec<usize>>,
    /// The pairs of each item.
    pairs: Vec<Vec<Pair>>,
}

const NOWHERE: usize = usize::MAX;

impl<'a> Search<'a> {
    fn new(problem: &'a Problem, moving: bool) -> Self {
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
        let busy = problem.places.iter().map(|place| place.busy).collect();
        Self { problem, moving, at: vec![NOWHERE; problem.items.len()], busy, siblings, pairs }
    }

    fn total(&self) -> f64 {
        self.problem.cost(&self.at) + self.problem.moving(&self.at)
    }

    fn sit(&mut self, item: usize, place: usize) {
        self.at[item] = place;
        self.busy[place] += self.problem.load(item, place);
    }

    fn leave(&mut self, item: usize) -> usize {
        let place = std::mem::replace(&mut self.at[item], NOWHERE);
        self.busy[place] -= self.problem.load(item, place);
        place
    }

    /// What it costs to add an item that is nowhere: without crowding, and all of it.
    fn alone(&self, item: usize, place: usize) -> f64 {
        let known = &self.problem.items[item];
        let moved = self.moving && known.home.is_some_and(|home| home != place);
        self.problem.fixed(item, place) + if moved { known.moving } else { 0.0 }
    }

    fn price(&self, item: usize, place: usize) -> f64 {
        let load = self.problem.load(item, place);
        let crowd = pressure(self.busy[place] + load) - pressure(self.busy[place]);
        let core: f64 = self.siblings[place].iter().map(|other| self.busy[*other]).sum();
        let pair = |pair: &Pair| {
            let other = self.at[if pair.from == item { pair.to } else { pair.from }];
            if other == NOWHERE { 0.0 } else { pair.cost.at(self.problem.distance(place, other)) }
        };
        let pairs: f64 = self.pairs[item].iter().map(pair).sum();
        self.alone(item, place) + (crowd + SMT_LOSS * load * core) * SECOND_NS + pairs
    }

    /// The best place for an item that is nowhere, with its price; `at` if nothing is better than it.
    fn best(&self, item: usize, at: Option<usize>) -> (usize, f64) {
        let mut best = at.map_or((NOWHERE, f64::INFINITY), |place| (place, self.price(item, place)));
        for place in 0..self.problem.places.len() {
            // Crowding and pairs only add to it.
            if self.alone(item, place) < best.1 - LEAST {
                let price = self.price(item, place);
                if price < best.1 - LEAST {
                    best = (place, price);
                }
            }
        }
        best
    }

    fn sit_at_home(&mut self) {
        let mut order = self.heaviest_first();
        order.retain(|item| match self.problem.items[*item].home {
            Some(home) if self.problem.fixed(*item, home).is_finite() => {
                self.sit(*item, home);
                false
            }
            _ => true,
        });
        self.sit_in(&order);
    }

    fn sit_anew(&mut self) {
        self.sit_in(&self.heaviest_first());
    }

    fn sit_in(&mut self, order: &[usize]) {
        for item in order {
            let (place, _) = self.best(*item, None);
            self.sit(*item, place);
        }
    }

    fn heaviest_first(&self) -> Vec<usize> {
        let items = &self.problem.items;
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_by(|a, b| items[*b].load.total_cmp(&items[*a].load).then(a.cmp(b)));
        order
    }

    /// Steps until none gains any more.
    fn descend(&mut self) {
        self.descend_but(NOWHERE);
        let mut work = 0;
        let mut total = self.total();
        let mut order = self.heaviest_first();
        // As long as one finds something, the others are asked again.
        let mut calm = 0;
        while calm < order.len() && work < WORK {
            let item = order.remove(0);
            order.push(item);
            calm += 1;
            for place in self.next_best(item) {
                let mut other = self.clone();
                other.leave(item);
                other.sit(item, place);
                work += other.descend_but(item) + other.descend_but(NOWHERE);
                let now = other.total();
                if now < total - LEAST {
                    (*self, total, calm) = (other, now, 0);
                    break;
                }
            }
        }
    }

    /// The places that are next best for an item, all others being where they are.
    fn next_best(&mut self, item: usize) -> Vec<usize> {
        let from = self.leave(item);
        let places = (0..self.problem.places.len()).filter(|place| *place != from);
        let mut prices: Vec<(f64, usize)> = places.map(|place| (self.price(item, place), place)).collect();
        self.sit(item, from);
        prices.retain(|(price, _)| price.is_finite());
        prices.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        prices.into_iter().take(HOLDS).map(|(_, place)| place).collect()
    }

    /// Steps of all but one until none gains any more; says how many prices that took, about.
    fn descend_but(&mut self, held: usize) -> usize {
        let sweep = self.at.len() * (self.at.len() + self.problem.places.len());
        for sweeps in 1..=SWEEPS {
            if !(self.moves(held) | self.exchanges(held)) {
                return sweeps * sweep;
            }
        }
        SWEEPS * sweep
    }

    /// Each item to its best place.
    fn moves(&mut self, held: usize) -> bool {
        let mut moved = false;
        for item in (0..self.at.len()).filter(|item| *item != held) {
            let from = self.leave(item);
            let (to, _) = self.best(item, Some(from));
            self.sit(item, to);
            moved |= from != to;
        }
        moved
    }

    /// Two items each to the other's place.
    fn exchanges(&mut self, held: usize) -> bool {
        let mut moved = false;
        for a in (0..self.at.len()).filter(|item| *item != held) {
            for b in (a + 1..self.at.len()).filter(|item| *item != held) {
                let (x, y) = (self.at[a], self.at[b]);
                // What they cost without the crowd is a bound, and both stay in one crowd or the other.
                let bound = self.alone(a, y) + self.alone(b, x);
                if x == y || !bound.is_finite() {
                    continue;
                }
                let lighter = self.problem.items[a].load == self.problem.items[b].load && self.pairs[a].is_empty();
                if lighter && bound >= self.alone(a, x) + self.alone(b, y) {
                    continue;
                }
                moved |= self.try_both(a, y, b, x);
            }
        }
        moved
    }

    /// Two items to two places, if that gains.
    fn try_both(&mut self, a: usize, to_a: usize, b: usize, to_b: usize) -> bool {
        let (x, y) = (self.at[a], self.at[b]);
        self.leave(b);
        let b_before = self.price(b, y);
        self.leave(a);
        let before = b_before + self.price(a, x);
        let a_after = self.price(a, to_a);
        self.sit(a, to_a);
        let after = a_after + self.price(b, to_b);
        if after < before - LEAST {
            self.sit(b, to_b);
            return true;
        }
        self.leave(a);
        self.sit(a, x);
        self.sit(b, y);
        false
    }
}
