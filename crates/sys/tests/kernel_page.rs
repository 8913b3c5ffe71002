//! Only `netsilo-sys` names paths below `/proc` and `/sys`, and `docs/kernel.md` documents all of
//! them.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};

const PAGE: &str = include_str!("../../../docs/kernel.md");

#[test]
fn every_file_that_is_read_is_documented() {
    let missing: Vec<String> =
        kernel_paths("sys").into_iter().filter(|(path, _)| !is_known(path)).map(named).collect();
    assert_eq!(missing, Vec::<String>::new(), "add a row for each to docs/kernel.md");
}

#[test]
fn only_sys_names_files_of_the_kernel() {
    let crates = ["trial", "load", "netsilo", "bench"];
    let named: Vec<String> = crates.into_iter().flat_map(kernel_paths).map(named).collect();
    assert_eq!(named, Vec::<String>::new(), "read them in netsilo-sys, in one of its functions");
}

fn named((path, file): (String, PathBuf)) -> String {
    format!("{path} in {}", file.display())
}

/// The literals of a crate that are paths below `/proc` or `/sys`, with their files.
///
/// Leaves out test modules, and texts for people, which contain spaces.
fn kernel_paths(name: &str) -> Vec<(String, PathBuf)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name(name).join("src");
    let mut paths = Vec::new();
    for file in sources(&folder) {
        let text = std::fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let literals = code.split('"').filter(|literal| is_kernel_path(literal));
        paths.extend(literals.map(|literal| (literal.to_owned(), file.clone())));
    }
    paths
}

fn is_kernel_path(literal: &str) -> bool {
    (literal.starts_with("/proc/") || literal.starts_with("/sys/"))
        && !literal.contains(char::is_whitespace)
}

/// Whether the page names a path. A path is compared by its last part without a placeholder.
fn is_known(literal: &str) -> bool {
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
