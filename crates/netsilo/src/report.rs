//! `netsilo report`: the results of an experiment as a page, Markdown or JSON.
//!
//! It reads a run by `bench::folder`; `netsilo-trial` computes the results. May use `tell`, `views`
//! and `bench::folder`; nothing here computes a figure.

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
    /// Folder of a run of netsilo bench matrix or another experiment
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Write a self-contained page (HTML) to this file, or with --markdown or --json that format
    /// [default: Markdown to standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write Markdown
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Write all figures as JSON (docs/results.md)
    #[arg(short, long)]
    json: bool,
}

/// Reads a run, computes its results and writes them.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let folder = folder::read(&args.run)?;
    if let Some(note) = &folder.note {
        out::note(note);
    }
    let results = Results::from_records(&folder.experiment, &folder.records);
    let text = if args.json {
        serde_json::to_string_pretty(&results).context("cannot serialize JSON")? + "\n"
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

/// Writes a file completely or not at all: an incomplete page could pass for a complete one.
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
