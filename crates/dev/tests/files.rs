//! Manual pages agree with the command line, and the programs that read them accept them.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "clippy lets only functions marked as tests do so"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use netsilo_dev::package::manual;
use netsilo_dev::package::program::{PROGRAMS, Program};

const DATE: &str = "2026-11-23";

/// Each verb and each of its options, except hidden ones.
fn verbs(command: &clap::Command, verb: &str, found: &mut BTreeMap<String, BTreeSet<String>>) {
    let visible = command.get_arguments().filter(|it| !it.is_hide_set());
    let options = visible.filter_map(|it| it.get_long().map(str::to_owned)).collect();
    found.insert(verb.to_owned(), options);
    for below in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        verbs(below, format!("{verb} {}", below.get_name()).trim_start(), found);
    }
}

fn all_verbs(program: &Program) -> BTreeMap<String, BTreeSet<String>> {
    let mut found = BTreeMap::new();
    verbs(&(program.command)(), "", &mut found);
    let (verb, option) =
        if program.name == "netsilo" { ("plan", "algorithm") } else { ("experiment", "peer") };
    assert!(found.len() > 4 && found[verb].contains(option), "{found:?}");
    found
}

/// The pages of all programs.
fn all_pages() -> BTreeMap<String, Vec<u8>> {
    PROGRAMS.iter().flat_map(|program| manual::pages(program, DATE).unwrap()).collect()
}

/// Writes all pages below a folder.
fn write(dir: &Path) {
    for (name, text) in all_pages() {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

/// Runs a program and returns its output. If it is not installed, prints a line about that and
/// returns `None`.
fn run(program: &str, arguments: &[&str], dir: &Path) -> Option<String> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(dir).env("LC_ALL", "C.UTF-8").env("MANWIDTH", "80");
    match command.output() {
        Ok(output) => Some(
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).trim_end().to_owned(),
        ),
        Err(error) => {
            assert!(std::env::var_os("NETSILO_NO_SKIP").is_none(), "{program}: {error}");
            println!("SKIPPED: {program}: {error} (scripts/setup --package-tests)");
            None
        }
    }
}

#[test]
fn each_verb_has_a_page_with_its_options_and_nothing_else_has() {
    let pages = all_pages();
    let mut expected = BTreeSet::from(["man/man5/netsilo.toml.5".to_owned()]);
    let verbs = |program: &'static Program| {
        all_verbs(program).into_iter().map(move |(verb, options)| (program, verb, options))
    };
    for (program, verb, options) in PROGRAMS.iter().flat_map(verbs) {
        let name = format!("man/man8/{}.8", manual::page_name(program, &verb));
        let text = String::from_utf8(pages[&name].clone()).unwrap().replace("\\-", "-");
        for option in options {
            assert!(text.contains(&format!("--{option}")), "{name}: --{option}\n{text}");
        }
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "\"SEE ALSO\""] {
            assert!(text.contains(&format!("\n.SH {section}\n")), "{name}: {section}\n{text}");
        }
        expected.insert(name);
    }
    assert_eq!(pages.into_keys().collect::<BTreeSet<_>>(), expected);
}

#[test]
fn the_page_of_the_configuration_has_each_key() {
    let page = all_pages().remove("man/man5/netsilo.toml.5").unwrap();
    let page = String::from_utf8(page).unwrap().replace("\\-", "-");
    for key in ["interval", "hints-only", "goal.default-smp-affinity", "netdev.queue.queues"] {
        assert!(page.contains(key), "{key}: {page}");
    }
}

#[test]
#[ignore = "its programs are installed by scripts/setup --package-tests: make test-long"]
fn readers_of_manual_pages_accept_all_files() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    for page in all_pages().keys() {
        let lint = run("mandoc", &["-T", "lint", "-W", "warning", page], dir.path());
        assert_eq!(lint.as_deref().unwrap_or_default(), "", "{page}");
        let man = ["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page];
        let formatted = run("man", &man, dir.path()).unwrap_or_default();
        assert!(!formatted.contains("warning:"), "{page}: {formatted}");
    }
}
