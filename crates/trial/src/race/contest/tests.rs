//! How a race handles known windows.

use super::*;
use crate::experiment::{MachineSummary, Setting};
use std::time::Duration;

const RULES: RaceRules = RaceRules {
    turns: 100,
    error_rate: 0.05,
    smallest_relevant: 0.01,
    never_worse: 0.05,
    streak: 2,
    scale: crate::comparison::Scale::Ratio,
    better: crate::comparison::Better::Lower,
    seed: 3,
};

fn objective(value: f64) -> Peek {
    Peek { objective: Some(value), ..Peek::default() }
}

/// Measures one window of four parts. `cost` gets the candidate and the number of windows.
fn window(race: &mut Race, cost: &mut impl FnMut(usize, usize) -> f64) -> Option<RaceRecord> {
    let turn = race.next_turn()?;
    let (mut peeks, mut end) = (Vec::new(), None);
    for _ in 0..4 {
        let peek = objective(cost(turn.candidate, race.turns()));
        peeks.push(peek);
        if let Some(breach) = race.peek(&peek) {
            end = Some(TurnEnd::Broke(breach));
            break;
        }
    }
    let values: Vec<f64> = peeks.iter().filter_map(|peek| peek.objective).collect();
    let end = end.unwrap_or_else(|| TurnEnd::Value(median(&values).unwrap_or(0.0)));
    race.end(end.clone(), Counts::new());
    Some(RaceRecord { candidate: turn.candidate, started_ms: 0, peeks, end, counts: Counts::new() })
}

fn run(candidates: usize, mut cost: impl FnMut(usize, usize) -> f64) -> (Race, Vec<RaceRecord>) {
    let mut race = Race::new(RULES, candidates);
    let mut records = Vec::new();
    while let Some(record) = window(&mut race, &mut cost) {
        records.push(record);
    }
    (race, records)
}

/// Values that are never quite the same.
fn wave(window: usize) -> f64 {
    1.0 + 0.002 * ((window * 7 % 5) as f64 - 2.0)
}

#[test]
fn a_clear_winner_ends_the_race_before_the_budget() {
    let (race, records) = run(3, |it, n| [100.0, 90.0, 103.0][it] * wave(n));
    let RaceResult::Won { candidate: 1, change } = race.result() else {
        panic!("{:?}", race.result())
    };
    assert!(change.low < -0.05 && change.high < 0.0 && (change.value + 0.1).abs() < 0.01);
    assert!(records.len() < 60, "{}", records.len());
    let standings = race.standings();
    assert_eq!((standings[0].candidate, standings[0].change), (0, None));
    assert!(standings[1].is_better && standings[1].status == Status::In);
    let Status::Out { why: OutReason::Outranked { change }, round } = standings[2].status else {
        panic!("{:?}", standings[2])
    };
    assert!((change - 0.03).abs() < 0.01 && round < 5, "{change} {round}");
    // the interval is of windows after the others were dropped
    assert!(standings[1].windows > round as usize + 6);
}

#[test]
fn the_worse_half_is_dropped_until_one_is_left_and_a_runner_up_has_a_final_too() {
    // candidate 3 is good only as long as others are measured
    let (race, _) = run(5, |it, n| match it {
        3 if n < 12 => 80.0,
        3 => 100.0,
        it => [100.0, 99.5, 90.0, 0.0, 100.5][it],
    } * wave(n));
    assert!(
        matches!(race.result(), RaceResult::Won { candidate: 2, .. }),
        "{:?}",
        race.standings()
    );
    let out = &race.standings()[3].status;
    assert!(matches!(out, Status::Out { why: OutReason::NothingToGain(_), .. }), "{out:?}");
}

#[test]
fn a_short_race_measures_each_candidate_once_and_the_best_one_in_a_final() {
    let turns = RULES.least_turns(9);
    let mut race = Race::new(RaceRules { turns, ..RULES }, 9);
    while window(&mut race, &mut |it, n| if it == 5 { 80.0 } else { 100.0 } * wave(n)).is_some() {}
    assert!(turns < 30 && matches!(race.result(), RaceResult::Won { candidate: 5, .. }));
    let windows = race.standings().iter().map(|it| it.windows).collect::<Vec<_>>();
    assert!(windows[5] > 6 && windows.iter().filter(|it| **it == 1).count() == 7, "{windows:?}");
}

#[test]
fn equal_candidates_end_without_a_winner() {
    let (race, _) = run(3, |it, n| 100.0 * wave(n + it));
    assert_eq!(race.result(), RaceResult::NoDifferenceShown);
    let nothing =
        |it: &Standing| matches!(it.status, Status::Out { why: OutReason::NothingToGain(_), .. });
    assert!(race.standings()[1..].iter().any(nothing), "{:?}", race.standings());
    assert!(race.standings()[1..].iter().all(|it| it.status != Status::In));
}

#[test]
fn a_candidate_that_breaks_a_rail_is_taken_back_within_two_parts_and_is_out() {
    let (race, records) = run(3, |it, n| [100.0, 90.0, 150.0][it] * wave(n));
    let broke: Vec<_> = records.iter().filter(|it| it.candidate == 2).collect();
    assert_eq!((broke.len(), broke[0].peeks.len()), (1, 2));
    let Status::Out { round, why: OutReason::Rail(breach) } = &race.standings()[2].status else {
        panic!("{:?}", race.standings()[2])
    };
    assert_eq!((*round, breach.rail), (0, Rail::Objective));
    // the current state is measured directly after it
    let at = records.iter().position(|it| it.candidate == 2).unwrap();
    assert_eq!(records[at + 1].candidate, 0);
    assert!(matches!(race.result(), RaceResult::Won { candidate: 1, .. }));
}

