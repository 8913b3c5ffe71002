//! Settings of this machine or a bundle's machine, under the observed load.

use std::path::Path;

use anyhow::{Result, anyhow};
use netsilo_decide::plan::selection::nearest;
use netsilo_decide::plan::{Goal, Plan, plan};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::snapshot::observation::Observation;
use netsilo_predict::live::forecast::Forecast;
use netsilo_predict::live::proposal::Proposal;
use netsilo_sys::bpf::tracer::Options;
use serde::Deserialize as _;

use crate::args::costs::costs_for;
use crate::args::goal_keys::GoalKeys;
use crate::args::named;
use crate::args::plan::load;
use crate::forecast::forecast_of;
use crate::ndjson::{self, Answer};
use crate::tell::exit::{Exit, ExitError, in_words};
use crate::tell::out;
use crate::tell::presentation::Presentation;
use crate::tell::versioned::Versioned;
use crate::tell::words::wrong_key;
use crate::verbs::predict::arguments::{Args, split};
use crate::verbs::predict::device_keys::{DEVICE_KEYS, DeviceKeys};
use crate::views;

/// A setting by name.
enum Asked {
    /// What `netsilo plan` would do, plus knobs of devices.
    Goal(String, Box<Goal>, DeviceKeys),
    /// A plan from a file.
    Plan(String, Box<Plan>),
}

/// Observes, predicts and prints.
pub(super) fn run(args: &Args) -> Result<Exit> {
    let question = Question { asked: asked(args)?, load: args.load.unwrap_or(1.0) };
    if args.ndjson {
        // Weights measured here do not apply to other machines.
        let costs = Costs::default();
        return ndjson::filter(|observation| {
            match question.forecast(observation, &costs, |_| ()) {
                Ok(forecast) => Answer::Forecast(Box::new(forecast)),
                Err(why) => Answer::Error(in_words(&why)),
            }
        });
    }
    let observation = args.observe.observe_with(Options::default())?;
    let costs = costs_for(args.observe.is_bundle())?;
    let forecast = question.forecast(&observation, &costs, out::note)?;
    if args.json {
        out::json(&Versioned::first(forecast))?
    } else {
        let presentation = Presentation::of_stdout();
        out::styled(&views::forecast::render(&forecast, args.per_cpu, presentation));
    }
    Ok(Exit::Printed)
}

/// The question about a machine.
struct Question {
    asked: Vec<Asked>,
    load: f64,
}

impl Question {
    /// The answer. `note` receives what a plan refuses.
    fn forecast(
        &self,
        observation: &Observation,
        costs: &Costs,
        note: impl Fn(&str),
    ) -> Result<Forecast> {
        let analysis = Analysis::new(observation, costs);
        let proposals = self.proposals(&analysis, &note);
        if proposals.is_empty() {
            let why = "no setting is left to predict, because each was refused".to_owned();
            return Err(ExitError(Exit::Refused, why).into());
        }
        forecast_of(&analysis, self.load, &proposals)
    }

    /// The requested settings on one machine, without what its plan refuses.
    fn proposals(&self, analysis: &Analysis<'_>, note: &impl Fn(&str)) -> Vec<Proposal> {
        let proposal = |asked: &Asked| {
            let (name, plan, keys) = match asked {
                Asked::Goal(name, goal, keys) => (name, plan(analysis, goal), Some(keys)),
                Asked::Plan(name, plan) => (name, Plan::clone(plan), None),
            };
            for refusal in &plan.refusals {
                note(&format!("{name}: {}: {}", refusal.subject, refusal.reason));
            }
            let of_devices = keys.map(|keys| keys.changes(analysis.after(), note));
            let (of_devices, missing) = of_devices.unwrap_or_default();
            let changes = [plan.changes, of_devices].concat();
            let is_refused = changes.is_empty() && (!plan.refusals.is_empty() || missing > 0);
            (!is_refused).then(|| Proposal::new(name, analysis.after(), &changes))
        };
        self.asked.iter().filter_map(proposal).collect()
    }
}

/// What the arguments request. Without arguments, netsilo's own plan.
fn asked(args: &Args) -> Result<Vec<Asked>> {
    let (names, keys) = split(&args.settings);
    let mut asked = Vec::new();
    for name in names {
        let goal = if name == "plan" { Goal::default() } else { by_algorithm(&name)? };
        asked.push(Asked::Goal(name, Box::new(ours(goal)), DeviceKeys::default()));
    }
    if !keys.is_empty() {
        let name: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let (of_devices, keys) = DeviceKeys::take(&keys)?;
        let goal = Box::new(ours(by_keys(&keys)?));
        asked.push(Asked::Goal(name.join(" "), goal, of_devices));
    }
    for path in &args.plan {
        asked.push(Asked::Plan(file_name(path), Box::new(load(path)?)));
    }
    if asked.is_empty() {
        let goal = Box::new(ours(Goal::default()));
        asked.push(Asked::Goal("plan".to_owned(), goal, DeviceKeys::default()));
    }
    Ok(asked)
}

/// The goal as if no other program wrote its knobs. This is safe because nothing is written.
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
        let why =
            format!("unknown setting {name}: give `plan`, an algorithm ({names}), or KEY=VALUE");
        anyhow!(ExitError(Exit::Usage, why))
    })?;
    Ok(Goal { algorithm: known, ..Goal::default() })
}

/// Keys of a goal that a forecast considers.
const GOAL_KEYS: [&str; 9] =
    ["cpus", "exclude", "netdevs", "algorithm", "irqs", "rps", "rfs", "arfs", "xps"];

/// The names of settings, and the keys with `=`.
pub(crate) fn completions() -> Vec<String> {
    let names = ["plan"].into_iter().chain(named::algorithm_names()).map(str::to_owned);
    let keys = GOAL_KEYS.iter().chain(&DEVICE_KEYS).map(|key| format!("{key}="));
    names.chain(keys).collect()
}

/// Keys that limit where interrupts may go.
const OF_PLACES: [&str; 3] = ["cpus", "exclude", "netdevs"];

/// The goal with these keys of `[goal]`. If keys other than those of places are given, interrupts
/// stay where they are, unless an algorithm is named.
fn by_keys(keys: &[(String, String)]) -> Result<Goal> {
    if let Some((_, cpus)) = keys.iter().find(|(key, _)| key == "irq") {
        let why = format!(
            "--setting: irq is a key of --scenario; for an observed machine write cpus={cpus}"
        );
        return Err(ExitError(Exit::Usage, why).into());
    }
    let known = [&GOAL_KEYS[..], &DEVICE_KEYS].concat();
    let unknown = keys.iter().find(|(key, _)| !known.contains(&key.as_str()));
    if let Some((key, _)) = unknown {
        let meant = match nearest(key, &known) {
            Some(known) => format!("did you mean {known}?"),
            None => format!("known are {}", known.join(", ")),
        };
        return Err(ExitError(Exit::Usage, format!("--setting: unknown key {key}; {meant}")).into());
    }
    let mut table = toml::Table::new();
    for (key, text) in keys {
        let value = text.parse::<bool>().map_or_else(|_| text.as_str().into(), Into::into);
        table.insert(key.clone(), value);
    }
    let of_places = table.keys().all(|key| OF_PLACES.contains(&key.as_str()));
    let moves = of_places || table.contains_key("algorithm") || table.contains_key("irqs");
    let keys = GoalKeys::deserialize(table).map_err(|why| {
        anyhow!(ExitError(Exit::Usage, format!("--setting: {}", wrong_key(why.message()))))
    })?;
    Ok(keys.over(Goal { irqs: moves, ..Goal::default() }))
}
