//! `/proc/kallsyms`: the function of an address.

#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use netsilo_model::derive::stages::stage_of;
use netsilo_model::parse::kallsyms::functions;

fuzz_target!(|text: &str| {
    let addresses: BTreeSet<u64> = (0..64).map(|bit| u64::MAX << bit).collect();
    let Some(found) = functions(text, &addresses) else { return };
    for (address, symbol) in &found {
        assert!(addresses.contains(address) && text.contains(&symbol.name));
        assert!(symbol.module.as_ref().is_none_or(|module| text.contains(module.as_str())));
    }
    let _ = stage_of(found.values());
});
