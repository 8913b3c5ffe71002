//! The table of kernel threads that receive or send.

use netsilo_model::derive::net_threads::NetThreadWork;
use netsilo_model::snapshot::net_thread::NetThreadKind;

use crate::tell::palette::Meaning;
use crate::tell::presentation::Presentation;
use crate::tell::styled::Styled;
use crate::views::show::cells::{cell, load};
use crate::views::table::narrowed;
use crate::views::units::percent;

/// Columns that a narrow terminal drops, in this order.
const DROPS: [&str; 4] = ["waited", "may run on", "does", "to move it"];

/// A thread that ran for less than this share of the time is only counted.
const LEAST: f64 = 0.005;

/// Maximum number of rows.
const MOST_ROWS: usize = 20;

/// `None` if no thread is worth a row.
pub(super) fn table(threads: &[NetThreadWork], on: Presentation) -> Option<Styled> {
    let is_shown = |it: &&NetThreadWork| match it.ran() {
        Some(ran) => ran >= LEAST,
        None => it.kind != NetThreadKind::Ksoftirqd,
    };
    let header = ["  kernel thread", "cpu", "may run on", "ran", "waited", "does", "to move it"];
    let rows: Vec<_> = threads.iter().filter(is_shown).take(MOST_ROWS).map(row).collect();
    let numeric = |name: &str| matches!(name, "ran" | "waited");
    let mut text = narrowed(&header, &rows, numeric, &DROPS, on.width);
    let more = threads.iter().filter(is_shown).count() - rows.len();
    if more > 0 {
        text.push(Meaning::Quiet, format_args!("\n  {more} more"));
    }
    (!rows.is_empty()).then_some(text)
}

fn row(thread: &NetThreadWork) -> Vec<Styled> {
    let share = |share: Option<f64>| {
        share.map_or_else(|| cell("not recorded".into()), |share| load(share, percent(share)))
    };
    let roams = if thread.roams { " last" } else { "" };
    let cpu = thread.cpu.map_or_else(|| "-".to_owned(), |cpu| format!("{cpu}{roams}"));
    vec![
        cell(format!("  {}", thread.comm)),
        cell(cpu),
        cell(thread.cpus.as_ref().map_or_else(|| "-".into(), ToString::to_string)),
        share(thread.ran()),
        share(thread.time.map(|time| time.waited)),
        cell(thread.does()),
        cell(thread.placed_by()),
    ]
}
