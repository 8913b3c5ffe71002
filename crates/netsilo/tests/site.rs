//! The documentation as a site: mdBook builds it, and Chromium shows its pages.

#![allow(clippy::unwrap_used, reason = "clippy lets only functions marked as tests do so")]

mod chromium;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use chromium::{Pages, assert_fits, average_brightness, browse, chromium, installed};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The folder of the site, which is built once.
static SITE: LazyLock<PathBuf> = LazyLock::new(|| {
    let root = Path::new(ROOT).canonicalize().unwrap();
    assert!(Command::new(root.join("scripts/docs")).status().unwrap().success());
    root.join("target/docs")
});

/// The pages of the table of contents.
fn pages() -> Vec<PathBuf> {
    let summary = std::fs::read_to_string(Path::new(ROOT).join("docs/SUMMARY.md")).unwrap();
    let links = summary.split("](").skip(1).filter_map(|it| it.split_once(".md)"));
    links.map(|(page, _)| SITE.join(format!("{page}.html"))).collect()
}

/// Asserts that pages fit a phone and a desk. Captured output, wide tables and pictures of screens
/// may scroll in their boxes. Each page has the word that a search must find, if any.
fn assert_pages_fit(chromium: &Path, pages: &[(PathBuf, Option<&str>)]) {
    let pages = pages.iter().map(|(page, word)| (page.as_path(), "main", *word)).collect();
    let scrolls = "pre, .table-wrapper, p:has(img)";
    assert_fits(chromium, &Pages { pages, widths: &[390, 1280], scrolls, hostile: false });
}

#[test]
fn the_first_pages_fit_a_phone_and_a_desk_and_search_works() {
    let (Some(_), Some(chromium)) = (installed(&["mdbook"]), chromium()) else { return };
    let pages = [
        ("index.html", Some("rps-hurts")),
        ("receive-path.html", None),
        ("reference.html", None),
        ("top.html", Some("calibrate")),
    ];
    assert_pages_fit(&chromium, &pages.map(|(page, word)| (SITE.join(page), word)));
    let index = browse(&chromium, &SITE.join("index.html"), &["--dump-dom"]);
    assert!(index.contains("src=\"pictures/placement.svg\""), "{index}");
    let picture = Path::new(env!("CARGO_TARGET_TMPDIR")).join("site.png");
    let shot = format!("--screenshot={}", picture.display());
    browse(&chromium, &SITE.join("tutorial.html"), &[&shot, "--window-size=1200,1000"]);
    assert!(average_brightness(&picture) > 0.6, "dark text on a light page");
}

#[test]
fn every_link_of_the_site_leads_to_a_page_and_a_heading() {
    let Some(_) = installed(&["mdbook"]) else { return };
    let pages = pages();
    assert!(pages.len() > 40, "{pages:?}");
    let (mut links, mut broken) = (0, Vec::new());
    for page in &pages {
        let text = std::fs::read_to_string(page).unwrap();
        let (_, text) = text.split_once("<main>").unwrap();
        let found = text.split(" href=\"").skip(1).chain(text.split(" src=\"").skip(1));
        for link in found.filter_map(|it| it.split('"').next()) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            links += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target =
                if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            let has_anchor = || {
                let target = std::fs::read_to_string(&target).unwrap();
                anchor.is_empty() || target.contains(&format!("id=\"{anchor}\""))
            };
            if !target.is_file()
                || target.extension().is_some_and(|it| it == "html") && !has_anchor()
            {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(links > 200, "{links}");
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
#[ignore = "too slow for make test: make test-long"]
fn every_page_fits_a_phone_and_a_desk() {
    let (Some(_), Some(chromium)) = (installed(&["mdbook"]), chromium()) else { return };
    for pages in pages().chunks(20) {
        let pages: Vec<_> = pages.iter().map(|page| (page.clone(), None)).collect();
        assert_pages_fit(&chromium, &pages);
    }
}
