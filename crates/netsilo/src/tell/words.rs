//! Words that several messages need.

use netsilo_decide::plan::selection::nearest;

/// A number with its noun: `1 change`, `3 changes`.
pub use netsilo_model::machine::words::plural;

/// serde's message about a wrong key or value of a file, shortened. For an unknown key, adds the
/// nearest known one.
pub(crate) fn wrong_key(message: &str) -> String {
    // unknown field `a`, expected one of `b`, `c`
    let mut names = message.split('`').skip(1).step_by(2);
    let unknown = names.next().unwrap_or_default();
    let known: Vec<&str> = names.collect();
    if message.starts_with("unknown field ") {
        match nearest(unknown, &known) {
            Some(nearest) => format!("unknown key {unknown}; did you mean {nearest}?"),
            None => format!("unknown key {unknown}; known are {}", known.join(", ")),
        }
    } else if message.starts_with("unknown variant ") {
        format!("{unknown:?}: known are {}", known.join(", "))
    } else {
        // invalid type: string "many", expected f64
        let line = message.lines().next().unwrap_or(message);
        let Some((found, expected)) = line.split_once(", expected ") else {
            return line.to_owned();
        };
        let expected = match expected {
            it if it.starts_with("struct ") => "a table of keys",
            "f32" | "f64" => "a number",
            "u16" | "u32" | "u64" | "usize" => "a whole number from 0 on",
            it => it,
        };
        format!("{found}, expected {expected}")
    }
}
