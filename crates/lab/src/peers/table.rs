//! The results of a workload as text.

use comfy_table::{CellAlignment, Table, presets};
use netsilo_trial::stats::Estimate;

use crate::peers::results::{PeerComparison, PeerState, Results};

/// A table with one row per state, and a table with one row per quantity.
pub(crate) fn show(results: &Results<'_>) -> String {
    let header = [
        "per transaction:",
        "transactions/s",
        "IPIs",
        "softirqs",
        "switches",
        "read on same cpu",
        "same LLC",
        "other socket",
    ];
    let states = aligned(header.map(String::from), results.states.iter().map(row));
    let mut text = format!("\n=== {}\n{states}", results.load.name);
    let comparisons = results.comparisons();
    if !comparisons.is_empty() {
        let header = ["netsilo over the best peer", "", "netsilo", "peer", "ratio (95%)", ""];
        let rows = comparisons.iter().map(|it| comparison(it, it.quantity));
        let irqbalance = results.over_irqbalance();
        let last = irqbalance.iter().map(|it| comparison(it, "per_second, over irqbalance"));
        text += &format!("\n\n{}", aligned(header.map(String::from), rows.chain(last)));
    }
    text
}

fn row(state: &PeerState<'_>) -> [String; 8] {
    let count = |name: &str| format!("{:.3}", state.median(name));
    let percent = |name: &str| match state.median(name) {
        share if share.is_nan() => "-".to_owned(),
        share => format!("{:.0}%", share * 100.0),
    };
    [
        state.measured.name.clone(),
        format!("{:.0}", state.median("per_second")),
        count("ipis"),
        count("softirqs"),
        count("switches"),
        percent("bytes_same_cpu"),
        percent("bytes_same_llc"),
        percent("bytes_remote"),
    ]
}

fn comparison(it: &PeerComparison, quantity: &str) -> [String; 6] {
    let ratio = |Estimate { value, low, high }| format!("{value:.2} ({low:.2} to {high:.2})");
    let digits = if it.quantity == "per_second" { 0 } else { 3 };
    [
        quantity.to_owned(),
        it.peer.name().to_owned(),
        format!("{:.digits$}", it.netsilo),
        format!("{:.digits$}", it.other),
        it.ratio.map_or_else(|| "-".to_owned(), ratio),
        if it.falls_short { "FALLS SHORT" } else { "" }.to_owned(),
    ]
}

/// Lines in columns. All columns except the first are right-aligned.
fn aligned<const N: usize>(header: [String; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header).add_rows(rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}
