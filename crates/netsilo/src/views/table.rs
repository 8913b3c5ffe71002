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

/// A table without the columns that do not fit into `width`, dropped in the order of `drops`; a
/// line that is still too long ends with an ellipsis, so that none wraps.
pub(crate) fn narrowed(
    header: &[&str],
    rows: &[Vec<String>],
    numeric: impl Fn(&str) -> bool,
    drops: &[&str],
    width: Option<usize>,
) -> String {
    let mut kept: Vec<usize> = (0..header.len()).collect();
    for next in std::iter::once(&"").chain(drops) {
        kept.retain(|at| header[*at].trim() != *next);
        let names: Vec<&str> = kept.iter().map(|at| header[*at]).collect();
        let mut table = table(&names, &numeric);
        table.add_rows(rows.iter().map(|row| kept.iter().map(|at| row[*at].clone())));
        let text = trim_lines(&table);
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        if width.is_none_or(|width| widest <= width) {
            return text;
        }
        if drops.last().is_none_or(|last| last == next) {
            return cut(&text, width.unwrap_or(usize::MAX));
        }
    }
    String::new()
}

/// The text with lines of at most this many characters.
fn cut(text: &str, width: usize) -> String {
    let line = |line: &str| match line.chars().count() > width {
        true => line.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
        false => line.to_owned(),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

pub(crate) fn trim_lines(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_terminal_loses_columns_in_the_given_order_and_never_wraps() {
        let header = ["rx", "irq", "\nsteering", "consumers"];
        let rows = [["0", "30", "rps 0-3", "redis (cpu 0) 100%"].map(str::to_owned).to_vec()];
        let drops = ["steering", "irq"];
        let at = |width| narrowed(&header, &rows, |name| name == "irq", &drops, Some(width));
        let wide = narrowed(&header, &rows, |_| false, &drops, None);
        assert!(wide.contains("rps 0-3"), "{wide}");
        assert!(at(30).contains("irq") && !at(30).contains("steering"), "{}", at(30));
        assert!(!at(24).contains("irq") && at(24).contains("100%"), "{}", at(24));
        assert!(at(12).lines().all(|line| line.chars().count() <= 12), "{}", at(12));
        assert!(at(12).ends_with('…'), "{}", at(12));
    }
}
