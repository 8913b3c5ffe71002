//! A few counts by name, stored compactly. Each CPU has a set of them, so names are shared and no
//! capacity is unused.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

/// Counts by name, in the order of their names; a map in JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "BTreeMap<Arc<str>, u64>")]
pub struct Counts(Box<[(Arc<str>, u64)]>);

impl Counts {
    /// The count of a name.
    pub fn get(&self, name: &str) -> Option<u64> {
        let at = self.0.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
        Some(self.0[at].1)
    }

    /// All names and counts, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, u64)> {
        self.0.iter().map(|(name, count)| (name, *count))
    }
}

impl From<BTreeMap<Arc<str>, u64>> for Counts {
    fn from(counts: BTreeMap<Arc<str>, u64>) -> Self {
        Self(counts.into_iter().collect())
    }
}

impl FromIterator<(Arc<str>, u64)> for Counts {
    /// If a name occurs twice, the last count applies.
    fn from_iter<T: IntoIterator<Item = (Arc<str>, u64)>>(counts: T) -> Self {
        counts.into_iter().collect::<BTreeMap<_, _>>().into()
    }
}

impl<const N: usize> From<[(&str, u64); N]> for Counts {
    fn from(counts: [(&str, u64); N]) -> Self {
        counts.into_iter().map(|(name, count)| (name.into(), count)).collect()
    }
}

impl Serialize for Counts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_found_by_name_and_serialize_as_a_map() {
        let counts = Counts::from([("TIMER", 3), ("HI", 1), ("TIMER", 4)]);
        assert_eq!(
            (counts.get("HI"), counts.get("TIMER"), counts.get("RCU")),
            (Some(1), Some(4), None)
        );
        let json = serde_json::to_string(&counts).unwrap();
        assert_eq!(json, r#"{"HI":1,"TIMER":4}"#);
        assert_eq!(serde_json::from_str::<Counts>(&json).unwrap(), counts);
    }
}
