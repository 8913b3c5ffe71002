//! The names of kernel functions by address, from kallsyms.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use netsilo_model::parse::kallsyms::{self, Symbol};

/// The names that were needed so far; an empty one where kallsyms has none.
#[derive(Debug, Default)]
pub(crate) struct Functions(BTreeMap<u64, Symbol>);

impl Functions {
    /// Finds the names of functions at these addresses.
    pub(crate) fn learn(&mut self, addresses: BTreeSet<u64>) {
        let new: BTreeSet<u64> =
            addresses.into_iter().filter(|it| !self.0.contains_key(it)).collect();
        if new.is_empty() {
            return;
        }
        let text = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
        let mut found = kallsyms::functions(&text, &new).unwrap_or_default();
        let nameless = || Symbol { name: String::new(), module: None };
        let named = |address| (address, found.remove(&address).unwrap_or_else(nameless));
        self.0.extend(new.into_iter().map(named));
    }

    /// A function that was learnt.
    pub(crate) fn get(&self, address: u64) -> Option<&Symbol> {
        self.0.get(&address)
    }
}
