//! `make bench-outcome`: what the default chooses, held to what measured best.

mod args;
mod guest;
mod recorded;
mod table;
mod veth;

use std::path::PathBuf;

use anyhow::Result;
use netsilo_model::cost::assumed::Assumed;

use crate::outcome::args::Measure;
use crate::outcome::recorded::Outcomes;
use crate::say::say;

/// Arguments of `outcome`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Outcome {
    #[command(flatten)]
    measure: Measure,
    /// Measure in a guest of two sockets (emulated), not on a veth of this machine
    #[arg(long)]
    guest: bool,
    /// Save the measured rates and a bundle of each start in this folder [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Measure nothing: ask the default about these saved outcomes
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with_all = ["keep", "guest", "rounds", "seconds", "looks"]
    )]
    from: Vec<PathBuf>,
}

/// Measures, or reads what was measured, and prints tables.
pub(crate) fn run(args: &Outcome) -> Result<()> {
    let temporary = tempfile::tempdir()?;
    let mut folders = args.from.clone();
    if folders.is_empty() {
        let folder = args.keep.clone().unwrap_or_else(|| temporary.path().to_owned());
        std::fs::create_dir_all(&folder)?;
        let record = if args.guest { guest::record } else { veth::record };
        record(&args.measure, &folder)?;
        folders.push(folder);
    }
    let all: Vec<Outcomes> = folders.iter().map(|it| Outcomes::read(it)).collect::<Result<_>>()?;
    for outcomes in &all {
        say(&format!("{}\n", table::choices(outcomes, Assumed::default())?))?;
    }
    say(&table::sensitivity(&all)?)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn recorded(name: &str) -> Outcomes {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/outcomes");
        Outcomes::read(&folder.join(name)).unwrap()
    }

    /// `docs/outcomes.md`, with tables made narrow: it may align its columns in its own way.
    fn documented() -> String {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/outcomes.md");
        narrow(&std::fs::read_to_string(docs).unwrap())
    }

    fn narrow(text: &str) -> String {
        text.split_whitespace().filter(|word| !word.starts_with("|-")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_default_chooses_what_measured_best_in_the_guest() {
        assert_eq!(recorded("guest").regrets(Assumed::default()).unwrap(), [0.0, 0.0]);
    }

    #[test]
    fn the_start_does_not_matter_in_a_guest() {
        let lab = recorded("lab");
        for load in &lab.recorded.loads {
            assert_eq!(load.starts.len(), 5);
            let chosen = lab.chosen(load, Assumed::default()).unwrap();
            let regrets: Vec<f64> = chosen.iter().map(|it| load.regret(*it)).collect();
            assert!(regrets.iter().all(|it| *it <= 0.05), "{}: {regrets:?}", load.name);
        }
    }

    #[test]
    fn the_regret_is_within_the_goal_and_as_documented() {
        let all = ["guest", "lab", "veth"].map(recorded);
        let regrets = all[2].regrets(Assumed::default()).unwrap();
        let mean = regrets.iter().sum::<f64>() / regrets.len() as f64;
        assert!(mean <= 0.05 && regrets.iter().all(|regret| *regret <= 0.15), "{regrets:?}");

        let mut tables = vec![table::sensitivity(&all).unwrap()];
        tables.extend(all.iter().map(|it| table::choices(it, Assumed::default()).unwrap()));
        let documented = documented();
        for table in tables {
            let (rows, summary) = table.split_once("\n\n").unwrap_or((&table, ""));
            assert!(documented.contains(&narrow(rows)), "not in docs/outcomes.md:\n{table}");
            assert!(documented.contains(summary), "not in docs/outcomes.md: {summary}");
        }
    }
}
