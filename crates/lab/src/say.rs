//! Output of the lab's programs: results on standard output, progress on standard error.

use std::io::{Write, stderr, stdout};

use anyhow::Result;
use comfy_table::{Table, presets};
use indicatif::{ProgressBar, ProgressStyle};

/// Prints a result.
pub(crate) fn say(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{}", text.trim_end())?;
    out.flush()?;
    Ok(())
}

/// Prints what is being done. A failure does not matter.
pub(crate) fn progress(text: &str) {
    let _ = writeln!(stderr(), "lab: {text}");
}

/// A table in Markdown.
pub(crate) fn markdown(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header(header);
    table
}

/// A bar on standard error with the time left.
pub(crate) fn bar(length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {elapsed}, {eta} left");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar
}
