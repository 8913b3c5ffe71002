//! Balances an indirection table: spreads the load of its entries evenly over the queues, and moves
//! few entries.
//!
//! The idea is that of RSS++ (CoNEXT 2019): an entry can be moved, but a flow cannot be split.
//! Entries that carry more than a queue's fair share each get a separate queue, as long as there
//! are queues. The other entries move off overloaded queues, in as few moves as possible.

/// A queue may exceed its fair share by this fraction, because a closer balance would only move
/// flows.
const TOLERANCE: f64 = 0.05;

/// A balanced table, and the moves that lead to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Balanced {
    /// The rx queue of each entry.
    pub table: Vec<u32>,
    /// The entries that moved.
    pub moved: Vec<usize>,
    /// Load of the heaviest queue before.
    pub before: u64,
    /// Load of the heaviest queue after.
    pub after: u64,
}

/// Balances `load` (one value per entry) over the queues that `table` uses.
///
/// Entries without load stay. The sum of `load` times the number of queues must fit in a u64.
///
/// The heaviest queue never becomes heavier. If it would not become lighter, nothing moves.
pub fn balance(table: &[u32], load: &[u64]) -> Balanced {
    let before = heaviest(table, load);
    let mut work = Balancer::new(table, load);
    work.relieve();
    work.put_back(table);
    let after = heaviest(&work.table, load);
    let table = if after < before { work.table } else { table.to_vec() };
    let moved = (0..table.len()).filter(|entry| table[*entry] != work.was[*entry]).collect();
    Balanced { table, moved, before, after: after.min(before) }
}

/// Load of the heaviest queue.
pub fn heaviest(table: &[u32], load: &[u64]) -> u64 {
    queue_loads(table, load).into_iter().map(|(_, load)| load).max().unwrap_or(0)
}

/// Load of each queue in the table, ordered by queue.
pub fn queue_loads(table: &[u32], load: &[u64]) -> Vec<(u32, u64)> {
    let mut queues: Vec<(u32, u64)> = table.iter().map(|queue| (*queue, 0)).collect();
    queues.sort_unstable();
    queues.dedup();
    for (queue, load) in table.iter().zip(load) {
        if let Ok(at) = queues.binary_search_by_key(queue, |(queue, _)| *queue) {
            queues[at].1 += load;
        }
    }
    queues
}

struct Balancer<'a> {
    was: Vec<u32>,
    table: Vec<u32>,
    load: &'a [u64],
    /// Queues and their loads.
    queues: Vec<(u32, u64)>,
    /// Maximum load of a queue, unless a single entry is heavier.
    limit: u64,
}

impl<'a> Balancer<'a> {
    fn new(table: &[u32], load: &'a [u64]) -> Self {
        let queues = queue_loads(table, load);
        let limit = limit(load, queues.len());
        Self { was: table.to_vec(), table: table.to_vec(), load, queues, limit }
    }

    fn position(&self, queue: u32) -> usize {
        self.queues.partition_point(|(other, _)| *other < queue)
    }

    /// Entries of a queue that have load, lightest first.
    fn entries_of(&self, at: usize) -> Vec<usize> {
        let queue = self.queues[at].0;
        let load = |entry: &usize| self.load.get(*entry).copied().unwrap_or(0);
        let mine = self
            .table
            .iter()
            .enumerate()
            .filter(|(_, other)| **other == queue)
            .map(|(entry, _)| entry);
        let mut mine: Vec<usize> = mine.filter(|entry| load(entry) > 0).collect();
        mine.sort_by_key(load);
        mine
    }

    /// Maximum load of a queue: the limit, or its heaviest entry, because that cannot be split.
    fn cap(&self, at: usize) -> u64 {
        self.entries_of(at).last().map_or(self.limit, |entry| self.load[*entry].max(self.limit))
    }

    fn move_entry(&mut self, entry: usize, from: usize, to: usize) {
        self.table[entry] = self.queues[to].0;
        self.queues[from].1 -= self.load[entry];
        self.queues[to].1 += self.load[entry];
    }

    /// Moves entries off queues above their cap. Each step reduces the sum of squares, so the loop
    /// ends.
    fn relieve(&mut self) {
        let mut stuck = vec![false; self.queues.len()];
        loop {
            let over = |work: &Self, at: usize| work.queues[at].1.saturating_sub(work.cap(at));
            let worst =
                (0..self.queues.len()).filter(|at| !stuck[*at]).max_by_key(|at| over(self, *at));
            let Some((from, excess)) =
                worst.map(|at| (at, over(self, at))).filter(|(_, excess)| *excess > 0)
            else {
                return;
            };
            match self.step(from, excess) {
                Some((entry, to)) => {
                    self.move_entry(entry, from, to);
                    stuck.fill(false);
                }
                None => stuck[from] = true,
            }
        }
    }

