//! The documentation as a site: mdBook builds it, and Chromium shows its pages.

#![allow(clippy::unwrap_used, reason = "clippy lets only functions marked as tests do so")]

mod chromium;

use std::path::Path;
use std::process::Command;

use chromium::{average_brightness, browse, chromium};

#[test]
#[ignore = "installs mdBook, which takes minutes: make test-long"]
fn the_site_has_each_page_and_a_browser_shows_them_without_an_error() {
    let Some(chromium) = chromium() else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    assert!(Command::new(root.join("scripts/docs")).status().unwrap().success());
    let site = root.join("target/docs");
    let summary = std::fs::read_to_string(root.join("docs/SUMMARY.md")).unwrap();
    let links = summary.split("](").skip(1).filter_map(|it| it.split_once(".md)"));
    let pages: Vec<String> = links.map(|(page, _)| format!("{page}.html")).collect();
    assert!(pages.len() > 40, "{pages:?}");
    for page in &pages {
        assert!(site.join(page).is_file(), "{page} is not built");
    }
    for (page, title) in [
        ("index.html", "netsilo"),
        ("tutorial.html", "From a slow server"),
        ("install.html", "Installing netsilo"),
        ("receive-path.html", "receive path"),
        ("howto/proxy.html", "proxy"),
        ("reference.html", "Reference"),
    ] {
        let dom = browse(&chromium, &site.join(page), &["--dump-dom"]);
        let (_, heading) = dom.split_once("<main>").unwrap().1.split_once("<h1").unwrap();
        let heading = heading.split("</h1>").next().unwrap();
        assert!(heading.contains(title), "{page}: {heading}");
    }
    let picture = Path::new(env!("CARGO_TARGET_TMPDIR")).join("site.png");
    let shot = format!("--screenshot={}", picture.display());
    browse(&chromium, &site.join("tutorial.html"), &[&shot, "--window-size=1200,1000"]);
    assert!(average_brightness(&picture) > 0.6, "dark text on a light page");
}
