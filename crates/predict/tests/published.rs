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
    let predicted = cells::predicted(&cells, &values);
    cells.into_iter().zip(predicted).collect()
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

/// Rows of 1-byte messages: the best published setting is the one that is predicted best, or within
/// 3 % of it.
#[test]
fn the_best_setting_of_each_row_of_1_byte_messages_is_predicted() {
    let judged = judged();
    let gains: Vec<_> = judged.iter().filter(|(cell, _)| cell.kind == Kind::Gain).collect();
    for row in ["TCP_RR 1 B x 100,", "TCP_RR 1 B x 1500,", "UDP_RR 1 B x 1500,"] {
        let row: Vec<_> = gains.iter().filter(|(cell, _)| cell.name.starts_with(row)).collect();
        let best = row.iter().max_by(|a, b| a.0.published.total_cmp(&b.0.published)).unwrap();
        let most = row.iter().map(|(_, predicted)| *predicted).fold(0.0, f64::max);
        assert!(1.0 + best.1 >= 0.97 * (1.0 + most), "{}: {} of {most}", best.0.name, best.1);
    }
}

#[test]
fn rates_are_off_by_6_percent_on_average_and_none_by_25() {
    let errors =
        errors(|kind| kind == Kind::Rate, |predicted, published| predicted / published - 1.0);
    assert!(errors.len() >= 7 && mean(&errors) <= 0.06, "{errors:?}");
    assert!(errors.iter().all(|error| *error <= 0.25), "{errors:?}");
    let near = errors.iter().filter(|error| **error <= 0.12).count();
    assert!(near * 10 >= errors.len() * 9, "{errors:?}");
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
    let cells = cells::all().unwrap();
    for (cell, interval) in cells.iter().zip(cells::intervals(&cells, &draws)) {
        let Some(interval) = interval else { continue };
        all += 1;
        held += usize::from((interval.low..=interval.high).contains(&cell.published));
        let base = match cell.kind {
            Kind::Rate => Some(interval.value),
            Kind::Gain => Some(1.0 + interval.value),
            _ => None,
        };
        if let Some(base) = base {
            let half = (interval.high - interval.low) / 2.0 / base;
            assert!(half <= 0.25, "{} ({}): {half}", cell.name, cell.group);
        }
    }
    assert!((80..=97).contains(&(held * 100 / all)), "{held} of {all}");
}
