//! The modules of a workspace, and the file that each path names.
//!
//! A file in a module's folder is a child of that module, even if a macro declares it. A path names
//! the file of its longest prefix that is a module. So `crate::plan::Goal` names `plan.rs` even if
//! `plan.rs` takes `Goal` from a child by `pub use`.

use std::collections::{BTreeMap, BTreeSet};

use crate::layers::source::{self, Path};

/// The files of a workspace by path (`crates/model/src/lib.rs`), with their text.
pub type Sources = BTreeMap<String, String>;

/// One file that refers to another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    /// The file with the `use` line or path.
    pub from: String,
    /// Its line, from 1.
    pub line: usize,
    /// The file that the path names.
    pub to: String,
    /// The path as written.
    pub name: String,
}

impl std::fmt::Display for Reference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{} -> {}: {}", self.from, self.line, self.to, self.name)
    }
}

/// A module with its place in the tree.
struct Node {
    parent: Option<usize>,
    root: usize,
    file: String,
    children: BTreeMap<String, usize>,
    /// What the names in this module stand for.
    aliases: BTreeMap<String, Vec<String>>,
    paths: Vec<Path>,
}

#[derive(Default)]
struct Tree {
    nodes: Vec<Node>,
    /// The roots of the libraries, by the name that other crates use.
    libraries: BTreeMap<String, usize>,
}