    /// Chooses the next move off queue `from`.
    ///
    /// The first match applies: the lightest entry that takes away the whole excess and fits; the
    /// heaviest entry that fits; the entry after whose move the heavier of the two queues is
    /// lightest.
    fn step(&self, from: usize, excess: u64) -> Option<(usize, usize)> {
        let to =
            (0..self.queues.len()).filter(|at| *at != from).min_by_key(|at| self.queues[*at].1)?;
        let (source, target) = (self.queues[from].1, self.queues[to].1);
        let load = |entry: &usize| self.load[*entry];
        let entries = self.entries_of(from);
        let fits =
            |entry: &usize| target + load(entry) <= self.limit && target + load(entry) < source;
        let whole = entries.iter().find(|entry| load(entry) >= excess && fits(entry));
        let part = || entries.iter().rev().find(|entry| fits(entry));
        let least = || {
            let helps = entries.iter().filter(|entry| target + load(entry) < source);
            helps.min_by_key(|entry| (source - load(entry)).max(target + load(entry)))
        };
        let entry = whole.or_else(part).or_else(least)?;
        Some((*entry, to))
    }

    /// Reverts each move that is not needed to stay below the caps, beginning with the lightest
    /// entry, until no more can be reverted.
    fn put_back(&mut self, table: &[u32]) {
        loop {
            let mut moved: Vec<usize> =
                (0..table.len()).filter(|entry| table[*entry] != self.table[*entry]).collect();
            moved.sort_by_key(|entry| self.load[*entry]);
            let count = moved.len();
            moved.retain(|entry| !self.revert(*entry, table[*entry]));
            if moved.len() == count {
                return;
            }
        }
    }

    fn revert(&mut self, entry: usize, home: u32) -> bool {
        let (now, home) = (self.position(self.table[entry]), self.position(home));
        let fits = self.queues[home].1 + self.load[entry] <= self.cap(home);
        if fits {
            self.move_entry(entry, now, home);
        }
        fits
    }
}

/// A queue's fair share of the load, plus [`TOLERANCE`].
///
/// Entries heavier than a fair share each occupy a queue. The remaining load is divided by the
/// remaining queues.
fn limit(load: &[u64], queues: usize) -> u64 {
    let mut heavy: Vec<u64> = load.to_vec();
    heavy.sort_unstable_by(|a, b| b.cmp(a));
    let (mut rest, mut remaining) = (heavy.iter().sum::<u64>(), queues as u64);
    for entry in heavy {
        if remaining <= 1 || entry * remaining <= rest {
            break;
        }
        rest -= entry;
        remaining -= 1;
    }
    let fair = rest.div_ceil(remaining.max(1));
    fair + (fair as f64 * TOLERANCE) as u64
}

