//! The table of a page. Its rows can be filtered, sorted and selected. Its columns have an order in
//! which a narrow terminal drops them.

use std::cmp::Ordering;

use crate::tell::palette::Meaning;

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    /// Whether its cells are right-aligned.
    pub(crate) right: bool,
    /// Columns of the highest rank are dropped first. Rank 0 always stays.
    pub(crate) rank: u8,
    /// Wider texts are cut to this width before other columns are dropped.
    pub(crate) least: usize,
}

/// One cell: a text in parts, each with its meaning.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Cell {
    pub(crate) parts: Vec<(String, Meaning)>,
    /// The number that the cell shows. Rows are sorted by it, or by the text if there is no number.
    pub(crate) value: Option<f64>,
}

/// One row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    /// Identifies the row's subject, so that it stays selected when the order changes.
    pub(crate) key: String,
    pub(crate) cells: Vec<Cell>,
}

/// A table.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Listing {
    pub(crate) columns: &'static [Column],
    pub(crate) rows: Vec<Row>,
    /// What to do next if there are no rows.
    pub(crate) empty: String,
    /// What is not listed, and other remarks. They are shown below the rows.
    pub(crate) notes: Vec<String>,
}

/// How a page is sorted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sort {
    /// The column; `None` for the page's own order.
    pub(crate) column: Option<usize>,
    pub(crate) reversed: bool,
}

/// A column, left-aligned.
pub(crate) const fn left(name: &'static str, rank: u8) -> Column {
    wide(name, rank, 24)
}

/// A column of texts that get more space than other columns.
pub(crate) const fn wide(name: &'static str, rank: u8, least: usize) -> Column {
    Column { name, right: false, rank, least }
}

/// A column of numbers.
pub(crate) const fn number(name: &'static str, rank: u8) -> Column {
    Column { name, right: true, rank, least: usize::MAX }
}

impl Cell {
    /// A text without a meaning.
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self { parts: vec![(text.into(), Meaning::Plain)], value: None }
    }

    /// A number, or a dash if it is unknown.
    pub(crate) fn number(value: Option<f64>, render: impl FnOnce(f64) -> String) -> Self {
        let text = value.map_or_else(|| "-".to_owned(), render);
        Self { parts: vec![(text, Meaning::Plain)], value: Some(value.unwrap_or(-1.0)) }
    }

    /// The same cell with this meaning.
    pub(crate) fn meaning(mut self, meaning: Meaning) -> Self {
        self.parts.iter_mut().for_each(|part| part.1 = meaning);
        self
    }

    fn as_text(&self) -> String {
        self.parts.iter().map(|(text, _)| text.as_str()).collect()
    }

    /// Numbers: largest first. Texts: in alphabetical order.
    fn order(&self, other: &Self) -> Ordering {
        match (self.value, other.value) {
            (Some(a), Some(b)) => b.total_cmp(&a),
            _ => self.as_text().cmp(&other.as_text()),
        }
    }
}

impl Listing {
    /// The notes, line by line.
    pub(crate) fn note_lines(&self) -> Vec<&str> {
        self.notes.iter().flat_map(|note| note.lines()).collect()
    }

    /// A row with all its columns, also those that the screen cuts or leaves out.
    pub(crate) fn in_full(&self, key: &str) -> Option<String> {
        let row = self.rows.iter().find(|row| row.key == key)?;
        let names = self.columns.iter().map(|column| column.name);
        let lines =
            names.zip(&row.cells).map(|(name, cell)| format!("{name:<12}{}\n", cell.as_text()));
        Some(lines.collect())
    }

    /// The rows that contain the filter text, ignoring case, in this order.
    pub(crate) fn arranged(mut self, filter: &str, sort: Sort) -> Self {
        let filter = filter.to_lowercase();
        let contains = |row: &Row| {
            row.cells.iter().any(|cell| cell.as_text().to_lowercase().contains(&filter))
        };
        self.rows.retain(|row| filter.is_empty() || contains(row));
        if let Some(column) = sort.column {
            let cell = |row: &Row| row.cells.get(column).cloned().unwrap_or_default();
            self.rows.sort_by(|a, b| cell(a).order(&cell(b)));
        }
        if sort.reversed {
            self.rows.reverse();
        }
        self
    }

    /// The numbers of the columns that fit into `width`, given the width of each. There are 2
    /// spaces between columns.
    pub(crate) fn fitting(&self, widths: &[usize], width: usize) -> Vec<usize> {
        let mut kept: Vec<usize> = (0..self.columns.len()).collect();
        let needs = |kept: &[usize]| kept.iter().map(|at| widths[*at] + 2).sum::<usize>();
        while needs(&kept) > width + 2 {
            let Some(last) = kept.iter().copied().max_by_key(|at| (self.columns[*at].rank, *at))
            else {
                break;
            };
            if self.columns[last].rank == 0 {
                break;
            }
            kept.retain(|at| *at != last);
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column] = &[left("name", 0), number("rate", 1), left("more", 2)];

    fn listing() -> Listing {
        let row = |name: &str, rate: f64| Row {
            key: name.into(),
            cells: vec![Cell::text(name), Cell::number(Some(rate), |rate| rate.to_string())],
        };
        Listing {
            columns: COLUMNS,
            rows: vec![row("nginx", 5.0), row("redis", 10.0), row("sshd", 2.0)],
            empty: String::new(),
            notes: Vec::new(),
        }
    }

    fn keys(listing: Listing) -> Vec<String> {
        listing.rows.into_iter().map(|row| row.key).collect()
    }

    #[test]
    fn numbers_sort_largest_first_and_texts_by_the_alphabet() {
        let by = |column, reversed| keys(listing().arranged("", Sort { column, reversed }));
        assert_eq!(by(None, false), ["nginx", "redis", "sshd"]);
        assert_eq!(by(Some(1), false), ["redis", "nginx", "sshd"]);
        assert_eq!(by(Some(0), true), ["sshd", "redis", "nginx"]);
    }

    #[test]
    fn a_filter_keeps_rows_that_contain_it_in_any_case() {
        assert_eq!(keys(listing().arranged("ED", Sort::default())), ["redis"]);
    }

    #[test]
    fn a_narrow_terminal_loses_the_columns_of_the_highest_rank_first() {
        let fitting = |width| listing().fitting(&[5, 4, 10], width);
        assert_eq!(fitting(23), [0, 1, 2]);
        assert_eq!(fitting(22), [0, 1]);
        assert_eq!(fitting(10), [0]);
        assert_eq!(fitting(1), [0], "rank 0 stays");
    }
}
