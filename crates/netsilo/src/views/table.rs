//! Tables without lines, as all views of the machine use them.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// Header of the shares of a CPU's time that clock ticks sample, with the group's name above.
pub(crate) const TICKS: [&str; 5] = ["ticks\nusr", "\nsys", "\nirq", "\nsoftirq", "\nidle"];

/// Header of the shares of a CPU's time that eBPF measures at entry and exit.
pub(crate) const MEASURED: [&str; 3] = ["measured\nhardirq", "\nsoftirq", "\nipi"];

/// A table without lines: narrow enough for a terminal, wide enough for a pipe.
pub(crate) fn table(header: &[&str], numeric: impl Fn(&str) -> bool) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header);
    for (column, name) in table.column_iter_mut().zip(header) {
        column.set_padding((0, 2));
        if numeric(name) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

pub(crate) fn trim_lines(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}