#[cfg(test)]
#[allow(clippy::print_stdout, reason = "figures")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn equal(entries: usize, queues: u32) -> Vec<u32> {
        (0..entries as u32).map(|entry| entry % queues).collect()
    }

    #[test]
    fn moving_one_entry_suffices() {
        let load = [30, 0, 15, 15, 30, 0, 15, 15];
        let balanced = balance(&equal(8, 4), &load);
        assert_eq!((balanced.before, balanced.after, balanced.moved.len()), (60, 30, 1));
        assert_eq!(balanced.table.iter().filter(|queue| **queue == 1).count(), 3);
    }

    #[test]
    fn an_even_load_stays() {
        let load = [100, 103, 98, 101];
        let moved = |table: &[u32], load: &[u64]| balance(table, load).moved.len();
        assert_eq!(moved(&equal(4, 4), &load), 0);
        assert_eq!(moved(&[], &[]), 0);
        assert_eq!(moved(&equal(128, 8), &[0; 128]), 0);
    }

    #[test]
    fn a_dominant_entry_gets_its_own_queue() {
        let mut load = vec![10; 128];
        load[3] = 5000;
        let balanced = balance(&equal(128, 8), &load);
        assert_eq!(balanced.after, 5000, "nothing splits it");
        let with_it = balanced.table.iter().filter(|queue| **queue == 3).count();
        assert_eq!((with_it, balanced.moved.len()), (1, 15));
        assert!(
            queue_loads(&balanced.table, &load)
                .iter()
                .all(|(queue, load)| *queue == 3 || *load <= 190)
        );
    }

    #[test]
    fn two_dominant_entries_of_one_queue_are_separated() {
        let load = [500, 0, 0, 0, 500, 0, 0, 0];
        let balanced = balance(&equal(8, 4), &load);
        assert_eq!((balanced.before, balanced.after, balanced.moved.len()), (1000, 500, 1));
    }

    /// A hash as good as a NIC's (SplitMix64).
    fn mixed(flow: u64) -> u64 {
        let z = flow.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    #[test]
    fn few_moves_balance_a_zipf_skew() {
        for (entries, queues, flows) in [(128, 8, 2000), (512, 16, 20_000), (128, 4, 300)] {
            let mut load = vec![0; entries];
            for flow in 1..=flows as u64 {
                load[mixed(flow) as usize % entries] += 1_000_000 / (flow + 5);
            }
            let balanced = balance(&equal(entries, queues), &load);
            let fair = load.iter().sum::<u64>() as f64 / f64::from(queues);
            let (before, after) = (balanced.before as f64 / fair, balanced.after as f64 / fair);
            let moved = balanced.moved.len();
            println!(
                "{entries} entries, {queues} queues, {flows} flows: heaviest {before:.2} -> \
                 {after:.2} of the mean, {moved} moved"
            );
            assert!(
                before > 1.1 && after < 1.06 && moved * 4 < entries,
                "{before:.3} -> {after:.3} by {moved}"
            );
        }
    }

    /// Load of the heaviest queue under the best possible table.
    fn best(load: &[u64], queues: u32) -> u64 {
        let tables = u64::from(queues).pow(load.len() as u32);
        let table = |n: u64| {
            let entry =
                |at: usize| (n / u64::from(queues).pow(at as u32) % u64::from(queues)) as u32;
            (0..load.len()).map(entry).collect::<Vec<_>>()
        };
        (0..tables).map(|n| heaviest(&table(n), load)).min().unwrap_or(0)
    }

    fn skewed() -> impl Strategy<Value = (Vec<u32>, Vec<u64>)> {
        let load = prop_oneof![4 => 0..100_u64, 2 => 100..1000_u64, 1 => 1000..20_000_u64];
        let entry = move |queues: u32| (0..queues, load.clone());
        (1..16_u32).prop_flat_map(move |queues| {
            prop::collection::vec(entry(queues), 1..160)
                .prop_map(|entries| entries.into_iter().unzip())
        })
    }

    #[test]
    fn a_spread_that_only_an_exchange_would_improve_stays() {
        let load = [92, 9, 40, 90, 83, 52];
        let balanced = balance(&equal(load.len(), 3), &load);
        assert_eq!((balanced.after, best(&load, 3)), (182, 135));
    }

    proptest! {
        #[test]
        fn never_worse_and_only_queues_of_the_table((table, load) in skewed()) {
            let balanced = balance(&table, &load);
            prop_assert_eq!(balanced.before, heaviest(&table, &load));
            prop_assert_eq!(balanced.after, heaviest(&balanced.table, &load));
            prop_assert!(balanced.after <= balanced.before);
            prop_assert!(balanced.after < balanced.before || balanced.moved.is_empty());
            prop_assert_eq!(balanced.table.len(), table.len());
            prop_assert!(balanced.table.iter().all(|queue| table.contains(queue)));
            for entry in 0..table.len() {
                let differs = table[entry] != balanced.table[entry];
                prop_assert_eq!(balanced.moved.contains(&entry), differs);
                prop_assert!(load[entry] > 0 || table[entry] == balanced.table[entry]);
            }
        }

        #[test]
        fn every_move_is_needed((table, load) in skewed()) {
            let balanced = balance(&table, &load);
            let limit = limit(&load, queue_loads(&table, &load).len());
            for entry in &balanced.moved {
                let mut loads = queue_loads(&balanced.table, &load).into_iter();
                let home = loads.find(|(queue, _)| *queue == table[*entry]);
                let there = (0..load.len()).filter(|at| balanced.table[*at] == table[*entry]);
                let cap = there.map(|at| load[at]).max().unwrap_or(0).max(limit);
                // A queue without entries is not among the loads.
                prop_assert!(home.map_or(0, |(_, carried)| carried) + load[*entry] > cap);
            }
        }

        #[test]
        fn a_balanced_table_stays((table, load) in skewed()) {
            let once = balance(&table, &load);
            let again = balance(&once.table, &load);
            prop_assert!(again.after <= once.after);
            let queues = queue_loads(&table, &load).len();
            let same_queues = queue_loads(&once.table, &load).len() == queues;
            if once.after <= limit(&load, queues) && same_queues {
                prop_assert_eq!(again.moved, Vec::<usize>::new());
            }
        }

        #[test]
        fn the_heaviest_queue_is_close_to_the_optimum(
            load in prop::collection::vec(0..100_u64, 4..7),
            queues in 2..4_u32,
        ) {
            let balanced = balance(&equal(load.len(), queues), &load);
            let best = best(&load, queues);
            // If no single move gains, the heaviest of m queues carries at most 2m / (m + 1) of the
            // best (Finn and Horowitz, BIT 19, 1979): 4/3 for two, 3/2 for three.
            let m = u64::from(queues);
            prop_assert!(
                balanced.after * (m + 1) <= best * 2 * m + 3,
                "{} against {best}",
                balanced.after
            );
        }
    }
}
