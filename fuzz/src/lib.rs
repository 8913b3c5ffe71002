//! Shared parts of the fuzz targets: seeds from current types, properties of texts, mutation of
//! JSON as a tree.

pub mod json;

use std::path::Path;

use netsilo_model::parse::ParseError;

/// The folder in which `scripts/fuzz` wants a target to write its own seeds.
pub const SEEDS_DIR_VAR: &str = "NETSILO_FUZZ_SEEDS_TO";

/// Call at the start of a target: writes the target's seeds and exits if the script requests it.
///
/// Seeds built from values follow changes of their types; a stored JSON file would silently fail to
/// decode.
pub fn write_seeds_if_requested<S: AsRef<[u8]>>(seeds: impl FnOnce() -> Vec<S>) {
    let Some(dir) = std::env::var_os(SEEDS_DIR_VAR) else { return };
    for (number, seed) in seeds().iter().enumerate() {
        std::fs::write(Path::new(&dir).join(format!("made-{number:02}")), seed)
            .expect("the script made this folder");
    }
    std::process::exit(0);
}

/// Whether a text is one line as the kernel prints it: with its newline, without control characters
/// except tabs.
pub fn is_one_line(text: &str) -> bool {
    !text.strip_suffix('\n').unwrap_or(text).contains(|c: char| c.is_control() && c != '\t')
}

/// Checks that a parser's error position lies in the text and that its quoted text is there.
pub fn points_into<T>(text: &str, result: &Result<T, ParseError>) {
    let Err(error) = result else { return };
    assert!(error.line >= 1 && error.column >= 1, "{error}");
    // not lines(), which also strips a carriage return before the newline
    let line = text.split('\n').nth(error.line - 1).unwrap_or_default();
    assert!(error.line <= text.split('\n').count() + 1, "{error}: no such line");
    assert!(error.column <= line.len() + 1, "{error}: the column is beyond the end of the line");
    if let Some(unexpected) = error.what.strip_prefix("unexpected ") {
        let there = line.get(error.column - 1..).map(|rest| rest.chars().next().unwrap_or('\n'));
        assert_eq!(
            there.map(|c| format!("{c:?}")).as_deref(),
            Some(unexpected),
            "{error} in {line:?}"
        );
    }
}
