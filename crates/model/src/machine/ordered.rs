//! Collects into ordered maps and sets with little code.

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