#[test]
fn a_candidate_is_excused_once_when_the_present_state_is_beyond_the_limit_too() {
    // everything is slow in two windows after the first window of candidate 1 has begun
    let mut slow = None;
    let (race, records) = run(2, |it, n| {
        let since = *slow.get_or_insert(if it == 1 { n } else { usize::MAX });
        if it == 1 && since == usize::MAX {
            slow = Some(n);
        }
        let is_slow = slow.is_some_and(|from| from != usize::MAX && n < from + 2);
        [100.0, 90.0][it] * wave(n) * if is_slow { 2.0 } else { 1.0 }
    });
    assert!(records.iter().any(|it| matches!(it.end, TurnEnd::Broke(_))));
    assert!(matches!(race.result(), RaceResult::Won { candidate: 1, .. }));
}

#[test]
fn a_failed_candidate_is_out_and_a_lost_window_is_not() {
    let mut race = Race::new(RULES, 3);
    let mut lost = false;
    while let Some(turn) = race.next_turn() {
        let end = match turn.candidate {
            2 => TurnEnd::Failed("refused".into()),
            1 if !std::mem::replace(&mut lost, true) => TurnEnd::Lost("nothing arrived".into()),
            it => TurnEnd::Value([100.0, 80.0][it] * wave(race.turns())),
        };
        race.end(end, Counts::new());
    }
    assert!(matches!(race.result(), RaceResult::Won { candidate: 1, .. }));
    let failed = OutReason::Failed("refused".into());
    assert_eq!(race.standings()[2].status, Status::Out { round: 0, why: failed });
}

#[test]
fn a_candidate_under_which_nothing_arrives_is_out_after_three_windows() {
    let mut race = Race::new(RULES, 2);
    while let Some(turn) = race.next_turn() {
        let end = match turn.candidate {
            0 => TurnEnd::Value(100.0),
            _ => TurnEnd::Lost("nothing was received".into()),
        };
        race.end(end, Counts::new());
    }
    let lost = OutReason::Failed("nothing was received".into());
    assert!(race.turns() < 10);
    assert_eq!(race.standings()[1].status, Status::Out { round: 2, why: lost });
}

#[test]
fn a_final_that_ends_between_two_looks_is_judged_as_it_is() {
    let mut race = Race::new(RULES, 2);
    for _ in 0..REFERENCE_TURNS + 2 * 6 {
        window(&mut race, &mut |it, n| [100.0, 80.0][it] * wave(n));
    }
    assert_eq!(race.result(), RaceResult::NoDifferenceShown);
    race.out_of_time();
    assert!(
        matches!(race.result(), RaceResult::Won { candidate: 1, .. }),
        "{:?}",
        race.standings()
    );
}

#[test]
fn a_count_shows_a_difference_that_the_objective_hides_and_never_decides() {
    let rules = RaceRules { turns: 30, ..RULES };
    let mut race = Race::new(rules, 2);
    assert_eq!(race.outlook(), Outlook { windows: 28, least_gain: None });
    while let Some(turn) = race.next_turn() {
        let noise = 1.0 + 0.1 * ((race.turns() * 7 % 5) as f64 - 2.0);
        let ipis = [3.0, 0.1][turn.candidate] * wave(race.turns());
        let counts = [(WorkloadMeasure::IpisPerPacket, ipis)];
        race.end(TurnEnd::Value(100.0 * noise), counts.into());
        let least = race.outlook().least_gain;
        assert!(race.turns() < 10 || least.is_some_and(|it| it > 0.02), "{least:?}");
    }
    assert_eq!(race.result(), RaceResult::NoDifferenceShown);
    let [CountChange { candidate: 1, measure, change, is_better: true }] = &race.counts()[..]
    else {
        panic!("{:?}", race.counts())
    };
    assert_eq!(*measure, WorkloadMeasure::IpisPerPacket);
    assert!((change.value + 2.9).abs() < 0.05 && change.high < -2.5, "{change:?}");
}

#[test]
fn the_same_records_lead_to_the_same_race_and_others_are_refused() {
    let (mut whole, records) = run(4, |it, n| [100.0, 95.0, 150.0, 101.0][it] * wave(n));
    let setting = |name: &str| Setting {
        name: name.into(),
        what: String::new(),
        changes: vec![],
        command: None,
    };
    let plan = RacePlan {
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
        rules: RULES,
        workload: None,
        candidates: ["present", "a", "b", "c"].map(setting).into(),
    };
    assert_eq!(plan.check(), Ok(()));
    let text = serde_json::to_string(&records).unwrap();
    let records: Vec<RaceRecord> = serde_json::from_str(&text).unwrap();
    for part in [0, 5, records.len()] {
        let mut race = Race::replay(&plan, &records[..part]).unwrap();
        let next = records.get(part).map(|it| it.candidate);
        assert_eq!(race.next_turn().map(|turn| turn.candidate), next);
    }
    let again = Race::replay(&plan, &records).unwrap();
    assert_eq!((again.result(), again.standings()), (whole.result(), whole.standings()));
    assert_eq!(whole.next_turn(), None);
    let wrong = Race::replay(&plan, &records[1..]).unwrap_err();
    assert!(wrong.starts_with("record ") && wrong.contains("is of candidate"), "{wrong}");
    let mut plan = plan;
    plan.rules.turns = 0;
    assert_eq!(plan.check(), Err("turns must be from 1 to 1000000".into()));
    plan.candidates.truncate(1);
    assert_eq!(plan.check(), Err("1 candidates; 2 to 1000 are read".into()));
}
