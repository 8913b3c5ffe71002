//! Tables without lines, for all views of the machine.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use crate::tell::palette::Meaning;
use crate::tell::styled::{Styled, Table as Cells};

/// Header for the shares of a CPU's time that are sampled at clock ticks. The group's name is
/// above.
pub const TICKS: [&str; 5] = ["ticks\nusr", "\nsys", "\nirq", "\nsoftirq", "\nidle"];

/// Header for the shares of a CPU's time that eBPF measures at entry and exit.
pub const MEASURED: [&str; 3] = ["measured\nhardirq", "\nsoftirq", "\nipi"];

/// A table without lines. It fits a narrow terminal, and uses the space of a pipe.
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

/// A table of cells with meanings, as wide as it is: the rows under a header.
pub(crate) fn whole(
    header: &[&str],
    rows: &[Vec<Styled>],
    numeric: impl Fn(&str) -> bool,
) -> Styled {
    narrowed(header, rows, numeric, &[], None)
}

/// A table of cells with meanings: the rows under a header, with two blanks between columns.
///
/// A name in the header may have several lines. The last one is next to the rows.
fn lines(header: &[&str], rows: &[Vec<Styled>], numeric: impl Fn(&str) -> bool) -> Vec<Styled> {
    let height = header.iter().map(|name| name.split('\n').count()).max().unwrap_or(0);
    let title = |at| -> Vec<Styled> {
        let line = |name: &&str| name.split('\n').nth(at).unwrap_or_default().to_owned().into();
        header.iter().map(line).collect()
    };
    let titles: Vec<Vec<Styled>> = (0..height).map(title).collect();
    let all = || titles.iter().chain(rows);
    let width = |column: usize| all().map(|row| row[column].width()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |row: &Vec<Styled>| {
        let mut line = Styled::default();
        let mut blanks = 0;
        for ((cell, width), name) in row.iter().zip(&widths).zip(header) {
            let rest = width - cell.width();
            let (before, after) = if numeric(name) { (rest, 0) } else { (0, rest) };
            if cell.width() > 0 {
                line.push(Meaning::Plain, " ".repeat(blanks + before));
                line.append(cell);
                blanks = 0;
            } else {
                blanks += before;
            }
            blanks += after + 2;
        }
        line
    };
    all().map(line).collect()
}

/// A table without the columns that do not fit into `width`. Columns are dropped in the order of
/// `drops`. A line that is still too long ends in an ellipsis, so that no line wraps.
pub(crate) fn narrowed(
    header: &[&str],
    rows: &[Vec<Styled>],
    numeric: impl Fn(&str) -> bool,
    drops: &[&str],
    width: Option<usize>,
) -> Styled {
    let mut kept: Vec<usize> = (0..header.len()).collect();
    let mut drops = drops.iter();
    loop {
        let names: Vec<&str> = kept.iter().map(|at| header[*at]).collect();
        let cells = |row: &Vec<Styled>| kept.iter().map(|at| row[*at].clone()).collect();
        let rows: Vec<Vec<Styled>> = rows.iter().map(cells).collect();
        let all = lines(&names, &rows, &numeric);
        let fits = width.is_none_or(|width| all.iter().all(|line| line.width() <= width));
        let next = drops.next().filter(|_| !fits);
        let Some(next) = next else {
            let header = names.iter().map(|name| (*name).to_owned()).collect();
            let numeric = names.iter().map(|name| numeric(name)).collect();
            return joined(all.into_iter().map(|line| line.cut(width.unwrap_or(usize::MAX))))
                .of_table(Cells { header, numeric, rows });
        };
        kept.retain(|at| header[*at].trim() != *next);
    }
}

/// A sentence in lines of this width.
pub(crate) fn wrapped(sentence: &str, width: Option<usize>) -> String {
    let sentence = Styled::from(sentence.to_owned());
    width.map_or_else(|| sentence.to_string(), |width| sentence.wrapped(width).to_string())
}

/// The lines of a text.
fn joined(lines: impl Iterator<Item = Styled>) -> Styled {
    let mut text = Styled::default();
    for (at, line) in lines.enumerate() {
        text.push(Meaning::Plain, if at > 0 { "\n" } else { "" });
        text.append(&line);
    }
    text
}

pub(crate) fn trim_lines(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_is_broken_between_words() {
        let text = "eth0  1 of 7 queues";
        assert_eq!(wrapped(text, None), text);
        assert_eq!(wrapped(text, Some(80)), text);
        assert_eq!(wrapped(text, Some(11)), "eth0  1 of\n      7\n      queues");
        assert_eq!(wrapped("verylongword", Some(5)), "verylongword");
    }

    #[test]
    fn a_narrow_terminal_loses_columns_in_the_given_order_and_never_wraps() {
        let header = ["rx", "irq", "\nsteering", "consumers"];
        let rows = [["0", "30", "rps 0-3", "redis (cpu 0) 100%"]
            .map(|text| Styled::from(text.to_owned()))
            .to_vec()];
        let drops = ["steering", "irq"];
        let narrowed = |width| {
            narrowed(&header, &rows, |name| name == "irq", &drops, width).as_str().to_owned()
        };
        let (at, wide) = (|width| narrowed(Some(width)), narrowed(None));
        assert!(wide.contains("rps 0-3"), "{wide}");
        assert!(at(30).contains("irq") && !at(30).contains("steering"), "{}", at(30));
        assert!(!at(24).contains("irq") && at(24).contains("100%"), "{}", at(24));
        assert!(at(12).lines().all(|line| line.chars().count() <= 12), "{}", at(12));
        assert!(at(12).ends_with('…'), "{}", at(12));
    }
}
