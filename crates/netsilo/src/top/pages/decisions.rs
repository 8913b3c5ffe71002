//! The page of decisions: what the daemon did, and why.

use netsilo_decide::control::LogEntry;

use crate::tell::status::Status;
use crate::top::listing::{Cell, Column, Listing, Row, left, number, wide};
use crate::top::window::Window;
use crate::views::status::{ago, kind};

const COLUMNS: &[Column] =
    &[number("ago", 0), left("decision", 0), left("knob", 1), wide("why", 0, 40)];

/// Lists the daemon's decisions, the newest first.
pub(super) fn listing(window: &Window) -> Listing {
    let (rows, empty, notes) = match &window.daemon {
        Ok(status) => {
            let empty = "the daemon has decided nothing yet".to_owned();
            (rows(status), empty, vec![crate::views::status::head(status)])
        }
        Err(why) => (Vec::new(), why.clone(), Vec::new()),
    };
    Listing { columns: COLUMNS, rows, empty, notes }
}

fn rows(status: &Status) -> Vec<Row> {
    status.log.iter().enumerate().rev().map(|(at, entry)| row(status, at, entry)).collect()
}

fn row(status: &Status, at: usize, entry: &LogEntry) -> Row {
    let seconds = status.at.saturating_sub(entry.at).as_secs_f64();
    let knob = entry.target.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
    Row {
        key: at.to_string(),
        cells: vec![
            Cell { value: Some(-seconds), ..Cell::text(ago(status, entry.at)) },
            Cell::text(kind(entry.kind)),
            Cell::text(knob),
            Cell::text(entry.why.clone()),
        ],
    }
}
