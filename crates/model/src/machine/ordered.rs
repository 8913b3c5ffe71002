//! Collects into ordered maps and sets, and sorts, with little code.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// As `collect`, but one item after the other: `collect` would compile a sort of its own, of some
/// 4 KB, for each type of item (docs/install.md, Size).
pub trait Ordered: Iterator + Sized {
    /// The map of these pairs; of equal keys, the last one's value.
    fn into_map<K: Ord, V>(self) -> BTreeMap<K, V>
    where
        Self: Iterator<Item = (K, V)>,
    {
        let mut map = BTreeMap::new();
        map.extend(self);
        map
    }

    /// The map of these pairs, or the first error.
    fn try_into_map<K: Ord, V, E>(mut self) -> Result<BTreeMap<K, V>, E>
    where
        Self: Iterator<Item = Result<(K, V), E>>,
    {
        self.try_fold(BTreeMap::new(), |mut map, pair| {
            let (key, value) = pair?;
            map.insert(key, value);
            Ok(map)
        })
    }

    /// The set of these items.
    fn into_set(self) -> BTreeSet<Self::Item>
    where
        Self::Item: Ord,
    {
        let mut set = BTreeSet::new();
        set.extend(self);
        set
    }
}

impl<I: Iterator> Ordered for I {}

/// As the stable sorts of a slice, of which the compiler would make a copy, of some 4 KB, for each
/// type of item (docs/install.md, Size). Sorts where time counts do not use it.
pub trait StableSort<T> {
    /// As `sort_by`.
    fn stable_sort_by(&mut self, compare: impl FnMut(&T, &T) -> Ordering);

    /// As `sort_by_key`.
    fn stable_sort_by_key<K: Ord>(&mut self, mut key: impl FnMut(&T) -> K) {
        self.stable_sort_by(|a, b| key(a).cmp(&key(b)));
    }
}

impl<T> StableSort<T> for Vec<T> {
    fn stable_sort_by(&mut self, mut compare: impl FnMut(&T, &T) -> Ordering) {
        let order = order(self.len(), &mut |a, b| compare(&self[a], &self[b]));
        let mut items: Vec<Option<T>> = self.drain(..).map(Some).collect();
        self.extend(order.into_iter().filter_map(|at| items[at].take()));
    }
}

/// The positions of so many items in the order of `compare`; of equal ones, the first comes first.
fn order(items: usize, compare: &mut dyn FnMut(usize, usize) -> Ordering) -> Vec<usize> {
    let mut order: Vec<usize> = (0..items).collect();
    order.sort_unstable_by(|a, b| compare(*a, *b).then(a.cmp(b)));
    order
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn equal_items_keep_their_order(items in prop::collection::vec(0..5u8, 0..40)) {
            let mut sorted: Vec<(u8, usize)> = items.into_iter().zip(0..).collect();
            let mut by_std = sorted.clone();
            by_std.sort_by_key(|(key, _)| *key);
            sorted.stable_sort_by_key(|(key, _)| *key);
            prop_assert_eq!(sorted, by_std);
        }
    }
}
