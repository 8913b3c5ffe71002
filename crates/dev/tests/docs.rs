//! The documents: no link leads nowhere, and the site has every page.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

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
    assert_eq!(unique, pages);
}
