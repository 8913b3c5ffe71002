//! The manifests: each dependency is used in the crate that declares it.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;

use proc_macro2::{TokenStream, TokenTree};
use toml::Table;

/// The folder of the workspace.
const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn manifest(folder: &Path) -> Table {
    fs::read_to_string(folder.join("Cargo.toml")).unwrap().parse().unwrap()
}

/// The names in a section of a manifest, as Rust spells them.
fn names(manifest: &Table, section: &str) -> Vec<String> {
    let section = manifest.get(section).and_then(toml::Value::as_table);
    section.into_iter().flat_map(Table::keys).map(|name| name.replace('-', "_")).collect()
}

fn crates() -> Vec<PathBuf> {
    let entries = fs::read_dir(Path::new(WORKSPACE).join("crates")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// All identifiers in the Rust files of these files and folders.
fn identifiers(paths: &[PathBuf]) -> BTreeSet<String> {
    let (mut paths, mut found) = (paths.to_vec(), BTreeSet::new());
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            paths.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") && path.exists() {
            words(TokenStream::from_str(&fs::read_to_string(path).unwrap()).unwrap(), &mut found);
        }
    }
    found
}

fn words(tokens: TokenStream, found: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(name) => {
                found.insert(name.to_string());
            }
            TokenTree::Group(group) => words(group.stream(), found),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

#[test]
fn each_dependency_of_a_crate_is_used() {
    let mut unused = Vec::new();
    for folder in crates() {
        let manifest = manifest(&folder);
        let places = [
            ("dependencies", vec![folder.join("src")]),
            ("build-dependencies", vec![folder.join("build.rs")]),
            (
                "dev-dependencies",
                ["src", "tests", "benches", "examples"].map(|it| folder.join(it)).to_vec(),
            ),
        ];
        for (section, places) in places {
            let places: Vec<_> = places.into_iter().filter(|it| it.exists()).collect();
            let used = identifiers(&places);
            unused.extend(
                (names(&manifest, section).into_iter().filter(|name| !used.contains(name)))
                    .map(|name| format!("{}: {section}: {name}", folder.display())),
            );
        }
    }
    assert!(unused.is_empty(), "no source uses\n{}", unused.join("\n"));
}

#[test]
fn each_dependency_of_the_workspace_is_used_by_a_crate() {
    let root = manifest(Path::new(WORKSPACE));
    let all = names(root["workspace"].as_table().unwrap(), "dependencies");
    let sections = ["dependencies", "build-dependencies", "dev-dependencies"];
    let used: BTreeSet<String> = crates()
        .iter()
        .map(|folder| manifest(folder))
        .flat_map(|manifest| sections.map(|section| names(&manifest, section)).concat())
        .collect();
    let unused: Vec<_> = all.iter().filter(|name| !used.contains(*name)).collect();
    assert!(unused.is_empty(), "no crate uses {unused:?}");
}

#[test]
fn the_program_that_runs_as_root_has_no_network_listener_but_the_daemons() {
    let mut below = vec!["netsilo".to_owned()];
    let mut all = BTreeSet::new();
    while let Some(name) = below.pop() {
        let folder = Path::new(WORKSPACE).join("crates").join(name.replace("netsilo-", ""));
        if let Some(section) = manifest(&folder).get("dependencies").and_then(toml::Value::as_table)
        {
            below.extend(section.keys().filter(|it| it.starts_with("netsilo-")).cloned());
        }
        all.insert(name);
    }
    assert!(all.contains("netsilo-sys"), "{all:?}");
    assert!(!all.contains("netsilo-load") && !all.contains("netsilo-bench"), "{all:?}");
    // Below netsilo, sys has netlink sockets, and network sockets only in tests.
    let src = Path::new(WORKSPACE).join("crates/netsilo/src");
    let (mut paths, mut listening) = (vec![src.clone()], Vec::new());
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            paths.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let found = identifiers(std::slice::from_ref(&path));
            if ["TcpListener", "UdpSocket"].iter().any(|name| found.contains(*name)) {
                listening.push(path.strip_prefix(&src).unwrap().to_owned());
            }
        }
    }
    assert_eq!(listening, [Path::new("daemon/publish.rs")]);
}