/// All references from one file to another, including those between crates, sorted.
///
/// # Errors
/// A file cannot be read as Rust, or a module has no file.
pub fn references(sources: &Sources) -> Result<Vec<Reference>, String> {
    let mut tree = Tree::default();
    for path in sources.keys() {
        let Some((folder, file)) = path.split_once("/src/") else { continue };
        if file == "lib.rs" || file == "main.rs" || is_program(file) {
            let root = tree.add_file(sources, path, None, file != "lib.rs" && file != "main.rs")?;
            if file == "lib.rs" {
                let name = folder.rsplit('/').next().unwrap_or(folder);
                tree.libraries.insert(library(name), root);
            }
        }
    }
    let mut found = Vec::new();
    for (at, node) in tree.nodes.iter().enumerate() {
        for path in &node.paths {
            let Some(target) = tree.file(at, &path.segments) else { continue };
            // An imported name is counted once, where it is imported.
            let known = path.segments.first().filter(|_| path.segments.len() > 1);
            let imported = known.and_then(|name| tree.file(at, tree.alias(at, name)?));
            if target != node.file && imported != Some(target) {
                found.push(Reference {
                    from: node.file.clone(),
                    line: path.line,
                    to: target.to_owned(),
                    name: path.segments.join("::"),
                });
            }
        }
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// The names of the Rust files directly in a folder.
fn beside(sources: &Sources, folder: &str) -> impl Iterator<Item = String> {
    let start = format!("{folder}/");
    let inside =
        sources.range(start.clone()..).take_while(move |(path, _)| path.starts_with(&start));
    let name = |path: &str| path[folder.len() + 1..].strip_suffix(".rs").map(str::to_owned);
    inside.filter_map(move |(path, _)| name(path)).filter(|name| !name.contains('/'))
}

/// The name by which code uses the crate in this folder.
fn library(folder: &str) -> String {
    match folder {
        "netsilo" => folder.to_owned(),
        _ => format!("netsilo_{}", folder.replace('-', "_")),
    }
}

/// Whether a file below `src` is a separate program: `bin/x.rs`.
fn is_program(file: &str) -> bool {
    file.strip_prefix("bin/").is_some_and(|name| !name.contains('/'))
}

impl Tree {
    /// Adds the module of a file with all modules below it. `leaf`: the file is a program with its
    /// own folder.
    fn add_file(
        &mut self,
        sources: &Sources,
        path: &str,
        parent: Option<usize>,
        leaf: bool,
    ) -> Result<usize, String> {
        let text = sources.get(path).ok_or_else(|| format!("{path}: no such file"))?;
        let module = source::read(text).map_err(|error| format!("{path}: {error}"))?;
        let stem = path.strip_suffix(".rs").unwrap_or(path);
        let (folder, last) = stem.rsplit_once('/').unwrap_or(("", stem));
        // `foo.rs` has its children in `foo/`; a root and `mod.rs` in their own folder.
        let root = parent.is_none() && (leaf || last == "lib" || last == "main");
        let below = if root || last == "mod" { folder } else { stem };
        self.add(sources, path, below, parent, &module)
    }

    fn add(
        &mut self,
        sources: &Sources,
        file: &str,
        below: &str,
        parent: Option<usize>,
        module: &source::Module,
    ) -> Result<usize, String> {
        let at = self.nodes.len();
        let imports = module.imports.iter();
        self.nodes.push(Node {
            parent,
            root: parent.map_or(at, |parent| self.nodes[parent].root),
            file: file.to_owned(),
            children: BTreeMap::new(),
            aliases: (imports.clone())
                .map(|import| (import.name.clone(), import.path.segments.clone()))
                .collect(),
            paths: (imports.map(|import| &import.path)).chain(&module.paths).cloned().collect(),
        });
        let mut names: BTreeSet<_> = module.files.iter().cloned().collect();
        // Next to a root there are files of other roots too.
        if parent.is_some() {
            names.extend(beside(sources, below));
        }
        for name in names.iter().filter(|name| *name != "mod" && !module.tests.contains(name)) {
            let plain = format!("{below}/{name}.rs");
            let path =
                if sources.contains_key(&plain) { plain } else { format!("{below}/{name}/mod.rs") };
            let child = self.add_file(sources, &path, Some(at), false)?;
            self.nodes[at].children.insert(name.clone(), child);
        }
        for (name, inner) in &module.inline {
            let child = self.add(sources, file, &format!("{below}/{name}"), Some(at), inner)?;
            self.nodes[at].children.insert(name.clone(), child);
        }
        Ok(at)
    }

    /// What a name stands for in module `at`, if a `use` line imported it.
    fn alias(&self, at: usize, name: &str) -> Option<&[String]> {
        let node = &self.nodes[at];
        let alias = node.aliases.get(name).filter(|_| !node.children.contains_key(name))?;
        Some(alias)
    }

    /// The file of the module to which a path in module `at` leads.
    fn file(&self, at: usize, segments: &[String]) -> Option<&str> {
        self.resolve(at, segments, 0).map(|module| self.nodes[module].file.as_str())
    }

    /// The module to which a path in module `at` leads; `None`: out of the workspace.
    fn resolve(&self, at: usize, segments: &[String], depth: usize) -> Option<usize> {
        let (first, mut rest) = segments.split_first()?;
        let node = &self.nodes[at];
        let mut module = match first.as_str() {
            "crate" => node.root,
            "self" => at,
            "super" => node.parent?,
            name => {
                if let Some(child) = node.children.get(name) {
                    *child
                } else if let Some(path) = self.alias(at, name)
                    && path != segments
                    && depth < 8
                {
                    let whole = [path, rest].concat();
                    return self.resolve(at, &whole, depth + 1);
                } else {
                    *self.libraries.get(name)?
                }
            }
        };
        while let Some((name, further)) = rest.split_first() {
            module = match name.as_str() {
                "super" => self.nodes[module].parent?,
                name => match self.nodes[module].children.get(name) {
                    Some(child) => *child,
                    None => break,
                },
            };
            rest = further;
        }
        Some(module)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let sources =
            files.iter().map(|(path, text)| (format!("crates/{path}"), (*text).to_owned()));
        let references = references(&sources.collect()).unwrap();
        references.iter().map(|reference| reference.to_string().replace("crates/", "")).collect()
    }

    #[test]
    fn a_path_names_the_file_of_its_longest_module() {
        assert_eq!(
            found(&[
                ("a/src/lib.rs", "pub mod plan;\nmod judge;\npub fn f() {}"),
                ("a/src/plan.rs", "mod goal;\npub use goal::Goal;"),
                ("a/src/plan/goal.rs", "pub struct Goal;\nimpl Goal { fn f() { crate::f() } }"),
                ("a/src/judge.rs", "use crate::plan::{self, Goal};\nfn f() { plan::goal::g() }"),
            ]),
            [
                "a/src/judge.rs:1 -> a/src/plan.rs: crate::plan",
                "a/src/judge.rs:1 -> a/src/plan.rs: crate::plan::Goal",
                "a/src/judge.rs:2 -> a/src/plan/goal.rs: plan::goal::g",
                "a/src/plan.rs:2 -> a/src/plan/goal.rs: goal::Goal",
                "a/src/plan/goal.rs:2 -> a/src/lib.rs: crate::f",
            ]
        );
    }

    #[test]
    fn parents_siblings_and_modules_within_a_file() {
        assert_eq!(
            found(&[
                ("a/src/main.rs", "mod x;"),
                ("a/src/x.rs", "mod y; mod z { use super::y::Y; use super::super::f; mod w; }"),
                ("a/src/x/y.rs", "use super::X;\nuse self::own::O;\nmod own {}"),
                ("a/src/x/z/w.rs", "use super::super::y;\nuse std::fmt;\nuse serde::de;"),
            ]),
            [
                "a/src/x.rs:1 -> a/src/main.rs: super::super::f",
                "a/src/x.rs:1 -> a/src/x/y.rs: super::y::Y",
                "a/src/x/y.rs:1 -> a/src/x.rs: super::X",
                "a/src/x/z/w.rs:1 -> a/src/x/y.rs: super::super::y",
            ]
        );
    }

    #[test]
    fn files_of_modules_that_a_macro_declares_but_not_those_for_tests() {
        assert_eq!(
            found(&[
                ("a/src/lib.rs", "mod x;"),
                ("a/src/x.rs", "all! { One in one; }\n#[cfg(test)]\nmod tests;"),
                ("a/src/x/one.rs", "use super::X;"),
                ("a/src/x/tests.rs", "use super::X;"),
                ("a/src/xy.rs", "use crate::x::X;"),
            ]),
            ["a/src/x/one.rs:1 -> a/src/x.rs: super::X"]
        );
    }

    #[test]
    fn other_crates_by_their_name_and_by_an_alias() {
        assert_eq!(
            found(&[
                ("a/src/lib.rs", "pub mod m;"),
                ("a/src/m.rs", ""),
                ("a/src/main.rs", "fn main() { netsilo_a::m::run() }"),
                (
                    "b-c/src/lib.rs",
                    "use netsilo_a as other;\nfn f() { other::m::g(); self::other::h() }"
                ),
            ]),
            [
                "a/src/main.rs:1 -> a/src/m.rs: netsilo_a::m::run",
                "b-c/src/lib.rs:1 -> a/src/lib.rs: netsilo_a",
                "b-c/src/lib.rs:2 -> a/src/m.rs: other::m::g",
            ]
        );
    }

    #[test]
    fn a_module_without_a_file_is_an_error() {
        let sources = [("crates/a/src/lib.rs".to_owned(), "mod x;".to_owned())].into();
        assert_eq!(references(&sources), Err("crates/a/src/x/mod.rs: no such file".to_owned()));
    }
}
