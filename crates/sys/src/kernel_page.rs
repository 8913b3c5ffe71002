//! Checks that each file this crate names is documented in `docs/kernel.md`.

use std::path::{Path, PathBuf};

const PAGE: &str = include_str!("../../../docs/kernel.md");

#[test]
fn every_file_that_is_read_is_documented() {
    let mut missing = Vec::new();
    for file in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
        let text = std::fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        missing.extend(
            code.split('"')
                .filter(|word| !is_known(word))
                .map(|word| format!("{word} in {}", file.display())),
        );
    }
    assert_eq!(missing, Vec::<String>::new(), "add a row for each to docs/kernel.md");
}

/// Whether the page names a path, by its last part without a placeholder; true for other literals.
fn is_known(literal: &str) -> bool {
    if !(literal.starts_with("/proc/") || literal.starts_with("/sys/"))
        || literal.contains(char::is_whitespace)
    {
        return true;
    }
    let last = literal
        .split('/')
        .rfind(|part| !part.is_empty() && !part.contains('{'))
        .unwrap_or_default();
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    PAGE.match_indices(last).any(|(at, _)| {
        let (before, after) = (&PAGE[..at], &PAGE[at + last.len()..]);
        !before.ends_with(part_of_word) && !after.starts_with(part_of_word)
    })
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files = Vec::new();
    for path in entries {
        match path.is_dir() {
            true => files.extend(sources(&path)),
            false if path.extension().is_some_and(|it| it == "rs") => files.push(path),
            false => {}
        }
    }
    files
}
