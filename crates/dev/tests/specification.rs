//! `SPECIFICATION.md`: each promise has a number of its own, and names tests and targets that
//! exist. Each promise that a page mentions exists.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use pulldown_cmark::{Event, Parser};

/// The folder of the workspace.
const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// What takes the place of tests in the row of a promise that has none.
const WITHOUT_TESTS: [&str; 2] = ["not shown yet: ", "withdrawn: "];

fn read(path: &str) -> Option<String> {
    fs::read_to_string(Path::new(WORKSPACE).join(path)).ok()
}

/// The promises: number, and the cell that says what shows it.
fn promises() -> Vec<(String, String)> {
    let text = read("SPECIFICATION.md").unwrap();
    let promise = |line: &str| {
        let cells: Vec<&str> = line.strip_prefix("| ")?.split(" | ").collect();
        if !is_number(cells[0]) {
            return None;
        }
        assert_eq!(cells.len(), 3, "number, promise, shown by: {line}");
        Some((cells[0].to_owned(), cells[2].trim_end_matches(" |").to_owned()))
    };
    let promises: Vec<_> = text.lines().filter_map(promise).collect();
    assert!(promises.len() > 40, "{}", promises.len());
    promises
}

/// Whether a word is a letter and one or two digits: `W3`.
fn is_number(word: &str) -> bool {
    let digits = word.strip_prefix(|it: char| it.is_ascii_uppercase()).unwrap_or_default();
    (1..=2).contains(&digits.len()) && digits.bytes().all(|it| it.is_ascii_digit())
}

/// The attributes of a test function of a file; `None` if there is no such test.
fn attributes(file: &str, name: &str) -> Option<String> {
    let text = read(file)?;
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let at = lines.iter().position(|line| line.starts_with(&format!("fn {name}(")))?;
    let above = lines[..at].iter().rev().take_while(|line| line.starts_with(['#', '/']));
    let above: Vec<&str> = above.copied().filter(|line| line.starts_with('#')).collect();
    above.contains(&"#[test]").then(|| above.join("\n"))
}

/// What is wrong with a test or target that the row of a promise names.
fn wrong(named: &str, row: &str, makefile: &str) -> Option<String> {
    if let Some(target) = named.strip_prefix("make ") {
        let exists = makefile.lines().any(|line| line.starts_with(&format!("{target}:")));
        return (!exists).then(|| "the Makefile has no such target".to_owned());
    }
    let Some((file, name)) = named.split_once(": ") else {
        return Some("this is neither `FILE: NAME` nor `make TARGET`".to_owned());
    };
    let Some(attributes) = attributes(file, name) else {
        return Some("there is no such test".to_owned());
    };
    let is_ignored = attributes.contains("#[ignore");
    let is_long = attributes.contains("make test-long") && row.contains("`make test-long`");
    (is_ignored && !is_long).then(|| "it is ignored: say `make test-long`".to_owned())
}

#[test]
fn each_promise_names_tests_and_targets_that_exist_or_says_why_it_has_none() {
    let makefile = read("Makefile").unwrap();
    let mut problems = Vec::new();
    for (number, row) in promises() {
        let named: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
        if named.is_empty() && !WITHOUT_TESTS.iter().any(|it| row.trim().starts_with(it)) {
            problems.push(format!("{number} names no test and does not say why"));
        }
        let wrong = |it: &&str| Some(format!("{number}: {it}: {}", wrong(it, &row, &makefile)?));
        problems.extend(named.iter().filter_map(wrong));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// The pages of a folder; of the workspace's own folder, also those of `docs` and `evidence`.
fn collect(folder: &Path, is_deep: bool, pages: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && (is_deep || path.ends_with("docs") || path.ends_with("evidence")) {
            collect(&path, true, pages);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
}

#[test]
fn each_promise_has_a_number_of_its_own_and_no_page_mentions_another_one() {
    let mut known = BTreeSet::new();
    let twice: Vec<_> = promises().into_iter().filter(|it| !known.insert(it.0.clone())).collect();
    assert!(twice.is_empty(), "{twice:?}");
    let letters: BTreeSet<char> = known.iter().filter_map(|it| it.chars().next()).collect();
    let (mut files, mut unknown) = (Vec::new(), Vec::new());
    collect(Path::new(WORKSPACE), false, &mut files);
    assert!(files.len() > 80, "{}", files.len());
    for page in files {
        for event in Parser::new(&fs::read_to_string(&page).unwrap()) {
            let Event::Text(text) = event else { continue };
            let words = text.split(|it: char| !(it.is_alphanumeric() || it == '_'));
            let is_of_letters = |it: &&str| it.starts_with(|it: char| letters.contains(&it));
            let numbers = words.filter(|it| is_number(it)).filter(is_of_letters);
            let wrong = numbers.filter(|it| !known.contains(*it));
            unknown.extend(wrong.map(|it| format!("{}: there is no promise {it}", page.display())));
        }
    }
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
}
