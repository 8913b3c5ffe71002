//! `netsilo report --incident`: a bundle and its findings as one page.

#![allow(clippy::unwrap_used, reason = "clippy lets only functions marked as tests do so")]

mod chromium;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use chromium::{Pages, assert_fits, average_brightness, browse, chromium};

const BUNDLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/igb-6.12.tar.zst");

fn netsilo(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netsilo"));
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// Writes a page and returns it.
fn page(file: &Path, arguments: &[&str]) -> String {
    let file = file.to_str().unwrap();
    let output = netsilo(&[&["report", "--incident", "-o", file], arguments].concat());
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
    std::fs::read_to_string(file).unwrap()
}

/// The bundle that a page contains.
fn held(page: &str) -> Vec<u8> {
    let data = page.split("data:application/zstd;base64,").nth(1).unwrap();
    BASE64_STANDARD.decode(data.split('"').next().unwrap()).unwrap()
}

#[test]
fn a_bundle_becomes_a_page_with_findings_and_the_bundle_itself() {
    let dir = tempfile::tempdir().unwrap();
    let text = page(&dir.path().join("page.html"), &["--from", BUNDLE]);
    assert_eq!(held(&text), std::fs::read(BUNDLE).unwrap());
    for words in [
        "<title>netsilo: incident on host</title>",
        "<span class=\"work\">info</span>: <span class=\"title\">machine: the global flow table",
        "About rfs-half-on",
        "5 checks passed</summary>",
        "eth0  igb  0000:81:00.0  node 1",
        "<svg class=\"path\" role=\"img\"",
        "No packet was counted as lost. Stages where nobody counted: ",
    ] {
        assert!(text.contains(words), "{words}");
    }
    assert!(!text.contains("<script") && !text.contains("http://"), "it fetches something");
    assert!(text.len() < 200_000, "{}", text.len());
}

#[test]
fn a_page_about_this_machine_has_no_addresses_unless_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let live = ["--no-bpf", "-i", "1ms"];
    let replaced = dir.path().join("replaced.html");
    let bundle = dir.path().join("replaced.tar.zst");
    std::fs::write(&bundle, held(&page(&replaced, &live))).unwrap();
    let again = page(&replaced, &["--from", bundle.to_str().unwrap()]);
    assert!(again.contains("incident on host-"));
    let kept = dir.path().join("kept.html");
    let bundle = dir.path().join("kept.tar.zst");
    std::fs::write(&bundle, held(&page(&kept, &[&live[..], &["--with-addresses"]].concat())))
        .unwrap();
    let from = ["--from", bundle.to_str().unwrap()];
    let file = dir.path().join("refused.html");
    let arguments = ["report", "--incident", "-o", file.to_str().unwrap()];
    let refused = netsilo(&[&arguments[..], &from].concat());
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("contains addresses and the host's name"),
        "{}",
        stderr(&refused)
    );
    assert!(!file.exists());
    page(&file, &[&from[..], &["--with-addresses"]].concat());
}

#[test]
fn an_incident_needs_a_file_and_no_folder() {
    for (arguments, words) in [
        (&["report", "--incident"][..], "--output <FILE>"),
        (&["report", "--incident", "-o", "page.html", "run-1"], "unexpected argument"),
        (&["report", "-o", "page.html", "--from", "host.tar.zst"], "--incident"),
        (&["report"], "--incident"),
    ] {
        let output = netsilo(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
    }
}

/// Bundles from small and large machines, with and without findings, of packets that are read and
/// forwarded.
const BUNDLES: [&str; 6] = [
    "fixtures/igb-6.12.tar.zst",
    "fixtures/outcomes/guest/irqbalance.tar.zst",
    "fixtures/outcomes/guest16/stream-from-0-0.tar.zst",
    "fixtures/outcomes/veths/forwarded-tcp-rr-x-16-from-1-1-0.tar.zst",
    "fixtures/outcomes/veth/tcp-stream-x-1-from-0-0.tar.zst",
    "cases/dedicated-nics-on-two-nodes/before.tar.zst",
];

#[test]
fn evidence_remedies_and_tables_stay_in_their_boxes_on_a_phone_and_on_a_desk() {
    let Some(chromium) = chromium() else { return };
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<_> = (0..BUNDLES.len()).map(|n| dir.path().join(format!("{n}.html"))).collect();
    for (file, bundle) in files.iter().zip(BUNDLES) {
        let bundle = format!("{}/../../{bundle}", env!("CARGO_MANIFEST_DIR"));
        let text = page(file, &["--with-addresses", "--from", &bundle]);
        for scenario in ["<p>Found on ", "<p>Predicted for ", "<p>As seen on ", "<p>For "] {
            assert!(text.contains(scenario), "{scenario}");
        }
    }
    let pages = files.iter().map(|file| (file.as_path(), "body", None)).collect();
    let widths = &[390, 1000, 1280];
    assert_fits(&chromium, &Pages { pages, widths, scrolls: "", hostile: true });
}

#[test]
fn equal_rows_of_a_large_machine_share_one() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = format!("{}/../../{}", env!("CARGO_MANIFEST_DIR"), BUNDLES[5]);
    let text = page(&dir.path().join("page.html"), &["--with-addresses", "--from", &bundle]);
    assert!(text.contains(" rows)</td>"), "{text}");
}

#[test]
fn a_browser_shows_the_page_without_an_error() {
    let Some(chromium) = chromium() else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("page.html");
    page(&file, &["--from", BUNDLE]);
    let dom = browse(&chromium, &file, &["--dump-dom"]);
    assert!(dom.contains("5 checks passed</summary>"), "{dom}");
    let picture = dir.path().join("picture.png");
    let shot = format!("--screenshot={}", picture.display());
    let scheme = "--blink-settings=preferredColorScheme=1";
    browse(&chromium, &file, &[&shot, scheme, "--window-size=1000,1400"]);
    assert!(average_brightness(&picture) > 0.7, "dark text on a light page");
}
