//! `netsilo report`: the results of an experiment or a search as a page, Markdown or JSON, the page
//! of a prediction, or the page about an incident.
//!
//! It reads a run by `bench::folder` or `tune::folder`; `netsilo-trial` computes the results. May
//! use `tell`, `views`, `verbs::capture` and these folders; nothing here computes a figure.

mod charts;
mod folder;
mod incident;
mod markdown;
mod options;
mod page;
mod palette;
mod prediction;
mod search;
mod words;

use std::path::Path;

use anyhow::{Context as _, Result};
use netsilo_sys::files::output;
use netsilo_trial::experiment::results::Results;

pub(crate) use crate::report::options::Args;
use crate::report::options::{About, Format};
use crate::tell::exit::Exit;
use crate::tell::out;
use crate::tune;

/// Reads a run, computes its results and writes them.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let text = match args.about() {
        About::Incident(about) => incident::text(about)?,
        About::Run(file) if file.is_file() => prediction::text(file, &args.format())?,
        About::Run(run) if tune::folder::is_search(run) => search::text(run, &args.format())?,
        About::Run(run) => text(run, &args.format())?,
    };
    match &args.output {
        None => {
            out::text(&text);
            Ok(Exit::Printed)
        }
        Some(path) => {
            output::write(path, |file| file.write_all(text.as_bytes()))
                .with_context(|| format!("cannot write {}", path.display()))?;
            Ok(Exit::Done)
        }
    }
}

/// The results of an experiment in the requested format.
fn text(run: &Path, format: &Format) -> Result<String> {
    let folder = folder::read(run)?;
    if let Some(note) = &folder.note {
        out::note(note);
    }
    let results = Results::from_records(&folder.experiment, &folder.records);
    match format {
        Format::Json => out::indented(&results),
        Format::Markdown => Ok(markdown::render(&folder, &results)),
        Format::Page => page::render(&folder, &results),
    }
}
