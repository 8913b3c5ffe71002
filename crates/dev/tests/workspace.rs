//! The layers of the workspace: crates and folders in an order, and no circle between files.
//!
//! Code may refer to its own folder and to folders further left.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests too")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use netsilo_dev::layers::circles::circles;
use netsilo_dev::layers::modules::{Reference, Sources, references};

/// Each crate with the crates that it may use. Tests may use more.
const CRATES: [(&str, &str); 11] = [
    ("model", ""),
    ("predict", "model trial"),
    ("decide", "model predict trial"),
    ("trial", "model"),
    ("sys", "model trial"),
    ("load", "model trial sys"),
    ("netsilo", "model predict decide trial sys"),
    ("bench", "model predict decide trial sys load netsilo"),
    ("lab", "model decide predict trial sys"),
    ("dev", "model sys netsilo bench"),
    ("fuzz", "model decide trial sys load netsilo"),
];

/// The folders of each crate, and files outside folders, in order. Those between commas are on the
/// same level and must not refer to each other.
const FOLDERS: [(&str, &str); 4] = [
    (
        "model",
        "machine < snapshot < parse < drivers < collection < change < rss < cost < derive \
         < synthetic",
    ),
    ("decide", "place < plan < judge < control < report"),
    (
        "sys",
        "clock < files < ethtool, irqbalance, bpf < read < bundle < transaction < consumer < cost \
         < outcomes < daemon < observe",
    ),
    (
        "netsilo",
        "tell < args < forecast < runs < views < ndjson < temporary_changes < daemon < verbs \
         < tune, report, top < cli",
    ),
];

/// The folder of the workspace.
const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn collect(folder: &Path, sources: &mut Sources) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(WORKSPACE).unwrap().to_str().unwrap().to_owned();
            sources.insert(name, fs::read_to_string(&path).unwrap());
        }
    }
}

fn crates() -> BTreeSet<String> {
    let entries = fs::read_dir(Path::new(WORKSPACE).join("crates")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn read() -> Vec<Reference> {
    let mut sources = Sources::new();
    for name in crates() {
        collect(&Path::new(WORKSPACE).join("crates").join(name).join("src"), &mut sources);
    }
    let references = references(&sources).unwrap();
    assert!(references.len() > 500, "only {} references were found", references.len());
    references
}

/// The crate of a file, and the folder or file below its `src`.
fn room(file: &str) -> (&str, &str) {
    let (name, file) = file.strip_prefix("crates/").unwrap().split_once("/src/").unwrap();
    let first = file.split('/').next().unwrap();
    (name, first.strip_suffix(".rs").unwrap_or(first))
}

/// One line for each pair of files, with the line of the first reference and all names.
fn lines(violations: &[&Reference]) -> String {
    let same_files = |a: &&Reference, b: &&Reference| (&a.from, &a.to) == (&b.from, &b.to);
    let mut violations = violations.to_vec();
    violations.sort_by_key(|reference| (&reference.from, &reference.to, reference.line));
    violations
        .chunk_by(same_files)
        .map(|pair| {
            let names: Vec<_> = pair.iter().skip(1).map(|other| other.name.as_str()).collect();
            let and = if names.is_empty() { "" } else { ", " };
            format!("\n{}{and}{}", pair[0], names.join(", "))
        })
        .collect()
}

#[test]
fn crates_use_only_the_crates_before_them() {
    let known: BTreeSet<_> = CRATES.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(crates(), known, "each folder in crates/ has a row in CRATES");
    let references = read();
    let against = |reference: &&Reference| {
        let (from, to) = (room(&reference.from).0, room(&reference.to).0);
        let (_, allowed) = CRATES.iter().find(|(name, _)| *name == from).unwrap();
        from != to && !allowed.split(' ').any(|name| name == to)
    };
    let violations: Vec<_> = references.iter().filter(against).collect();
    assert!(violations.is_empty(), "against the order of the crates:{}", lines(&violations));
}

#[test]
fn folders_use_only_the_folders_before_them() {
    let references = read();
    let mut violations = Vec::new();
    for (name, order) in FOLDERS {
        let rank = |room: &str| {
            order
                .split('<')
                .position(|rank| rank.split(',').any(|known| known.trim() == room))
                .unwrap_or_else(|| panic!("crates/{name}/src/{room} has no place in FOLDERS"))
        };
        let inner = references.iter().filter(|r| room(&r.from).0 == name && room(&r.to).0 == name);
        for reference in inner {
            let (from, to) = (room(&reference.from).1, room(&reference.to).1);
            // The crate's root is above all others. What it contains itself is covered by the test
            // of circles.
            let root = |room| room == "lib" || room == "main";
            if from != to && !root(from) && !root(to) && rank(to) >= rank(from) {
                violations.push(reference);
            }
        }
        let src = Path::new(WORKSPACE).join("crates").join(name).join("src");
        for known in order.split(['<', ',']).map(str::trim) {
            let file = src.join(known).with_extension("rs");
            assert!(file.exists(), "FOLDERS has {known}, but {} is not there", file.display());
        }
    }
    assert!(violations.is_empty(), "against the order of the folders:{}", lines(&violations));
}

#[test]
fn no_circle_between_files() {
    let references = read();
    let mut text = String::new();
    for (circle, cut) in circles(&references) {
        text += &format!("\n{} -> {}", circle.join(" -> "), circle[0]);
        text += &lines(&cut).replace('\n', "\n    ");
    }
    assert!(text.is_empty(), "circles between files, each with its weakest link:{text}");
}
