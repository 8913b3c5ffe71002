//! The built-in parameters against the published experiments (`make predict-score` has the table).

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

#[path = "../examples/score/cells.rs"]
mod cells;

use cells::{Cell, Kind};
use netsilo_predict::interval::Draws;
use netsilo_predict::parameters::Table;

fn judged() -> Vec<(Cell, f64)> {
    let values = Table::built_in().unwrap().values();
    let cells = cells::all().unwrap();
    cells.into_iter().map(|cell| (cell.predicted(&values), cell)).map(|(p, c)| (c, p)).collect()
}

fn errors(of: impl Fn(Kind) -> bool, error: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    judged()
        .iter()
        .filter(|(cell, _)| of(cell.kind))
        .map(|(cell, predicted)| error(*predicted, cell.published).abs())
        .collect()
}

fn mean(errors: &[f64]) -> f64 {
    errors.iter().sum::<f64>() / errors.len() as f64
}

#[test]
fn every_gain_has_the_right_sign_and_they_are_off_by_12_points_on_average() {
    for (cell, predicted) in judged() {
        if cell.kind == Kind::Gain {
            assert_eq!(predicted > 0.0, cell.published > 0.0, "{}: {predicted}", cell.name);
        }
    }
    let errors = errors(|kind| kind == Kind::Gain, |predicted, published| predicted - published);
    assert!(errors.len() >= 10 && mean(&errors) <= 0.12, "{errors:?}");
}

#[test]
fn rates_are_off_by_6_percent_on_average_and_none_by_25() {
    let errors =
        errors(|kind| kind == Kind::Rate, |predicted, published| predicted / published - 1.0);
    assert!(errors.len() >= 7 && mean(&errors) <= 0.06, "{errors:?}");
    assert!(errors.iter().all(|error| *error <= 0.25), "{errors:?}");
}

#[test]
fn booked_softirq_time_is_off_by_4_points_of_a_cpu_on_average() {
    let errors = errors(
        |kind| matches!(kind, Kind::Softirq(_)),
        |predicted, published| predicted - published,
    );
    assert!(errors.len() >= 50 && mean(&errors) <= 0.04, "{errors:?}");
}

#[test]
fn intervals_hold_most_cells_and_are_not_wider_than_a_quarter_to_each_side() {
    let draws = Draws::new(&Table::built_in().unwrap(), 200, 1);
    let (mut held, mut all) = (0, 0);
    for (cell, _) in judged() {
        let Some(interval) = cell.interval(&draws) else { continue };
        all += 1;
        held += usize::from((interval.low..=interval.high).contains(&cell.published));
        if cell.kind == Kind::Rate {
            let half = (interval.high - interval.low) / 2.0 / interval.value;
            assert!(half <= 0.25, "{} ({}): {half}", cell.name, cell.group);
        }
    }
    assert!(held * 100 >= all * 80, "{held} of {all}");
}
