//! Every cell of the published experiments has an answer, published or not, and
//! evidence/predictions.md shows it.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

#[path = "../examples/score/cells.rs"]
#[allow(dead_code, reason = "the program uses all of it")]
mod cells;
#[path = "../examples/score/grid.rs"]
#[allow(dead_code, reason = "the program uses all of it")]
mod grid;

use cells::described;
use grid::{Place, Row, SETTINGS, other_rows, others, request_rows, requests};
use netsilo_predict::interval::{Draws, Expected};
use netsilo_predict::limit::Limit;
use netsilo_predict::parameters::Table;

const PAGE: &str = include_str!("../../../evidence/predictions.md");

/// The numbers that evidence/predictions.md has in this row.
fn shown(name: &str) -> Vec<f64> {
    let begin = format!("| {name} | ");
    let line = PAGE.lines().find(|line| line.starts_with(&begin)).unwrap_or_default();
    assert!(!line.is_empty(), "evidence/predictions.md lacks {name}");
    let cells = line[begin.len()..].trim_end_matches(" |").split(" | ");
    cells.map(|cell| cell.parse().unwrap()).collect()
}

/// `make predict-score ARGS=--grid` prints both tables.
#[test]
fn the_page_shows_what_the_model_says_of_each_cell() {
    let values = Table::built_in().unwrap().values();
    let rows: Vec<Row> =
        request_rows(&values).unwrap().into_iter().chain(other_rows(&values).unwrap()).collect();
    assert_eq!(rows.len(), 20);
    for row in rows {
        let shown = shown(&row.name);
        assert_eq!(shown.len(), row.figures.len(), "{}", row.name);
        for (shown, figure) in shown.iter().zip(&row.figures) {
            assert!((shown - figure).abs() <= 0.6, "{}: {shown}, now {figure}", row.name);
        }
    }
}

fn expected(place: &Place<'_>, settings: &[&str], draws: &Draws) -> Vec<Expected> {
    let described = described(place.1, &place.2).unwrap();
    let none = &described.settings[place.3];
    let one = |name: &&str| draws.expect(&described.scenario, &described.settings[*name], none);
    settings.iter().map(one).collect()
}

#[test]
fn each_cell_has_a_rate_and_its_cpus_with_intervals_of_at_most_a_quarter_to_each_side() {
    let draws = Draws::new(&Table::built_in().unwrap(), 100, 1);
    let requests = requests();
    let all = [&SETTINGS[..], &["none"]].concat();
    let mut cells: Vec<Expected> =
        requests.iter().flat_map(|place| expected(place, &all, &draws)).collect();
    assert_eq!(cells.len(), 48);
    cells.extend(others().iter().flat_map(|place| expected(place, &[place.3], &draws)));
    assert_eq!(cells.len(), 56);
    for cell in cells {
        let (out, rate, gain) = (&cell.prediction, &cell.rate, &cell.gain);
        assert!(rate.value > 0.0 && rate.value.is_finite(), "{out:?}");
        // Of the guest, shares of time are known, and not its clock: its packets/s are not sure.
        if out.limit != Limit::Cpus || out.latency_us.is_some() {
            assert!((rate.high - rate.low) / 2.0 <= 0.25 * rate.value, "{rate:?}");
        }
        assert!((gain.high - gain.low) / 2.0 <= 0.25 * (1.0 + gain.value), "{gain:?}");
        for cpu in &out.cpus {
            assert!(cpu.usr + cpu.sys + cpu.softirq <= 1.001, "{cpu:?}");
        }
    }
}

/// No sign is left to chance: the settings help TCP and UDP as their mechanisms say.
#[test]
fn affinity_helps_tcp_alone_and_rps_helps_both() {
    let values = Table::built_in().unwrap().values();
    for row in request_rows(&values).unwrap() {
        let [_, rps, affinity, both] = row.figures[..] else { panic!("{}", row.name) };
        let is_tcp = row.name.starts_with("tcp");
        assert!(rps > 15.0 && both > 15.0, "{}", row.name);
        assert!(if is_tcp { affinity > 70.0 } else { affinity < -3.0 }, "{}", row.name);
    }
}
