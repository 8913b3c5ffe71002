//! The page of a prediction.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::chromium::{browse, chromium};
use crate::{netsilo, stderr};

const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Predicts, and writes the page.
fn page(dir: &Path, arguments: &[&str]) -> PathBuf {
    let (file, page) = (dir.join("prediction.json"), dir.join("page.html"));
    let output = netsilo(&[&["predict", "--json"], arguments].concat());
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
    std::fs::write(&file, output.stdout).unwrap();
    let output = netsilo(&["report", file.to_str().unwrap(), "-o", page.to_str().unwrap()]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
    page
}

fn scenario() -> String {
    format!("{WORKSPACE}/cases/predict/request-response.toml")
}

#[test]
fn each_kind_of_prediction_becomes_a_page() {
    let dir = TempDir::new().unwrap();
    let text = |arguments: &[&str]| std::fs::read_to_string(page(dir.path(), arguments)).unwrap();
    let veth = format!("{WORKSPACE}/fixtures/outcomes/veth/tcp-rr-x-16-from-0-0.tar.zst");
    for (arguments, words) in [
        (&["--scenario", &scenario()][..], &["Compared with <b>none</b>", "softirq of cpu 0"][..]),
        (&["--from", &veth, "--setting", "same-cpu"], &["103k packets/s", "Not measured: "]),
        (
            &["--scenario", &scenario(), "--sweep", "load.instances=1..100/5"],
            &[
                "transactions/s along load.instances",
                "irq_affinity+rps_rfs",
                "</b> is better than <b>",
            ],
        ),
    ] {
        let text = text(arguments);
        for words in words {
            assert!(text.contains(words), "{arguments:?}: {words}");
        }
        assert!(!text.contains("src=\"http"), "it fetches something");
    }
}

#[test]
fn the_charts_of_a_prediction_are_drawn() {
    let Some(chromium) = chromium() else { return };
    let dir = TempDir::new().unwrap();
    let sweep = ["--scenario", &scenario(), "--sweep", "load.instances=1..100/5"];
    for (arguments, charts) in [(&["--scenario", &scenario()][..], 2), (&sweep, 1)] {
        let drawn = browse(&chromium, &page(dir.path(), arguments), &["--dump-dom"]);
        assert_eq!(drawn.matches("<svg").count(), charts, "{arguments:?}");
        assert!(drawn.contains("rps_rfs</text>"), "{arguments:?}");
    }
}

#[test]
fn a_file_that_is_no_prediction_is_refused() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file.json");
    let told = |text: &str, more: &[&str]| {
        std::fs::write(&file, text).unwrap();
        let output = netsilo(&[&["report", file.to_str().unwrap()], more].concat());
        assert!(output.stdout.is_empty());
        stderr(&output).replace(file.to_str().unwrap(), "FILE").lines().next().unwrap().to_owned()
    };
    let page = dir.path().join("page.html");
    let to_page = ["-o", page.to_str().unwrap()];
    for text in ["not JSON", "{}", r#"{"schema": 1, "settings": []}"#] {
        let told = told(text, &to_page);
        assert!(told.contains("FILE is neither a run nor what"), "{told}");
    }
    insta::assert_snapshot!(
        told(r#"{"schema": 2}"#, &to_page),
        @"netsilo: FILE has schema 2: this netsilo reads schema 1"
    );
    let file = dir.path().join("prediction.json");
    let output = netsilo(&["predict", "--scenario", &scenario(), "--json"]);
    std::fs::write(&file, output.stdout).unwrap();
    let output = netsilo(&["report", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("name its file with --output"), "{}", stderr(&output));
}
