//! `/proc/kallsyms`: the function of an address.

use std::collections::BTreeSet;

use netsilo_model::derive::stages::stage_of;
use netsilo_model::parse::kallsyms::functions;

use crate::target::FuzzTarget;

pub(crate) const TARGET: FuzzTarget = FuzzTarget { inputs: 10_000, ..FuzzTarget::text(holds) };

fn holds(text: &str) {
    let addresses: BTreeSet<u64> = (0..64).map(|bit| u64::MAX << bit).collect();
    let Some(found) = functions(text, &addresses) else { return };
    for (address, symbol) in &found {
        assert!(addresses.contains(address) && text.contains(&symbol.name));
        assert!(symbol.module.as_ref().is_none_or(|module| text.contains(module.as_str())));
    }
    let _ = stage_of(found.values());
}
