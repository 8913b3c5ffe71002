//! An eBPF program and the file that decodes its counts name each other, and `docs/kernel.md` has
//! rows for both.

#![allow(clippy::panic, clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};

const PAGE: &str = include_str!("../../../docs/kernel.md");

#[test]
fn a_program_and_its_decoder_name_each_other_and_have_a_row() {
    for question in questions() {
        let decoder = decoder_of(&question);
        let code = source(&decoder);
        assert!(code.contains(&format!("`bpf/{question}.bpf.c`")), "{decoder} names {question}");
        let row = format!("| `bpf/{question}.bpf.c` | `bpf/{decoder}` |");
        assert!(PAGE.contains(&row), "docs/kernel.md has no row that starts with {row}");
    }
}

#[test]
fn every_program_is_in_the_object() {
    let object = source("programs.c");
    let named = object.lines().filter_map(|line| line.strip_prefix("#include \""));
    let mut named: Vec<_> = named.filter_map(|line| line.strip_suffix(".bpf.c\"")).collect();
    named.sort_unstable();
    assert_eq!(named, questions());
}

#[test]
fn every_row_of_a_program_has_its_program() {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `bpf/"));
    let named = rows.filter_map(|row| row.split_once(".bpf.c` | ")).map(|(name, _)| name);
    let mut named: Vec<String> = named.map(str::to_owned).collect();
    named.sort_unstable();
    assert_eq!(named, questions());
}

#[test]
fn every_hook_is_documented() {
    let section = PAGE.split("## Tracepoints and functions (eBPF)").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    for question in questions() {
        let code = source(&format!("{question}.bpf.c"));
        let sections = code.split("SEC(\"").skip(1).filter_map(|rest| rest.split('"').next());
        for hook in sections.filter_map(|section| section.split_once('/')).map(|(_, hook)| hook) {
            assert!(is_named(section, hook), "docs/kernel.md has no row of {hook} ({question})");
        }
    }
}

/// They count in maps, and user space reads the maps.
#[test]
fn no_program_sends_events_to_user_space() {
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|it| it == "c" || it == "h") {
            let code = fs::read_to_string(&path).unwrap().to_lowercase();
            for way in
                ["ringbuf", "perf_event_output", "perf_event_array", "skb_output", "xdp_output"]
            {
                assert!(!code.contains(way), "{}: {way}", path.display());
            }
        }
    }
}

/// Whether the page has a hook's name, which a table cell may shorten: `softirq_entry/exit`.
fn is_named(section: &str, hook: &str) -> bool {
    let (stem, end) = hook.rsplit_once('_').unwrap_or((hook, ""));
    let pair = ["entry", "exit"].contains(&end);
    let shortened = stem.trim_end_matches("_single");
    section.contains(hook)
        || pair
            && [format!("{shortened}_entry/exit"), format!("{shortened}*_entry/exit")]
                .iter()
                .any(|name| section.contains(name.as_str()))
}

/// The file that the program's first comment names.
fn decoder_of(question: &str) -> String {
    let code = source(&format!("{question}.bpf.c"));
    let head = code.split("*/").next().unwrap();
    let line = head.lines().find(|line| line.ends_with("; its row is in docs/kernel.md."));
    let line = line.unwrap_or_else(|| panic!("{question}.bpf.c names no decoder and page"));
    let mut words = line.split_whitespace().map(|word| word.trim_end_matches(';'));
    words.find(|word| word.ends_with(".rs")).unwrap().to_owned()
}

fn questions() -> Vec<String> {
    let files = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name());
    let names = files.filter_map(|name| name.into_string().ok());
    let mut questions: Vec<String> =
        names.filter_map(|name| name.strip_suffix(".bpf.c").map(str::to_owned)).collect();
    questions.sort_unstable();
    questions
}

fn source(name: &str) -> String {
    fs::read_to_string(folder().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bpf")
}
