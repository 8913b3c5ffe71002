//! Texts of views as HTML: lines that wrap below their indentation, and tables whose equal rows
//! share one. On a narrow screen, each row becomes a paragraph that names its columns.

use maud::{Markup, html};
use netsilo_model::machine::cpuset::CpuSet;

use crate::tell::palette::Meaning;
use crate::tell::printable::printable;
use crate::tell::styled::{Block, Styled, Table};

/// Columns that say which queue or CPU a row is about. Rows that differ only there are equal.
const WHICH: [&str; 8] =
    ["rx", "irq", "requested", "effective", "polled on", "cpu", "core", "node"];

/// If this many rows are equal, they share one.
const EQUAL: usize = 4;

/// The text of a view, in the colours of its meanings.
pub(super) fn text(text: &Styled) -> Markup {
    html! {
        div.view {
            @for block in text.blocks() {
                @match block {
                    Block::Line(line) => (one_line(&line)),
                    Block::Table(of) => (table(&of)),
                }
            }
        }
    }
}

/// A text without control characters.
pub(super) fn shown(text: &str) -> String {
    printable(text).into_owned()
}

fn one_line(line: &Styled) -> Markup {
    let indent = line.as_str().len() - line.as_str().trim_start().len();
    html! { div.line style=(format!("--indent: {indent}")) { (parts(line)) } }
}

/// The parts of a line or a cell. Its indentation is left to the style sheet.
fn parts(text: &Styled) -> Markup {
    let mut before = true;
    let trimmed = text.parts().map(|(part, meaning)| {
        let part = if before { part.trim_start() } else { part };
        before &= part.is_empty();
        (part, meaning)
    });
    html! {
        @for (part, meaning) in trimmed {
            @match class(meaning) {
                Some(class) => span class=(class) { (shown(part)) },
                None => (shown(part)),
            }
        }
    }
}

fn table(Table { header, numeric, rows }: &Table) -> Markup {
    let number = |column: usize| numeric.get(column).is_some_and(|it| *it).then_some("number");
    html! {
        table class=[header.is_empty().then_some("pairs")] {
            @if !header.is_empty() {
                thead { tr { @for (column, name) in header.iter().enumerate() {
                    th scope="col" class=[number(column)] { (name.trim()) }
                } } }
            }
            @for row in folded(header, rows) {
                tr { @for (column, cell) in row.iter().enumerate() {
                    @let name = header.get(column).map(|it| it.trim().replace('\n', " "));
                    @let empty = matches!(cell.as_str(), "" | "-").then_some("empty");
                    td class=[number(column).or(empty)] data-column=[name] { (parts(cell)) }
                } }
            }
        }
    }
}

/// Rows, of which equal ones are one: `0-59 (60 rows)`.
fn folded(header: &[String], rows: &[Vec<Styled>]) -> Vec<Vec<Styled>> {
    let is_which: Vec<bool> = header.iter().map(|name| WHICH.contains(&name.trim())).collect();
    let list = |cell: &Styled| CpuSet::parse_list(cell.as_str()).ok().filter(|it| !it.is_empty());
    let is_equal = |a: &[Styled], b: &[Styled]| {
        a.iter().zip(b).enumerate().all(|(column, (a, b))| {
            a == b || is_which.get(column) == Some(&true) && list(a).and(list(b)).is_some()
        })
    };
    let merged = |equal: &[&Vec<Styled>], column: usize| {
        let all = equal.iter().filter_map(|row| list(&row[column])).reduce(|a, b| a.or(&b));
        let all = all.filter(|_| is_which[column]).map(|all| all.to_string().into());
        let cell = all.unwrap_or_else(|| equal[0][column].clone());
        if column == 0 { format!("{cell} ({} rows)", equal.len()).into() } else { cell }
    };
    let mut left: Vec<&Vec<Styled>> = rows.iter().collect();
    let mut folded = Vec::new();
    while let Some(first) = left.first().copied() {
        let (equal, others): (Vec<_>, _) = left.iter().partition(|row| is_equal(first, row));
        if header.is_empty() || equal.len() < EQUAL {
            folded.push(left.remove(0).clone());
        } else {
            folded.push((0..first.len()).map(|column| merged(&equal, column)).collect());
            left = others;
        }
    }
    folded
}

/// The class of a meaning in the style sheet.
fn class(meaning: Meaning) -> Option<&'static str> {
    match meaning {
        Meaning::Plain | Meaning::Changed => None,
        Meaning::Quiet => Some("quiet"),
        Meaning::Title => Some("title"),
        Meaning::Good => Some("good"),
        Meaning::Fair => Some("fair"),
        Meaning::Bad => Some("bad"),
        Meaning::Work => Some("work"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_rows_share_one_and_others_stay() {
        let header = ["  rx", "irq", "effective", "softirq"].map(str::to_owned);
        let row = |cells: [String; 4]| cells.map(Styled::from).to_vec();
        let mut rows: Vec<_> = (0..60)
            .map(|n| {
                row([format!("  {n}"), (n + 40).to_string(), (n % 8).to_string(), "1%".into()])
            })
            .collect();
        rows.insert(3, row(["  60".into(), "100".into(), "-".into(), "1%".into()]));
        rows.push(row(["  61".into(), "101".into(), "2".into(), "9%".into()]));
        let words =
            |row: &Vec<Styled>| row.iter().map(|it| it.as_str().trim().to_owned()).collect();
        let folded: Vec<Vec<String>> = folded(&header, &rows).iter().map(words).collect();
        assert_eq!(
            folded,
            [
                ["0-59 (60 rows)", "40-99", "0-7", "1%"],
                ["60", "100", "-", "1%"],
                ["61", "101", "2", "9%"],
            ]
        );
        assert_eq!(super::folded(&header, &rows[..3]), rows[..3]);
    }

    #[test]
    fn a_line_loses_its_indentation_to_the_style_sheet() {
        let mut line = Styled::from("  do: ".to_owned());
        line.push(Meaning::Bad, "<a>  b");
        assert_eq!(
            text(&line).into_string(),
            "<div class=\"view\"><div class=\"line\" style=\"--indent: 2\">do: \
             <span class=\"bad\">&lt;a&gt;  b</span></div></div>"
        );
    }
}
