//! Pairs of items, and the savings from shared places: one item passes packets to the other.

use std::collections::{BTreeMap, BTreeSet};

use netsilo_model::cost::problem::Problem;
use netsilo_model::machine::topology::Distance;

use crate::sets::UNIT;

/// Two items save if both are in one group of places: a CPU, or the CPUs of a core, cache or node.
pub(crate) struct Tie {
    pub(crate) saving: f64,
    /// The rows of both items: each saves only as far as it is placed there.
    pub(crate) rows: [usize; 2],
}

/// All ties.
#[derive(Default)]
pub(crate) struct Ties {
    pub(crate) ties: Vec<Tie>,
    /// The rows that an item at a place counts in.
    rows_of: BTreeMap<(usize, usize), Vec<usize>>,
    pub(crate) rows: usize,
    /// Cost of all pairs if no places are shared.
    pub(crate) apart: f64,
}

impl Ties {
    pub(crate) fn of(problem: &Problem) -> Self {
        let mut all = Self::default();
        let levels: Vec<Vec<Vec<usize>>> =
            (0..Distance::ALL.len() - 1).map(|level| groups(problem, level)).collect();
        for pair in &problem.pairs {
            assert!(pair.senders.is_none(), "pairs that depend on the sending CPU are not bounded");
            if pair.from == pair.to {
                all.apart += pair.cost.same_cpu / UNIT;
                continue;
            }
            all.apart += pair.cost.remote / UNIT;
            for (groups, apart) in levels.iter().zip(Distance::ALL.windows(2)) {
                let saving = (pair.cost.at(apart[1]) - pair.cost.at(apart[0])) / UNIT;
                assert!(saving >= 0.0, "a shorter distance costs more");
                groups
                    .iter()
                    .for_each(|places| all.add(problem, [pair.from, pair.to], places, saving));
            }
        }
        all
    }

    fn add(&mut self, problem: &Problem, items: [usize; 2], places: &[usize], saving: f64) {
        let may = |item: usize| places.iter().any(|place| problem.fixed(item, *place).is_finite());
        if saving == 0.0 || !items.iter().all(|item| may(*item)) {
            return;
        }
        let rows = [self.rows, self.rows + 1];
        self.rows += 2;
        for (row, item) in rows.into_iter().zip(items) {
            places
                .iter()
                .for_each(|place| self.rows_of.entry((item, *place)).or_default().push(row));
        }
        self.ties.push(Tie { saving, rows });
    }

    pub(crate) fn rows_of(&self, item: usize, place: usize) -> impl Iterator<Item = usize> {
        self.rows_of.get(&(item, place)).into_iter().flatten().copied()
    }
}

/// The groups of places that share a level; level 0 is the CPU itself.
fn groups(problem: &Problem, level: usize) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut seen = BTreeSet::new();
    let nearer = |a: usize, b: usize| problem.distance(a, b) <= Distance::ALL[level];
    for place in 0..problem.places.len() {
        if seen.contains(&place) {
            continue;
        }
        let group: Vec<usize> =
            (0..problem.places.len()).filter(|other| nearer(place, *other)).collect();
        assert!(group.iter().all(|place| seen.insert(*place)), "places that share a cache overlap");
        groups.push(group);
    }
    groups
}
