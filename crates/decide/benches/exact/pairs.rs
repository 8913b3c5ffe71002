//! Pairs of items, of which one hands packets to the other: what they save by what their places
//! share.

use std::collections::{BTreeMap, BTreeSet};

use netsilo_model::cost::problem::Problem;
use netsilo_model::machine::topology::Distance;

use crate::sets::UNIT;

/// Two items save something if both are on the places of one group: a CPU, or what shares a core, a
/// cache, a node.
pub(crate) struct Tie {
    pub(crate) saving: f64,
    /// The rows of both: each may save there only as far as it is there.
    pub(crate) rows: [usize; 2],
}

/// All of them.
#[derive(Default)]
pub(crate) struct Ties {
    pub(crate) ties: Vec<Tie>,
    /// The rows in which an item on a place counts.
    rows_of: BTreeMap<(usize, usize), Vec<usize>>,
    pub(crate) rows: usize,
    /// What all pairs cost if nobody shares anything.
    pub(crate) apart: f64,
}

impl Ties {
    pub(crate) fn of(problem: &Problem) -> Self {
        let mut all = Self::default();
        let levels: Vec<Vec<Vec<usize>>> =
            (0..Distance::ALL.len() - 1).map(|level| groups(problem, level)).collect();
        for pair in &problem.pairs {
            if pair.from == pair.to {
                all.apart += pair.cost.same_cpu / UNIT;
                continue;
            }
            all.apart += pair.cost.remote / UNIT;
            for (groups, apart) in levels.iter().zip(Distance::ALL.windows(2)) {
                let saving = (pair.cost.at(apart[1]) - pair.cost.at(apart[0])) / UNIT;
                assert!(saving >= 0.0, "what is nearer costs more");
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

/// The places that share a level, the CPU itself being the first one.
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
        assert!(group.iter().all(|place| seen.insert(*place)), "what shares a cache is no group");
        groups.push(group);
    }
    groups
}
