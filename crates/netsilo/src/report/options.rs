//! What `netsilo report` reads, and how it writes it.

use std::path::PathBuf;

/// Arguments of `netsilo report`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of a run of netsilo bench matrix or another experiment, or of netsilo tune
    #[arg(value_name = "RUN")]
    pub(super) run: PathBuf,
    /// Write a self-contained page (HTML) to this file, or with --markdown or --json that format
    /// [default: Markdown to standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// Write Markdown
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Write all figures as JSON (docs/results.md)
    #[arg(short, long)]
    json: bool,
}

/// How the results are written.
pub(super) enum Format {
    Json,
    Markdown,
    Page,
}

impl Args {
    /// The requested format.
    pub(super) fn format(&self) -> Format {
        match (self.json, self.markdown || self.output.is_none()) {
            (true, _) => Format::Json,
            (false, true) => Format::Markdown,
            (false, false) => Format::Page,
        }
    }
}
