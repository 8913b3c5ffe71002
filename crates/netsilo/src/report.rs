//! `netsilo report`: what came of an experiment, as a page, as Markdown, as JSON.

mod charts;
mod folder;
mod markdown;
mod page;
mod palette;
mod words;

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use netsilo_trial::experiment::results::Results;

use crate::tell::exit::Exit;
use crate::tell::out;

/// Arguments of `netsilo report`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder of an experiment, as netsilo bench matrix and its like write them
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Write a page (HTML) to this file: one file that needs no network; with --markdown or --json,
    /// that
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Markdown: what is printed unless a file is named
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// JSON: all figures, as docs/results.md describes them
    #[arg(short, long)]
    json: bool,
}

/// Reads, reckons, writes.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let folder = folder::read(&args.run)?;
    if let Some(note) = &folder.note {
        out::note(note);
    }
    let results = Results::of(&folder.experiment, &folder.records);
    let text = if args.json {
        serde_json::to_string_pretty(&results).context("rendering json")? + "\n"
    } else if args.markdown || args.output.is_none() {
        markdown::render(&folder, &results)
    } else {
        page::render(&folder, &results)
    };
    match &args.output {
        None => out::text(&text)?,
        Some(path) => write(path, &text)?,
    }
    Ok(Exit::Ok)
}

/// Whole or not at all: a page that is half written looks like one.
fn write(path: &Path, text: &str) -> Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".unfinished");
    let written = || -> std::io::Result<()> {
        let mut file = std::fs::File::create(&unfinished)?;
        file.write_all(text.as_bytes())?;
        std::fs::rename(&unfinished, path)
    };
    written().with_context(|| format!("cannot write {}", path.display()))
}
