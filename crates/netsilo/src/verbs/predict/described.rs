//! Settings of a machine that a file describes.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow, ensure};
use netsilo_predict::comparison::{compare, sweep};
use netsilo_predict::file::{self, BadScenario};
use netsilo_predict::interval::Draws;
use netsilo_predict::parameters::Table;

use crate::args::file as files;
use crate::tell::exit::{Exit, ExitError};
use crate::tell::out;
use crate::tell::presentation::Presentation;
use crate::tell::versioned::Versioned;
use crate::tell::words::wrong_key;
use crate::verbs::predict::arguments::{Args, split};
use crate::views;

/// Maximum number of points of a sweep that have intervals in JSON. An interval needs all draws.
const MOST_BANDS: usize = 100;

/// Reads the scenario, predicts and prints.
pub(super) fn run(args: &Args, path: &Path) -> Result<Exit> {
    let text = files::read(path, files::CONFIGURATION)?;
    let text = String::from_utf8(text)
        .with_context(|| format!("cannot read {}: it is not UTF-8", path.display()))?;
    let draws = Draws::new(Table::shipped(), Draws::USUAL, args.seed);
    let changes: Vec<_> = args.changes.iter().map(|it| (it.0.clone(), it.1.clone())).collect();
    let (names, asked) = split(&args.settings);
    let wrong = |error: BadScenario| anyhow!("{}: {}", path.display(), in_words(&error));

    if let Some(range) = &args.sweep {
        let key = &range.key;
        let bands = args.json && range.values.len() <= MOST_BANDS;
        let sweep = sweep(&text, &changes, &asked, key, &range.values, &draws, bands);
        let sweep = sweep.map_err(wrong)?;
        if args.json {
            out::json(&Versioned::first(sweep))?
        } else {
            out::styled(&views::predict::sweep(&sweep, Presentation::of_stdout()))
        }
        return Ok(Exit::Printed);
    }

    let mut described = file::parse(&text, &changes, &asked).map_err(wrong)?;
    let known: Vec<String> = described.settings.keys().cloned().collect();
    for name in &names {
        ensure!(
            known.contains(name),
            ExitError(Exit::Usage, format!("no setting {name}; the file has {}", known.join(", ")))
        );
    }
    let is_none = |name: &String| name == "none";
    let against = known.iter().find(|name| is_none(name)).or(known.first()).cloned();
    let against = against.context("a scenario needs at least one setting")?;
    if !args.settings.is_empty() {
        let is_asked = |name: &String| names.contains(name) || name.contains('=');
        described.settings.retain(|name, _| *name == against || is_asked(name));
    }
    let comparison = compare(&described, &against, &draws)
        .context("the setting to compare with must be one of the scenario's")?;
    if args.json {
        out::json(&Versioned::first(comparison))?
    } else {
        let presentation = Presentation::of_stdout();
        out::styled(&views::predict::comparison(&comparison, args.per_cpu, presentation));
    }
    Ok(Exit::Printed)
}

/// The error, with the nearest known key.
fn in_words(error: &BadScenario) -> String {
    match error {
        BadScenario::Text { line, what } => {
            let line = line.map_or_else(String::new, |line| format!("line {line}: "));
            format!("{line}{}", wrong_key(what))
        }
        BadScenario::Key { key, what } => format!("{key}: {}", wrong_key(what)),
    }
}
