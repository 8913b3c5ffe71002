//! Pages in headless Chromium.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Returns the path of Chromium, as [`installed`].
pub(crate) fn chromium() -> Option<PathBuf> {
    installed(&["chromium", "chromium-browser", "google-chrome"])
}

/// Returns the path of a program that has one of these names. If it is not installed, prints
/// SKIPPED and returns `None`, or fails if nothing may be skipped.
pub(crate) fn installed(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .flat_map(|dir| names.iter().map(move |name| dir.join(name)))
        .find(|it| it.is_file());
    if found.is_none() {
        let name = names[0];
        assert!(
            std::env::var_os("NETSILO_NO_SKIP").is_none(),
            "no {name}, and NETSILO_NO_SKIP is set"
        );
        let _ = writeln!(std::io::stderr(), "SKIPPED: {name} is not installed");
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
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-first-run",
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

/// What pages are measured for.
pub(crate) struct Pages<'a> {
    /// Files, each with the selector of the part that is measured, and a word whose search must
    /// find a page of this name.
    pub pages: Vec<(&'a Path, &'a str, Option<&'a str>)>,
    pub widths: &'a [u32],
    /// Selector of boxes that may scroll sideways, or "".
    pub scrolls: &'a str,
    /// Whether words of any length must fit.
    pub hostile: bool,
}

/// Opens pages at several widths and asserts that they are no wider, that each text is in its box
/// and at least 9 px high (in pictures too), and that each picture has a caption.
pub(crate) fn assert_fits(chromium: &Path, of: &Pages<'_>) {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("measure.html");
    let pages = of.pages.iter().map(|(page, part, word)| {
        let word = word.map_or("null".to_owned(), |word| format!("{word:?}"));
        format!("[\"file://{}\", {part:?}, {word}]", page.display())
    });
    let pages = format!("[{}]", pages.collect::<Vec<_>>().join(", "));
    let script = include_str!("measure.html")
        .replace("of PAGES)", &format!("of {pages})"))
        .replace("of WIDTHS)", &format!("of {:?})", of.widths))
        .replace("SCROLLING", &format!("{:?}", of.scrolls))
        .replace("HOSTILE", &of.hostile.to_string());
    std::fs::write(&file, script).unwrap();
    let arguments = ["--dump-dom", "--allow-file-access-from-files", "--window-size=1400,2000"];
    let dom = browse(chromium, &file, &arguments);
    let (_, found) = dom.split_once("<pre id=\"found\">").unwrap();
    let (found, _) = found.split_once("</pre>").unwrap();
    assert!(found == "measured", "{found}");
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
