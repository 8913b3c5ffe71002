//! `netsilo tune --outcomes`, `--forget`: lists and removes the outcomes that earlier searches
//! stored for `plan`.

use std::time::Duration;

use anyhow::{Context as _, Result};
use netsilo_decide::plan::measured_outcome::{MeasuredBasis, MeasuredOutcome, age_in_words};
use netsilo_model::cost::calibration::MachineIdentity;
use netsilo_sys::files::root::Root;
use netsilo_sys::outcomes;
use netsilo_sys::read::machine::machine_identity;
use serde::Serialize;

use crate::args::outcomes::{OutcomesDir, guides_plans, since_1970};
use crate::tell::exit::{Exit, ExitError};
use crate::tell::out;
use crate::tell::words::plural;
use crate::views::table::{table, trim_lines};

/// An outcome as it is listed.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ListedOutcome {
    id: String,
    /// Why `plan` never follows it here; `None` if it does for the same workload.
    not_followed: Option<String>,
    #[serde(flatten)]
    outcome: MeasuredOutcome,
}

/// All outcomes.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct OutcomeList {
    schema: u32,
    outcomes: Vec<ListedOutcome>,
}

/// Lists the outcomes.
pub(super) fn list(dir: &OutcomesDir, json: bool) -> Result<Exit> {
    let machine = machine_identity(&Root::live()).context("cannot identify this machine")?;
    let (kept, notes) = dir.load();
    notes.iter().for_each(|note| out::note(note));
    let listed = kept.into_iter().map(|kept| ListedOutcome {
        id: kept.id,
        not_followed: not_followed(&kept.outcome, &machine),
        outcome: kept.outcome,
    });
    let list = OutcomeList { schema: 1, outcomes: listed.collect() };
    if json {
        out::json(&list)?;
    } else {
        out::text(&render(&list.outcomes, since_1970()));
    }
    Ok(Exit::Printed)
}

/// Why plans on this machine never follow a given outcome.
fn not_followed(outcome: &MeasuredOutcome, machine: &MachineIdentity) -> Option<String> {
    let objective = &outcome.objective;
    let of_objective = || {
        let why = format!("plan does not improve {objective} alone");
        (!guides_plans(objective)).then_some(why)
    };
    let of_machine = outcome.differs_in_machine(machine);
    of_machine.map(|why| format!("another machine: {why}")).or_else(of_objective)
}

/// Removes one outcome or all, including damaged ones.
pub(super) fn forget(dir: &OutcomesDir, which: &str) -> Result<Exit> {
    let path = dir.path();
    let cannot = || format!("cannot read {}", path.display());
    let mut ids = outcomes::ids(path).with_context(cannot)?;
    if which != "all" {
        ids.retain(|id| id == which);
        if ids.is_empty() {
            let why = format!("no outcome has the id {which}; netsilo tune --outcomes lists them");
            return Err(ExitError(Exit::Refused, why).into());
        }
    }
    for id in &ids {
        outcomes::forget(path, id)?;
    }
    out::text(&format!("{} removed\n", plural(ids.len(), "outcome")));
    Ok(Exit::Done)
}

/// One line per outcome. `now` is the time since 1970.
fn render(outcomes: &[ListedOutcome], now: Duration) -> String {
    if outcomes.is_empty() {
        return "no outcome is stored: netsilo tune measures one\n".into();
    }
    let mut rows = table(&["id", "age", "objective", "windows", "result", "change", ""], |name| {
        name == "windows"
    });
    for ListedOutcome { id, not_followed, outcome } in outcomes {
        let MeasuredBasis { age_s, best, won, windows, .. } = outcome.basis(id, outcome.age(now));
        let result = if won { best.name.clone() } else { format!("present; next: {}", best.name) };
        rows.add_row([
            id.as_str(),
            &age_in_words(age_s),
            &outcome.objective,
            &windows.to_string(),
            &result,
            &best.change_in_words(),
            not_followed.as_deref().unwrap_or_default(),
        ]);
    }
    format!("{}\n", trim_lines(&rows))
}

#[cfg(test)]
mod tests {
    use netsilo_decide::plan::measured_outcome::{BestCandidate, MeasuredState, SCHEMA};
    use netsilo_trial::stats::Estimate;

    use super::*;

    fn machine(hostname: &str) -> MachineIdentity {
        MachineIdentity {
            hostname: hostname.into(),
            cpu_model: "Some CPU".into(),
            cpus: 8,
            kernel: "6.12.1".into(),
            virtual_machine: None,
        }
    }

    fn measured_outcome(hostname: &str, objective: &str, won: bool) -> MeasuredOutcome {
        let value = if won { -0.12 } else { 0.12 };
        MeasuredOutcome {
            schema: SCHEMA,
            netsilo: "0".into(),
            ended_s: 1_000,
            machine: machine(hostname),
            objective: objective.into(),
            load: vec![],
            windows: 120,
            won,
            best: BestCandidate {
                name: "auto".into(),
                change: Some(Estimate { value, low: value - 0.06, high: value + 0.06 }),
                relative: true,
            },
            workloads: vec![],
            state: MeasuredState::default(),
        }
    }

    #[test]
    fn each_outcome_has_its_age_its_result_and_why_plan_does_not_follow_it() {
        let listed = |(at, outcome): (usize, MeasuredOutcome)| ListedOutcome {
            id: format!("20260102T03040{at}Z"),
            not_followed: not_followed(&outcome, &machine("db1")),
            outcome,
        };
        let all = [
            measured_outcome("db1", "cpu-per-megabyte", true),
            measured_outcome("db1", "latency", false),
            measured_outcome("db1", "ipis-per-packet", true),
            measured_outcome("db2", "cpu-per-megabyte", true),
        ];
        let all: Vec<ListedOutcome> = all.into_iter().enumerate().map(listed).collect();
        insta::assert_snapshot!(render(&all, Duration::from_secs(1_000 + 3 * 3600 + 5)));
        assert_eq!(
            render(&[], Duration::ZERO),
            "no outcome is stored: netsilo tune measures one\n"
        );
    }
}
