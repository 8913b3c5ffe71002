//! Settings of this machine or a bundle's, under the load that was observed.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use netsilo_decide::plan::{Goal, Plan, plan};
use netsilo_model::change::apply_to;
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::observation::Observation;
use netsilo_predict::interval::Draws;
use netsilo_predict::live::forecast::{Forecast, forecast};
use netsilo_predict::live::work::Work;
use netsilo_predict::parameters::Table;
use netsilo_sys::bpf::tracer::Options;
use serde::Deserialize as _;

use crate::args::costs::costs_for;
use crate::args::goal_keys::GoalKeys;
use crate::args::named;
use crate::args::plan::load;
use crate::tell::exit::{Exit, ExitError};
use crate::tell::out;
use crate::tell::presentation::Presentation;
use crate::tell::versioned::Versioned;
use crate::tell::words::wrong_key;
use crate::verbs::predict::arguments::{Args, DRAWS, split};
use crate::views;

/// A setting by name.
enum Asked {
    /// What `netsilo plan` would do.
    Goal(String, Box<Goal>),
    /// A plan from a file.
    Plan(String, Box<Plan>),
}

/// Observes, predicts and prints.
pub(super) fn run(args: &Args) -> Result<Exit> {
    let asked = asked(args)?;
    let observation = args.observe.observe_with(Options::default())?;
    let costs = costs_for(args.observe.is_bundle())?;
    let analysis = Analysis::new(&observation, &costs);
    let settings: Vec<(String, Snapshot)> = asked
        .into_iter()
        .map(|it| match it {
            Asked::Goal(name, goal) => (name, plan(&analysis, &goal)),
            Asked::Plan(name, plan) => (name, *plan),
        })
        .map(|(name, plan)| {
            for refusal in &plan.refusals {
                out::note(&format!("{name}: {}: {}", refusal.subject, refusal.reason));
            }
            (name, apply_to(&observation.after, &plan.changes))
        })
        .collect();
    let forecast = foretell(&observation, &costs, args.load.unwrap_or(1.0), &settings, args.seed)?;
    match args.json {
        true => out::json(&Versioned::first(forecast))?,
        false => {
            let presentation = Presentation::of_stdout();
            out::styled(&views::forecast::render(&forecast, args.per_cpu, presentation))?;
        }
    }
    Ok(Exit::Ok)
}

/// Foretells what each of `settings` would do to the observed load.
pub(crate) fn foretell(
    observation: &Observation,
    costs: &Costs,
    load: f64,
    settings: &[(String, Snapshot)],
    seed: u64,
) -> Result<Forecast> {
    let analysis = Analysis::new(observation, costs);
    let work = Work::new(&analysis).context("cannot predict")?;
    let table = Table::built_in().map_err(anyhow::Error::msg)?;
    Ok(forecast(&work, load, settings, &Draws::new(&table, DRAWS, seed)))
}

/// What the arguments ask for; without any, netsilo's own plan.
fn asked(args: &Args) -> Result<Vec<Asked>> {
    let (names, keys) = split(&args.settings);
    let mut asked = Vec::new();
    for name in names {
        let goal = if name == "plan" { Goal::default() } else { by_algorithm(&name)? };
        asked.push(Asked::Goal(name, Box::new(ours(goal))));
    }
    if !keys.is_empty() {
        let name: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
        asked.push(Asked::Goal(name.join(" "), Box::new(ours(by_keys(&keys)?))));
    }
    for path in &args.plan {
        asked.push(Asked::Plan(file_name(path), Box::new(load(path)?)));
    }
    if asked.is_empty() {
        asked.push(Asked::Goal("plan".to_owned(), Box::new(ours(Goal::default()))));
    }
    Ok(asked)
}

/// The goal as if no other program wrote its knobs: nothing is written.
fn ours(goal: Goal) -> Goal {
    Goal { even_if_owned: true, ..goal }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

fn by_algorithm(name: &str) -> Result<Goal> {
    let name = name.strip_prefix("plan:").unwrap_or(name);
    let known = named::algorithm(name).ok_or_else(|| {
        let names = named::algorithm_names().join(", ");
        let why = format!("no setting {name}: write plan, an algorithm ({names}), or KEY=VALUE");
        anyhow!(ExitError(Exit::Usage, why))
    })?;
    Ok(Goal { algorithm: known, ..Goal::default() })
}

/// The goal with these keys of `[goal]`; interrupts stay unless an algorithm is named.
fn by_keys(keys: &[(String, String)]) -> Result<Goal> {
    let mut table = toml::Table::new();
    for (key, text) in keys {
        let value = text.parse::<bool>().map_or_else(|_| text.as_str().into(), Into::into);
        table.insert(key.clone(), value);
    }
    let moves = table.contains_key("algorithm") || table.contains_key("irqs");
    let keys = GoalKeys::deserialize(table).map_err(|why| {
        anyhow!(ExitError(Exit::Usage, format!("--setting: {}", wrong_key(why.message()))))
    })?;
    Ok(keys.over(Goal { irqs: moves, ..Goal::default() }))
}
