//! `/sys/kernel/btf/*`: the values of enums.

#![no_main]

use libfuzzer_sys::fuzz_target;
use netsilo_model::parse::btf::enum_values;

fuzz_target!(|btf: &[u8]| {
    for (_, name) in enum_values(btf, None, "drop_reason").into_iter().flatten() {
        assert!(name.is_empty() || btf.windows(name.len()).any(|it| it == name.as_bytes()));
    }
    let _ = enum_values(btf, Some(btf), "");
});
