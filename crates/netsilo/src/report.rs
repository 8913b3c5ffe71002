//! `netsilo report`: the results of an experiment as Markdown or JSON, or the page about an
//! incident.
//!
//! It reads a run by `bench::folder`; `netsilo-trial` computes the results. May use `tell`,
//! `views`, `verbs::capture` and that folder; nothing here computes a figure.

mod folder;
mod incident;
mod markdown;
mod options;
mod page;
mod words;

use std::path::Path;

use anyhow::{Context as _, Result};
use netsilo_sys::files::output;
use netsilo_trial::experiment::results::Results;

use crate::report::options::About;
pub(crate) use crate::report::options::Args;
use crate::tell::exit::Exit;
use crate::tell::out;

/// Reads a run, computes its results and writes them.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let text = match args.about() {
        About::Incident(about) => incident::text(about)?,
        About::Run(run) => text(run, args.json)?,
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
fn text(run: &Path, as_json: bool) -> Result<String> {
    let folder = folder::read(run)?;
    if let Some(note) = &folder.note {
        out::note(note);
    }
    let results = Results::from_records(&folder.experiment, &folder.records);
    if as_json { out::indented(&results) } else { Ok(markdown::render(&folder, &results)) }
}
