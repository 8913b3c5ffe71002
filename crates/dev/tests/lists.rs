//! Lists in the sources have a row for each entry, where users, fuzzing or packages need one.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests too")]

use std::fs;
use std::path::{Path, PathBuf};

/// The folder of the workspace.
const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A list in a source file, and the page that has each of its names in a row of a table.
struct List {
    file: &'static str,
    /// The line at which the list begins. It ends at the next bracket in the column of that line.
    start: &'static str,
    names: fn(&str) -> Vec<String>,
    page: &'static str,
}

const LISTS: [List; 9] = [
    List {
        file: "crates/decide/src/place/algorithms.rs",
        start: "algorithms! {",
        names: literals,
        page: "docs/placing.md",
    },
    List {
        file: "crates/decide/src/judge/candidates/device.rs",
        start: "pub(super) enum DeviceSetting {",
        names: |list| variants(list, '-'),
        page: "docs/ab.md",
    },
    List {
        file: "crates/decide/src/judge/candidates.rs",
        start: "    let goals = [",
        names: literals,
        page: "docs/ab.md",
    },
    List {
        file: "crates/netsilo/src/verbs/export.rs",
        start: "pub(crate) enum Format {",
        names: |list| variants(list, '-'),
        page: "docs/export.md",
    },
    List {
        file: "crates/netsilo/src/top/state.rs",
        start: "    pub(crate) fn name(self) -> &'static str {",
        names: literals,
        page: "docs/top.md",
    },
    List {
        file: "crates/netsilo/src/schema.rs",
        start: "fn documents(",
        names: documents_without_a_verb,
        page: "docs/reference.md",
    },
    List {
        file: "crates/bench/src/definition.rs",
        start: "const PUBLISHED: ",
        names: |list| literals(list).into_iter().filter(|it| !it.contains('/')).collect(),
        page: "docs/bench.md",
    },
    List {
        file: "crates/trial/src/experiment/measure.rs",
        start: "pub enum TrialMeasure {",
        names: |list| variants(list, '_'),
        page: "docs/bench.md",
    },
    List {
        file: "crates/lab/src/experiment.rs",
        start: "pub(crate) enum Experiment {",
        names: |list| variants(list, '-'),
        page: "docs/lab.md",
    },
];

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(WORKSPACE).join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The lines of a list, without comments.
fn lines_of(text: &str, start: &str) -> String {
    let column = start.len() - start.trim_start().len();
    let lines = text.lines().skip_while(|line| !line.starts_with(start)).skip(1);
    let is_end = |line: &&str| line.get(column..).is_some_and(|it| it.starts_with(['}', ']']));
    let list = lines.take_while(|line| !is_end(line));
    list.filter(|line| !line.trim_start().starts_with("//"))
        .map(|line| format!("{line}\n"))
        .collect()
}

