//! What the fuzz targets share: seeds made of today's types, laws of texts, and mutation of JSON as
//! a tree.

pub mod json;

use std::path::Path;

use netsilo_model::parse::ParseError;

/// Where `scripts/fuzz` wants a target to write the seeds that it makes itself.
pub const SEEDS_TO: &str = "NETSILO_FUZZ_SEEDS_TO";

/// Called at a target's start: writes its seeds and ends, if that is what the script wants.
///
/// Seeds that are made of values follow their types when these change; a JSON file would silently
/// stop to decode.
pub fn offer<S: AsRef<[u8]>>(seeds: impl FnOnce() -> Vec<S>) {
    let Some(dir) = std::env::var_os(SEEDS_TO) else { return };
    for (number, seed) in seeds().iter().enumerate() {
        std::fs::write(Path::new(&dir).join(format!("made-{number:02}")), seed)
            .expect("the script made this folder");
    }
    std::process::exit(0);
}

/// Whether a text is a line as the kernel prints one: with its newline, and no other control
/// character but tabs.
pub fn is_one_line(text: &str) -> bool {
    !text.strip_suffix('\n').unwrap_or(text).contains(|c: char| c.is_control() && c != '\t')
}

/// An error of a parser points into the text, and what it quotes as unexpected stands there.
pub fn points_into<T>(text: &str, result: &Result<T, ParseError>) {
    let Err(error) = result else { return };
    assert!(error.line >= 1 && error.column >= 1, "{error}");
    // not lines(), which takes a carriage return for a part of the line's end
    let line = text.split('\n').nth(error.line - 1).unwrap_or_default();
    assert!(error.line <= text.split('\n').count() + 1, "{error}: no such line");
    assert!(error.column <= line.len() + 1, "{error}: the line ends before");
    if let Some(unexpected) = error.what.strip_prefix("unexpected ") {
        let there = line.get(error.column - 1..).map(|rest| rest.chars().next().unwrap_or('\n'));
        assert_eq!(
            there.map(|c| format!("{c:?}")).as_deref(),
            Some(unexpected),
            "{error} in {line:?}"
        );
    }
}
