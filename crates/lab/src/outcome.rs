//! `make bench-outcome`: what the default chooses, checked against what measured best.

mod forecasts;
mod guest;
mod outcomes;
mod rank;
mod regret;
mod shapes;
mod table;
mod veth;
mod veth_loads;

use anyhow::Result;
use clap::ValueEnum;
use netsilo_model::cost::assumed::Assumed;

use crate::experiment::run::records;
use crate::experiment::study::{Options, Study, Usual};
use crate::experiment::tables::print;
use crate::outcome::guest::Placements;
use crate::outcome::outcomes::RecordedOutcomes;
pub(crate) use crate::outcome::outcomes::choice;
use crate::outcome::shapes::{Part, Shape};
use crate::outcome::veth::Veths;
use crate::say::say;

/// Odd rounds show which place is best, even ones by how much: with fewer than ten, the regret has
/// no interval.
const USUAL: Usual = Usual { rounds: 10, seconds: 0.5 };

/// Arguments of `outcome`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct OutcomeArgs {
    #[command(flatten)]
    options: Options,
    /// Measure only this; may be repeated [default: everything]
    #[arg(long = "part", value_enum, value_name = "PART", conflicts_with = "from")]
    parts: Vec<Part>,
    /// Times that the default is asked from each start
    #[arg(
        long,
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..),
        conflicts_with = "from"
    )]
    looks: u16,
}

/// Measures, or reads what was measured, and prints tables.
pub(crate) fn run(args: &OutcomeArgs) -> Result<()> {
    let temporary = tempfile::tempdir()?;
    let wanted = |part: &&Part| args.parts.is_empty() || args.parts.contains(part);
    let study = |part: &Part| -> Box<dyn Study> {
        match Shape::of(*part) {
            None => Box::new(Veths { looks: args.looks }),
            Some(shape) => Box::new(Placements::new(shape, args.looks)),
        }
    };
    let studies = Part::value_variants().iter().filter(wanted).map(study).collect();
    let mut all = Vec::new();
    for (folder, recorded) in records(&args.options, USUAL, studies, &temporary)? {
        let outcomes = RecordedOutcomes::new(&folder, recorded)?;
        print(&tables(&outcomes)?.join("\n\n"), &outcomes.recorded)?;
        all.push((folder.file_name().unwrap_or_default().to_string_lossy().into_owned(), outcomes));
    }
    let rated: Vec<(&str, &RecordedOutcomes)> = (all.iter())
        .filter(|(_, outcomes)| outcomes.counted().is_none())
        .map(|(name, outcomes)| (name.as_str(), outcomes))
        .collect();
    if rated.len() > 1 {
        say(&format!("{}\n", table::recordings(&rated, Assumed::default())?))?;
    }
    let all = all.iter().map(|(_, outcomes)| outcomes);
    if rated.is_empty() { Ok(()) } else { say(&table::sensitivity(all)?) }
}

/// What was measured in one part, and what the default chooses there.
fn tables(outcomes: &RecordedOutcomes) -> Result<Vec<String>> {
    let choices = table::choices(outcomes, Assumed::default())?;
    let measured = table::measured(outcomes, Assumed::default());
    Ok([choices].into_iter().chain(measured).collect())
}

#[cfg(test)]
mod tests;