/// All literals.
fn literals(list: &str) -> Vec<String> {
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The variants of an enum as serde or clap name them, with this separator between words.
fn variants(list: &str, separator: char) -> Vec<String> {
    let mut names = Vec::new();
    let mut renamed = None;
    for line in list.lines().map(str::trim) {
        if let Some((_, name)) = line.split_once("rename = \"") {
            renamed = name.split('"').next().map(str::to_owned);
        } else if line.starts_with(char::is_uppercase) {
            let variant = line.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
            names.push(renamed.take().unwrap_or_else(|| in_lower_case(variant, separator)));
        }
    }
    names
}

fn in_lower_case(variant: &str, separator: char) -> String {
    let mut name = String::new();
    for c in variant.chars() {
        if c.is_uppercase() && !name.is_empty() {
            name.push(separator);
        }
        name.extend(c.to_lowercase());
    }
    name
}

/// The documents whose name is not that of the verb that prints them.
fn documents_without_a_verb(list: &str) -> Vec<String> {
    let literals = literals(list);
    let pairs = literals.chunks_exact(2).map(|pair| (&pair[0], &pair[1]));
    let other = pairs.filter(|(name, verbs)| !verbs.starts_with(&format!("netsilo {name} --json")));
    other.map(|(name, _)| name.clone()).collect()
}

/// Whether a table of the page has the name as code.
fn has_row(page: &str, name: &str) -> bool {
    let name = format!("`{name}`");
    page.lines().any(|line| line.starts_with('|') && line.contains(&name))
}

#[test]
fn each_entry_of_a_list_has_a_row_in_its_page() {
    let mut missing = Vec::new();
    for List { file, start, names, page } in LISTS {
        let names = names(&lines_of(&read(file), start));
        assert!(names.len() > 2, "{file} has no list that begins with {start:?}: {names:?}");
        let text = read(page);
        let without = names.into_iter().filter(|name| !has_row(&text, name));
        missing.extend(without.map(|name| format!("`{name}` ({file}): a row in {page}")));
    }
    assert!(missing.is_empty(), "write what is missing:\n{}", missing.join("\n"));
}

/// The files that the packages of a program install, for Debian and for rpm. If the source is a
/// pattern, their folders.
fn installed(manifest: &str) -> Vec<String> {
    let manifest: toml::Table = read(manifest).parse().unwrap();
    let metadata = &manifest["package"]["metadata"];
    let path = |source: &toml::Value, to: &toml::Value| {
        let (source, to) = (source.as_str().unwrap(), to.as_str().unwrap());
        let name = source.rsplit('/').next().filter(|it| to.ends_with('/') && !it.contains('*'));
        format!("/{}{}", to.trim_start_matches('/'), name.unwrap_or_default())
    };
    let deb = metadata["deb"]["assets"].as_array().unwrap().iter();
    let rpm = metadata["generate-rpm"]["assets"].as_array().unwrap().iter();
    let deb = deb.map(|asset| path(&asset[0], &asset[1]));
    deb.chain(rpm.map(|asset| path(&asset["source"], &asset["dest"]))).collect()
}

#[test]
fn the_page_of_the_packages_names_each_installed_file() {
    let page = read("docs/install.md");
    let cells = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let known: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let is_known = |path: &str| {
        let after = |known: &&str| path.strip_prefix(known.trim_end_matches('/'));
        known.iter().filter_map(after).any(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let manifests = ["crates/netsilo/Cargo.toml", "crates/bench/Cargo.toml"];
    let mut missing: Vec<String> = manifests.into_iter().flat_map(installed).collect();
    missing.retain(|path| !is_known(path));
    assert!(
        missing.is_empty(),
        "docs/install.md needs a row with the path or its folder: {missing:?}"
    );
}

/// The fuzz targets, by name, with their text.
fn fuzz_targets() -> Vec<(String, String)> {
    let folder = Path::new(WORKSPACE).join("crates/fuzz/src/targets");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let stem = |path: &PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    files.map(|path| (stem(&path), fs::read_to_string(&path).unwrap())).collect()
}

/// Whether a target imports a module of parsers.
fn fuzzes(target: &str, module: &str) -> bool {
    let imports = target.split("use netsilo_model::parse::").skip(1);
    let mut words = imports.flat_map(|it| {
        it.split(';').next().unwrap_or_default().split(|c: char| !(c.is_alphanumeric() || c == '_'))
    });
    words.any(|word| word == module)
}

/// Whether a target starts from inputs of this module. The target makes them, or they are those of
/// `crates/fuzz/seeds/` whose names begin with the module's name, unless the target has that name.
fn has_seeds((name, text): &(String, String), module: &str) -> bool {
    let seeds = fs::read_dir(Path::new(WORKSPACE).join("crates/fuzz/seeds").join(name));
    let mut seeds =
        seeds.into_iter().flatten().map(|seed| seed.unwrap().file_name().into_string().unwrap());
    text.contains("\nfn seeds()")
        || seeds.any(|seed| seed.starts_with(module) || module.starts_with(name.as_str()))
}

/// The files of the tree from which the target `readers` starts, with `_` for `/`.
fn read_by_readers(folder: &Path, path: &str, files: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
        let path = format!("{path}_{}", entry.file_name().to_str().unwrap());
        if entry.path().is_dir() {
            read_by_readers(&entry.path(), &path, files);
        } else {
            files.push(path);
        }
    }
}

#[test]
fn each_parser_is_fuzzed_from_a_seed() {
    let targets = fuzz_targets();
    let parsers = read("crates/model/src/parse.rs");
    let modules = parsers.lines().filter_map(|it| it.strip_prefix("pub mod ")?.strip_suffix(';'));
    let mut files = Vec::new();
    read_by_readers(&Path::new(WORKSPACE).join("fixtures/every-field"), "", &mut files);
    let is_read = |module: &&str| files.iter().any(|file| file.ends_with(&format!("_{module}")));
    let mut missing = Vec::new();
    for module in modules.filter(|module| !is_read(module)) {
        let its: Vec<_> = targets.iter().filter(|(_, text)| fuzzes(text, module)).collect();
        if its.is_empty() {
            missing.push(format!(
                "{module}: its file in fixtures/every-field, with a path that ends with the \
                 parser's name; or a call in a file of crates/fuzz/src/targets/, if it has \
                 another name"
            ));
        } else if !its.iter().any(|target| has_seeds(target, module)) {
            missing.push(format!("{module}: a file crates/fuzz/seeds/{}/{module}", its[0].0));
        }
    }
    assert!(missing.is_empty(), "write what is missing:\n{}", missing.join("\n"));
}
