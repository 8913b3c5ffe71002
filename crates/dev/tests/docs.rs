//! The documents: no link is broken, the site has every page, and each command that a page names
//! exists.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use netsilo_dev::package::program::PROGRAMS;
use pulldown_cmark::{Event, Parser, Tag, TagEnd};

/// The folder of the workspace.
const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn collect(folder: &Path, pages: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, pages);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
}

/// All pages of `docs` and `evidence`, and those of the workspace's own folder.
fn pages() -> Vec<PathBuf> {
    let root = fs::canonicalize(WORKSPACE).unwrap();
    let mut pages = Vec::new();
    collect(&root.join("docs"), &mut pages);
    collect(&root.join("evidence"), &mut pages);
    for entry in fs::read_dir(&root).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    assert!(pages.len() > 80, "{}", pages.len());
    pages
}

/// The destinations of all links of a page.
fn links(text: &str) -> Vec<String> {
    let link = |event| match event {
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
            Some(dest_url.to_string())
        }
        _ => None,
    };
    Parser::new(text).filter_map(link).collect()
}

/// The anchors of a page: each heading in lower case, without punctuation, with `-` for spaces.
fn anchors(text: &str) -> BTreeSet<String> {
    let (mut anchors, mut heading) = (BTreeSet::new(), None::<String>);
    for event in Parser::new(text) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(words) | Event::Code(words) => {
                heading.iter_mut().for_each(|heading| heading.push_str(&words));
            }
            Event::End(TagEnd::Heading(_)) => anchors.extend(heading.take().map(as_anchor)),
            _ => {}
        }
    }
    anchors
}

fn as_anchor(heading: String) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    heading.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")
}

#[test]
fn every_link_leads_to_a_file_and_a_heading_of_it() {
    let mut broken = Vec::new();
    for page in pages() {
        for link in links(&fs::read_to_string(&page).unwrap()) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target =
                if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            let is_there = target.exists()
                && (anchor.is_empty()
                    || anchors(&fs::read_to_string(&target).unwrap()).contains(anchor));
            if !is_there {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn the_site_has_every_page_once() {
    let docs = fs::canonicalize(WORKSPACE).unwrap().join("docs");
    let listed = links(&fs::read_to_string(docs.join("SUMMARY.md")).unwrap());
    let unique: BTreeSet<PathBuf> = listed.iter().map(|link| docs.join(link)).collect();
    assert_eq!(listed.len(), unique.len(), "a page is listed twice");
    let mut pages = Vec::new();
    collect(&docs, &mut pages);
    let pages: BTreeSet<PathBuf> =
        pages.into_iter().filter(|page| !page.ends_with("SUMMARY.md")).collect();
    let missing: Vec<_> = pages.difference(&unique).collect();
    let gone: Vec<_> = unique.difference(&pages).collect();
    assert!(
        missing.is_empty() && gone.is_empty(),
        "docs/SUMMARY.md needs a line for {missing:?}, and lists {gone:?}, which do not exist; \
         `make generate` writes the lines of findings"
    );
}

#[test]
fn pages_use_the_words_of_the_field() {
    let usual = [
        ("mend", "fix"),
        ("mends", "fixes"),
        ("mended", "fixed"),
        ("beside", "compared with, or next to"),
        ("foretell", "predict"),
        ("foretells", "predicts"),
    ];
    let mut wrong = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap().to_lowercase();
        let words: BTreeSet<&str> = text.split(|c: char| !c.is_alphabetic()).collect();
        for (word, instead) in usual {
            if words.contains(word) {
                wrong.push(format!("{}: {word}: say {instead}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The code of a page: spans, and lines of blocks.
fn code(text: &str) -> Vec<String> {
    let (mut code, mut in_block) = (Vec::new(), false);
    for event in Parser::new(text) {
        match event {
            Event::Start(Tag::CodeBlock(_)) => in_block = true,
            Event::End(TagEnd::CodeBlock) => in_block = false,
            Event::Text(lines) if in_block => code.extend(lines.lines().map(str::to_owned)),
            Event::Code(span) => code.push(span.to_string()),
            _ => {}
        }
    }
    code
}

/// The command of one of the programs in a line of code, without shell syntax and without the
/// brackets of optional parts; `None` also if its verb is a placeholder.
fn command_in(line: &str) -> Option<Vec<&str>> {
    let goes_on = |word: &&str| !(word.starts_with(['#', '|', '>', '&', '\\']) || *word == "...");
    let words = line.split_whitespace().skip_while(|word| matches!(*word, "$" | "sudo" | "#"));
    let words = words.take_while(|word| !word.starts_with('('));
    let words: Vec<&str> =
        words.take_while(goes_on).map(|word| word.trim_matches(['[', ']'])).collect();
    let is_program = PROGRAMS.iter().any(|it| words.first() == Some(&it.name));
    let placeholder = words.get(1).is_some_and(|verb| verb.starts_with(char::is_uppercase));
    (is_program && !placeholder).then_some(words)
}

/// Names and placeholders of values belong to the page; verbs and options belong to the program.
#[test]
fn every_verb_and_option_that_a_page_names_exists() {
    let (mut wrong, mut tried) = (Vec::new(), 0);
    for page in pages() {
        // pages of evidence have tables in which a program is the name of a row
        if page.components().any(|it| it.as_os_str() == "evidence") {
            continue;
        }
        for line in code(&fs::read_to_string(&page).unwrap()) {
            let Some(words) = command_in(&line) else { continue };
            tried += 1;
            let program = PROGRAMS.iter().find(|it| it.name == words[0]).unwrap();
            let parsed = (program.command)().try_get_matches_from(&words);
            let unknown = [ErrorKind::UnknownArgument, ErrorKind::InvalidSubcommand];
            if parsed.is_err_and(|error| unknown.contains(&error.kind())) {
                wrong.push(format!("{}: {line}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried > 100, "{tried}");
}
