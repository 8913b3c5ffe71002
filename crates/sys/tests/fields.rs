//! Each field of a snapshot has a value in a fixture, so that a test notices a reader that leaves a
//! field empty.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use netsilo_sys::bundle::open;
use netsilo_sys::files::root::Root;
use netsilo_sys::snapshot;

/// Fields without a value in any fixture, and why.
const EMPTY: &[(&str, &str)] = &[
    ("Connection.peer", "bundles in the repository have no addresses"),
    ("Snapshot.other_vectors", "only the daemon leaves vectors out"),
];

/// The fields of a value in the text of its `Debug`, which names each type, as `Type.field`:
/// whether one of that type has a value.
fn fields(debug: &str, found: &mut BTreeMap<String, bool>) {
    let mut types: Vec<&str> = Vec::new();
    let mut lines = debug.lines().map(|line| line.trim().trim_end_matches(',')).peekable();
    while let Some(line) = lines.next() {
        // the line between a key and its value ends one and begins the other
        if line.starts_with(['}', ')', ']']) {
            types.pop();
        }
        if let Some((field, value)) = line.split_once(": ")
            && types.last().is_some_and(|it| it.starts_with(char::is_uppercase))
        {
            let inner = lines.peek().filter(|_| value.ends_with('(')).unwrap_or(&value);
            let is_empty = ["None", "[]", "{}", "\"\""].contains(inner) || value == "Absent(";
            *found.entry(format!("{}.{field}", types[types.len() - 1])).or_default() |= !is_empty;
        }
        if line.ends_with(['{', '(', '[']) {
            let name = line.trim_end_matches(['{', '(', '[']).trim_end();
            types.push(if line.ends_with('{') { name.rsplit(' ').next().unwrap() } else { "" });
        }
    }
}

/// The captured trees, and the first bundle in each folder of bundles.
fn hosts(folder: &Path, trees: &mut Vec<PathBuf>, bundles: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    bundles.extend(entries.iter().find(|it| it.to_str().unwrap().ends_with(".tar.zst")).cloned());
    for folder in entries.iter().filter(|path| path.is_dir()) {
        if folder.join("sys").is_dir() {
            trees.push(folder.clone());
        } else {
            hosts(folder, trees, bundles);
        }
    }
}

#[test]
fn each_field_of_a_snapshot_has_a_value_in_a_fixture() {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut trees, mut bundles) = (Vec::new(), Vec::new());
    hosts(&project.join("fixtures"), &mut trees, &mut bundles);
    hosts(&project.join("cases"), &mut trees, &mut bundles);
    let mut found = BTreeMap::new();
    for tree in trees {
        let snapshot = snapshot(&Root::at(&tree).unwrap()).unwrap();
        fields(&format!("{snapshot:#?}"), &mut found);
    }
    for bundle in bundles {
        fields(&format!("{:#?}", open(bundle).unwrap().after), &mut found);
    }
    assert!(found.len() > 200, "{found:?}");
    let empty = found.iter().filter(|(_, has_value)| !**has_value).map(|(field, _)| field.as_str());
    let empty: BTreeSet<&str> = empty.collect();
    let known: BTreeSet<&str> = EMPTY.iter().map(|(field, _)| *field).collect();
    let unread: Vec<_> = empty.difference(&known).collect();
    let read: Vec<_> = known.difference(&empty).collect();
    assert!(
        unread.is_empty() && read.is_empty(),
        "no file of fixtures/ gives a value to {unread:#?}: add one to fixtures/every-field, or a \
         reason to EMPTY in {}, from which {read:#?} can go",
        file!()
    );
}
