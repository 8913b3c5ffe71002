//! Stores what a search measured, for plans of the same workload.

use anyhow::{Context as _, Result};
use netsilo_decide::plan::measured_outcome::{
    BestCandidate, MeasuredOutcome, MeasuredState, SCHEMA,
};
use netsilo_model::change::Change;
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::signature::Signature;
use netsilo_model::machine::schema::NETSILO;
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::files::root::Root;
use netsilo_sys::read::machine::machine_identity;
use netsilo_trial::comparison::{Better, Scale};
use netsilo_trial::race::{OutReason, Race, RacePlan, RaceResult, Standing, Status};
use netsilo_trial::stats::Estimate;

use crate::args::outcomes::{OutcomesDir, signature, since_1970};
use crate::tell::exit::in_words;
use crate::tell::out;
use crate::tell::words::plural;
use crate::tune::candidates::observe_live;

/// Stores the outcome of a search that has ended, or reports why it is not stored.
pub(super) fn keep_outcome(dir: &OutcomesDir, plan: &RacePlan, race: &Race) {
    let kept = measured_outcome(plan, race).and_then(|outcome| dir.keep(&outcome));
    out::note(&match kept {
        Ok(id) => format!(
            "outcome {id} is stored: netsilo plan follows it while machine and workload stay the \
             same"
        ),
        Err(why) => format!("no outcome is stored for netsilo plan: {}", in_words(&why)),
    });
}

/// The result of a search: whether a candidate won, and the best candidate.
struct SearchEnd {
    won: Option<usize>,
    best: BestCandidate,
}

/// The result of a search. Fails if the search was too short to show anything.
fn ended(plan: &RacePlan, race: &Race) -> Result<SearchEnd, String> {
    let relative = plan.rules.scale == Scale::Ratio;
    let best = |candidate: usize, change| BestCandidate {
        name: plan.candidates[candidate].name.clone(),
        change,
        relative,
    };
    if let RaceResult::Won { candidate, change } = race.result() {
        return Ok(SearchEnd { won: Some(candidate), best: best(candidate, Some(change)) });
    }
    let standings = race.standings();
    let others = || standings.iter().filter(|it| it.candidate != 0);
    let open = others().filter(|it| it.status == Status::In).count();
    if open > 0 {
        let open = plural(open, "candidate");
        return Err(format!("{open} may still be better: search longer (--for)"));
    }
    let sign = if plan.rules.better == Better::Higher { -1.0 } else { 1.0 };
    let loss = |it: &&Standing| change_of(it).map_or(f64::INFINITY, |it| sign * it.value);
    let has_failed =
        |it: &&Standing| matches!(&it.status, Status::Out { why: OutReason::Failed(_), .. });
    let measured = others().filter(|it| !has_failed(it));
    let least = measured.min_by(|a, b| loss(a).total_cmp(&loss(b)));
    let least = least.ok_or("no candidate could be measured")?;
    Ok(SearchEnd { won: None, best: best(least.candidate, change_of(least)) })
}

/// The change from the current state to a candidate: at the shared error rate, or else the change
/// for which the candidate was dropped.
fn change_of(standing: &Standing) -> Option<Estimate> {
    let of_status = match &standing.status {
        Status::Out { why, .. } => match why {
            OutReason::WorseThanPresent(change) | OutReason::NothingToGain(change) => Some(*change),
            _ => None,
        },
        Status::In => None,
    };
    standing.change.or(of_status)
}

/// The outcome, with the state that is in effect now. Fails if the outcome would be useless later.
fn measured_outcome(plan: &RacePlan, race: &Race) -> Result<MeasuredOutcome> {
    let SearchEnd { won, best } = ended(plan, race).map_err(anyhow::Error::msg)?;
    let before = plan.workload.as_ref().context("no packet was counted before the search")?;
    let (observation, costs) = (now(plan)?, Costs::default());
    let analysis = Analysis::new(&observation, &costs);
    let winner = won.map_or(&[][..], |candidate| &plan.candidates[candidate].changes);
    let tried: Vec<Change> =
        plan.candidates.iter().flat_map(|it| it.changes.iter().cloned()).collect();
    let state = MeasuredState::new(&analysis, before, winner, &tried);
    let workloads = match plan.load.as_slice() {
        [] => workloads(before, signature(&analysis, &Root::live()), !state.changes.is_empty()),
        // the command has ended
        _ => Ok(vec![before.clone()]),
    };
    Ok(MeasuredOutcome {
        schema: SCHEMA,
        netsilo: NETSILO.to_owned(),
        ended_s: since_1970().as_secs(),
        machine: machine_identity(&Root::live()).context("cannot identify this machine")?,
        objective: plan.objective.clone(),
        load: plan.load.clone(),
        windows: race.turns(),
        won: won.is_some(),
        best,
        workloads: workloads.map_err(anyhow::Error::msg)?,
        state,
    })
}

