//! The page of dropped packets: the table of `netsilo check`, with the past of each row.

use std::cmp::Reverse;

use netsilo_decide::judge::ledger::{Ledger, StageLosses};
use netsilo_model::snapshot::drops::QUANTITY;

use crate::tell::palette::Meaning;
use crate::tell::styled::Styled;
use crate::top::listing::{Cell, Column, Listing, Row, left, number, wide};
use crate::top::state::{PAST, PastDrops, State, sparkline};
use crate::top::window::Window;
use crate::verbs::explain;
use crate::views::ledger::{drop_row, stage_row};
use crate::views::units::count;

const COLUMNS: &[Column] = &[
    wide("dropped", 0, 14),
    number("per s", 0),
    left("past", 1),
    wide("reason", 0, 14),
    wide("function", 4, 16),
    wide("netdev", 3, 10),
    left("port", 2),
];

const NOTE: &str = "named by a stage: lost there; Enter explains the reason";

/// The columns where the kernel does not report its drops.
const OF_COUNTERS: &[Column] = &[
    wide("packets lost", 0, 14),
    number("now", 2),
    number("per s", 0),
    number("since boot", 1),
    wide("counters", 3, 24),
];

/// Lists what the kernel dropped in the windows that a row shows: lost packets first, of each class
/// the most frequent first. Without the kernel's event, lists the stages by their counters.
pub(super) fn listing(state: &State, window: &Window) -> Listing {
    let ledger = &window.check.ledger;
    if ledger.dropped.is_none() {
        return by_counters(window);
    }
    let mut seen: Vec<_> = state.history.drops.iter().collect();
    seen.sort_by_key(|(_, seen)| (seen.row.class, Reverse((1000.0 * seen.sum()) as u64)));
    Listing {
        columns: COLUMNS,
        rows: seen.into_iter().map(|(key, seen)| row(state, key, seen)).collect(),
        empty: format!("no packet matches; without a filter: none was dropped in {PAST} windows"),
        notes: before_the_kernel(ledger).into_iter().chain([NOTE.to_owned()]).collect(),
    }
}

fn row(state: &State, key: &str, seen: &PastDrops) -> Row {
    let highest = seen.past.iter().rev().take(PAST).copied().fold(0.0, f64::max);
    let past = sparkline(&seen.past, highest, PAST, state.palette);
    let mut cells: Vec<Cell> = drop_row(&seen.row).iter().map(cell).collect();
    let now = Cell { value: Some(seen.row.per_s), ..cells[2].clone() };
    let meaning = now.parts.first().map_or(Meaning::Plain, |(_, meaning)| *meaning);
    let past = Cell { value: Some(seen.sum()), ..Cell::text(past).meaning(meaning) };
    cells.splice(1..3, [now, past]);
    Row { key: key.to_owned(), cells }
}

fn cell(text: &Styled) -> Cell {
    let parts = text.parts().map(|(part, meaning)| (part.trim_start().to_owned(), meaning));
    Cell { parts: parts.filter(|(part, _)| !part.is_empty()).collect(), value: None }
}

/// The stages that lost packets which the kernel's event does not show, as those of the NIC.
fn before_the_kernel(ledger: &Ledger) -> Option<String> {
    let is_unseen = |stage: &&StageLosses| {
        stage.stage.loses() && stage.by_event == Some(0) && stage.by_counters(None) > 0
    };
    let stages = ledger.stages.iter().filter(is_unseen);
    let named: Vec<_> =
        stages.map(|stage| format!("{} {}/s", stage.stage.label(), count(stage.per_s))).collect();
    (!named.is_empty()).then(|| format!("lost by counters only: {}", named.join(", ")))
}

fn by_counters(window: &Window) -> Listing {
    let hooks = &window.observation.attribution.hooks;
    let refused = hooks.iter().filter(|hook| hook.quantity == QUANTITY);
    let why = refused.filter_map(|hook| hook.refused.as_deref()).next();
    let why = why.unwrap_or("eBPF did not count in this window");
    let stages = window.check.ledger.stages.iter();
    let stages = stages.filter(|stage| stage.since_boot > 0 || stage.count > 0);
    let row = |stage: &StageLosses| {
        let mut cells: Vec<Cell> = stage_row(stage).iter().map(cell).collect();
        let numbers = [stage.count as f64, stage.per_s, stage.since_boot as f64];
        for (cell, value) in cells[1..].iter_mut().zip(numbers) {
            cell.value = Some(value);
        }
        Row { key: stage.stage.label().to_owned(), cells }
    };
    Listing {
        columns: OF_COUNTERS,
        rows: stages.map(row).collect(),
        empty: "no counter shows a lost packet".into(),
        notes: vec![format!("counters only: the kernel's event is missing\n{why}")],
    }
}

/// What the reason of a row means; empty if unknown.
pub(crate) fn meaning(state: &State, key: &str) -> String {
    let seen = state.history.drops.get(key);
    let text = seen.and_then(|seen| explain::reason(&seen.row.reason).ok());
    text.map_or_else(String::new, |text| format!("\n{text}"))
}
