//! `/sys/kernel/btf/*`: the values of enums.

use netsilo_model::parse::btf::enum_values;

use crate::target::FuzzTarget;

pub(crate) const TARGET: FuzzTarget = FuzzTarget::bytes(holds);

fn holds(btf: &[u8]) {
    for (_, name) in enum_values(btf, None, "drop_reason").into_iter().flatten() {
        assert!(name.is_empty() || btf.windows(name.len()).any(|it| it == name.as_bytes()));
    }
    let _ = enum_values(btf, Some(btf), "");
}
