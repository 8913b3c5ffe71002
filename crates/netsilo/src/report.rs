//! `netsilo report`: the results of an experiment or a search as a page, Markdown or JSON.
//!
//! It reads a run by `bench::folder` or `tune::folder`; `netsilo-trial` computes the results. May
//! use `tell`, `views` and these folders; nothing here computes a figure.

mod charts;
mod folder;
mod markdown;
mod options;
mod page;
mod palette;
mod search;
mod words;

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use netsilo_trial::experiment::results::Results;

pub(crate) use crate::report::options::Args;
use crate::report::options::Format;
use crate::tell::exit::Exit;
use crate::tell::out;
use crate::tune;

/// Reads a run, computes its results and writes them.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let text = if tune::folder::is_search(&args.run) { search::text(args)? } else { text(args)? };
    match &args.output {
        None => out::text(&text)?,
        Some(path) => write(path, &text)?,
    }
    Ok(Exit::Ok)
}

/// The results of an experiment in the requested format.
fn text(args: &Args) -> Result<String> {
    let folder = folder::read(&args.run)?;
    if let Some(note) = &folder.note {
        out::note(note);
    }
    let results = Results::from_records(&folder.experiment, &folder.records);
    match args.format() {
        Format::Json => out::indented(&results),
        Format::Markdown => Ok(markdown::render(&folder, &results)),
        Format::Page => page::render(&folder, &results),
    }
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
