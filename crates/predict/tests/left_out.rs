//! How far the model is off for an experiment that its parameters were fitted without, and whether
//! the built-in ones are a fit at all. evidence/predictions.md has the whole table, and says which
//! goals are not reached: here is how near they are, so a figure that gets better fails, too.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

#[path = "../examples/score/cells.rs"]
#[allow(dead_code, reason = "the program uses all of it")]
mod cells;
#[path = "../examples/score/fit.rs"]
mod fit;
#[path = "../examples/score/summary.rs"]
#[allow(dead_code, reason = "the program uses all of it")]
mod summary;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use cells::{Cell, Kind};
use fit::fit;
use netsilo_predict::parameters::Table;
use summary::{Judged, Summary, judge};

static CELLS: LazyLock<Vec<Cell>> = LazyLock::new(|| cells::all().unwrap());

/// Each cell with what the model says of it, fitted without the cell's experiment.
static LEFT_OUT: LazyLock<Vec<(&Cell, Judged)>> = LazyLock::new(|| {
    let table = Table::built_in().unwrap();
    let mut groups: BTreeMap<&str, Vec<&Cell>> = BTreeMap::new();
    CELLS.iter().for_each(|cell| groups.entry(cell.group).or_default().push(cell));
    let one = |(group, own): (&str, Vec<&'static Cell>)| {
        let without = fit(&table, CELLS.iter().filter(|cell| cell.group != group)).unwrap();
        judge(own.into_iter(), &without, 400)
    };
    groups.into_iter().flat_map(one).collect()
});

fn summary() -> Summary {
    let mut summary = Summary::default();
    LEFT_OUT.iter().for_each(|(cell, judged)| summary.add(cell.kind, judged));
    summary
}

#[test]
fn every_sign_and_the_best_setting_of_each_row_of_1_byte_messages_are_right() {
    assert_eq!(summary().signs, [10, 10]);
    for row in ["TCP_RR 1 B x 100,", "TCP_RR 1 B x 1500,", "UDP_RR 1 B x 1500,"] {
        let gains = LEFT_OUT.iter().filter(|(cell, _)| cell.kind == Kind::Gain);
        let row: Vec<_> = gains.filter(|(cell, _)| cell.name.starts_with(row)).collect();
        let best = row.iter().max_by(|a, b| a.1.published.total_cmp(&b.1.published)).unwrap();
        let most = row.iter().map(|(_, judged)| judged.predicted).fold(0.0, f64::max);
        assert!(1.0 + best.1.predicted >= 0.97 * (1.0 + most), "{}", best.0.name);
    }
}

/// The bar is 12 points.
#[test]
fn gains_are_off_by_17_points_on_average() {
    let gain = summary().gain;
    assert_eq!(gain.all.len(), 10);
    assert!((0.165..0.18).contains(&gain.mean()), "{} {:?}", gain.mean(), gain.all);
    assert!((0.5..0.58).contains(&gain.worst()), "{}", gain.worst());
}

#[test]
fn rates_are_off_by_6_percent_on_average_and_none_by_12() {
    let rate = summary().rate;
    assert!(rate.all.len() == 11 && rate.mean() <= 0.06, "{} {:?}", rate.mean(), rate.all);
    assert!(rate.worst() <= 0.12, "{}", rate.worst());
}

#[test]
fn booked_softirq_time_is_off_by_4_points_of_a_cpu_on_average() {
    let softirq = summary().softirq;
    assert!(softirq.all.len() == 56 && softirq.mean() <= 0.04, "{}", softirq.mean());
}

/// Where the scheduler puts readers is not in the model: its threads are alike on all CPUs.
#[test]
fn time_in_threads_is_off_by_8_points_of_a_cpu_on_average() {
    let tasks = summary().tasks;
    assert!(tasks.all.len() == 48 && (0.07..0.09).contains(&tasks.mean()), "{}", tasks.mean());
}

/// The bars are 80 to 97 %, and 25 % to each side.
#[test]
fn intervals_hold_71_of_73_cells_and_are_up_to_40_percent_wide_to_each_side() {
    let summary = summary();
    assert_eq!(summary.held, [71, 73]);
    let widest = summary.widths.worst();
    assert!((0.36..0.44).contains(&widest), "{widest}");
    let wide = summary.widths.all.iter().filter(|width| **width > 0.25).count();
    assert!(wide <= 6, "{:?}", summary.widths.all);
}

#[test]
fn the_built_in_parameters_are_the_fit_to_all_figures() {
    let table = Table::built_in().unwrap();
    let (built_in, new) = (table.values(), fit(&table, CELLS.iter()).unwrap().values());
    let both = built_in.to_array().into_iter().zip(new.to_array());
    for ((built_in, new), row) in both.zip(&table.rows) {
        assert!((built_in / new - 1.0).abs() < 0.01, "{}: {built_in}, now {new}", row.name);
    }
}