/// What is in effect now: with the live workload, or only the settings if a command was the load.
fn now(plan: &RacePlan) -> Result<Observation> {
    if plan.load.is_empty() {
        return observe_live();
    }
    let after = netsilo_sys::snapshot_here(&Root::live()).context("cannot read this machine")?;
    Ok(Observation { after, ..Observation::default() })
}

/// The signature of the workload before the search and now. Knobs of the winner may change it; a
/// placement does not.
fn workloads(
    before: &Signature,
    now: Option<Signature>,
    has_knobs: bool,
) -> Result<Vec<Signature>, String> {
    let now = now.ok_or("no packet was counted after the search")?;
    match before.differs_from(&now) {
        None => Ok(vec![before.clone()]),
        Some(_) if has_knobs => Ok(vec![before.clone(), now]),
        Some(why) => Err(format!("the workload changed during the search: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use netsilo_model::derive::signature::QueueSignature;
    use netsilo_trial::experiment::{MachineSummary, Setting};
    use netsilo_trial::race::{Counts, RaceRules, TurnEnd};

    use super::*;

    fn plan(turns: usize) -> RacePlan {
        let setting = |name: &str| Setting {
            name: name.into(),
            what: String::new(),
            changes: vec![],
            command: None,
        };
        RacePlan {
            schema: 1,
            netsilo: "0".into(),
            command: vec![],
            started_s: 0,
            machine: MachineSummary::default(),
            objective: "cpu-per-megabyte".into(),
            load: vec![],
            unit: None,
            budget: Duration::from_secs(600),
            window: Duration::from_secs(2),
            peek: Duration::from_millis(250),
            settle: Duration::ZERO,
            rules: RaceRules { turns, ..RaceRules::default() },
            workload: None,
            candidates: ["present", "auto", "spread"].map(setting).into(),
        }
    }

    /// A race in which each candidate has these values, with a little noise.
    fn race(plan: &RacePlan, values: [f64; 3]) -> Race {
        let mut race = Race::new(plan.rules, plan.candidates.len());
        while let Some(turn) = race.next_turn() {
            let noise = 1.0 + 0.001 * ((race.turns() * 7 % 5) as f64 - 2.0);
            race.end(TurnEnd::Value(values[turn.candidate] * noise), Counts::new());
        }
        race
    }

    #[test]
    fn a_winner_is_an_outcome_and_so_is_a_present_state_that_nothing_beats() {
        let plan = plan(200);
        let end = ended(&plan, &race(&plan, [100.0, 90.0, 120.0])).unwrap();
        assert_eq!((end.won, end.best.name.as_str(), end.best.relative), (Some(1), "auto", true));
        let change = end.best.change.unwrap().value;
        assert!((change + 0.1).abs() < 0.01, "{change}");
        let end = ended(&plan, &race(&plan, [100.0, 103.0, 102.0])).unwrap();
        let change = end.best.change.unwrap().value;
        assert!(end.won.is_none() && (0.015..0.035).contains(&change), "{change}");
        // far worse than the guard rail allows: out before there is an interval
        let end = ended(&plan, &race(&plan, [100.0, 130.0, 120.0])).unwrap();
        assert_eq!((end.won, end.best.change), (None, None));
    }

    #[test]
    fn a_search_that_was_too_short_is_no_outcome() {
        let plan = plan(8);
        let why = ended(&plan, &race(&plan, [100.0, 99.9, 100.0])).err().unwrap();
        assert_eq!(why, "1 candidate may still be better: search longer (--for)");
    }

    #[test]
    fn a_workload_that_changed_by_itself_is_no_outcome() {
        let with = |packets_per_s| Signature {
            queues: vec![QueueSignature {
                netdev: "eth0".into(),
                of: 1,
                packets_per_s,
                ..QueueSignature::default()
            }],
            ..Signature::default()
        };
        let (before, other) = (with(1e3), with(1e5));
        assert!(workloads(&before, None, true).is_err());
        assert_eq!(workloads(&before, Some(with(1.1e3)), false), Ok(vec![before.clone()]));
        let both = vec![before.clone(), other.clone()];
        assert_eq!(workloads(&before, Some(other.clone()), true), Ok(both));
        let why = workloads(&before, Some(other), false).unwrap_err();
        assert!(why.starts_with("the workload changed during the search: "), "{why}");
    }
}
