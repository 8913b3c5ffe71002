//! Pages in headless Chromium.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Names of Chromium's program.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Returns the path of Chromium. If it is not installed, prints SKIPPED and returns `None`, or
/// fails if nothing may be skipped.
pub(crate) fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .flat_map(|dir| NAMES.map(|name| dir.join(name)))
        .find(|it| it.is_file());
    if found.is_none() {
        assert!(
            std::env::var_os("NETSILO_NO_SKIP").is_none(),
            "no chromium, and NETSILO_NO_SKIP is set"
        );
        let _ = writeln!(std::io::stderr(), "SKIPPED: chromium is not installed");
    }
    found
}

/// Opens a page and returns stdout. Asserts that the page's console is empty.
pub(crate) fn browse(chromium: &Path, page: &Path, arguments: &[&str]) -> String {
    let profile = TempDir::new().unwrap();
    let output = Command::new("timeout")
        .args(["--kill-after=5", "300"])
        .arg(chromium)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ])
        .args(["--enable-logging=stderr", "--virtual-time-budget=10000"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(arguments)
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    let console: Vec<&str> = log.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(
        output.status.success() && console.is_empty(),
        "{}: {console:#?}\n{log}",
        output.status
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the average brightness of a picture from 0 to 1. Asserts that it has many colours.
pub(crate) fn average_brightness(picture: &Path) -> f64 {
    let decoder = png::Decoder::new(std::io::BufReader::new(std::fs::File::open(picture).unwrap()));
    let mut reader = decoder.read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    let samples = info.color_type.samples();
    let pixels: Vec<&[u8]> = pixels.chunks_exact(samples).collect();
    let colors: std::collections::BTreeSet<&[u8]> = pixels.iter().copied().collect();
    assert!(colors.len() > 200, "only {} colours: the page is blank", colors.len());
    let sum: f64 =
        pixels.iter().map(|it| it[..3].iter().map(|c| f64::from(*c)).sum::<f64>() / 3.0).sum();
    sum / 255.0 / pixels.len() as f64
}
