//! The results of an experiment as Markdown or JSON.
//!
//! It reads a run through `folder`; `netsilo-trial` computes the results. Nothing here computes a
//! number.

mod folder;
mod markdown;
mod words;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use netsilo::tell::exit::Exit;
use netsilo::tell::out;
use netsilo_sys::files::output;
use netsilo_trial::experiment::results::Results;

/// Arguments of `netsilo-bench report`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of a run of netsilo-bench experiment
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Write to this file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write all figures as JSON (docs/bench.md) [default: Markdown]
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
    let text =
        if args.json { out::indented(&results)? } else { markdown::render(&folder, &results) };
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
