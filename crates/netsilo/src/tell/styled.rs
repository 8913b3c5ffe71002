//! A text whose parts have meanings. A terminal shows the meanings in colours; a pipe gets only the
//! text.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Write as _};
use std::ops::Range;
use std::rc::Rc;

use ratatui::text::Span;

use crate::tell::palette::Meaning;

/// A text, and the meaning of some of its parts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Styled {
    text: String,
    /// Parts that do not overlap, in order.
    marks: Vec<(Range<usize>, Meaning)>,
    /// Parts that are tables, in order.
    tables: Vec<(Range<usize>, Rc<Table>)>,
}

/// The cells of a table, for a view that arranges them itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Table {
    /// Names of the columns. Evidence has none.
    pub header: Vec<String>,
    /// Columns of numbers.
    pub numeric: Vec<bool>,
    pub rows: Vec<Vec<Styled>>,
}

/// A part of a text: a line, or a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Block {
    Line(Styled),
    Table(Rc<Table>),
}

impl Styled {
    /// A text with one meaning.
    pub(crate) fn new(meaning: Meaning, text: impl Display) -> Self {
        let mut styled = Self::default();
        styled.push(meaning, text);
        styled
    }

    /// Adds a text with a meaning.
    pub(crate) fn push(&mut self, meaning: Meaning, text: impl Display) {
        let start = self.text.len();
        let _ = write!(self.text, "{text}");
        if meaning != Meaning::Plain && start < self.text.len() {
            self.marks.push((start..self.text.len(), meaning));
        }
    }

    /// The text as a table.
    pub(crate) fn of_table(mut self, table: Table) -> Self {
        if !table.rows.is_empty() {
            self.tables = vec![(0..self.text.trim_end_matches('\n').len(), Rc::new(table))];
        }
        self
    }

    /// Adds another text with its meanings.
    pub(crate) fn append(&mut self, other: &Self) {
        let offset = self.text.len();
        self.text.push_str(&other.text);
        let shifted = |(part, meaning): &(Range<usize>, Meaning)| {
            (part.start + offset..part.end + offset, *meaning)
        };
        self.marks.extend(other.marks.iter().map(shifted));
        let moved = |(part, table): &(Range<usize>, Rc<Table>)| {
            (part.start + offset..part.end + offset, Rc::clone(table))
        };
        self.tables.extend(other.tables.iter().map(moved));
    }

    /// Gives the whole text one meaning.
    pub(crate) fn all(self, meaning: Meaning) -> Self {
        Self::new(meaning, self.text)
    }

    /// The text alone.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// The number of columns that the text occupies in a terminal.
    pub(crate) fn width(&self) -> usize {
        Span::raw(&self.text).width()
    }

    /// The text, which is one line, cut to this number of columns. A text that was cut ends in an
    /// ellipsis.
    pub(crate) fn cut(mut self, width: usize) -> Self {
        if self.width() <= width {
            return self;
        }
        while self.width() >= width && self.text.pop().is_some() {}
        let end = self.text.len();
        self.marks.retain(|(part, _)| part.start < end);
        self.marks.iter_mut().for_each(|(part, _)| part.end = part.end.min(end));
        self.text.push('…');
        self
    }

    /// The text with line breaks between words, so that no line exceeds the width.
    ///
    /// The continuation begins below the last cell of the line, or 2 columns after the beginning of
    /// the line.
    pub(crate) fn wrapped(&self, width: usize) -> Self {
        let breaks = breaks(&self.text, width);
        let (mut wrapped, mut at) = (Self::default(), 0);
        for (part, meaning) in self.parts() {
            let mut text = String::new();
            for (offset, character) in part.char_indices() {
                match breaks.get(&(at + offset)) {
                    Some(indent) => text.extend(["\n", &" ".repeat(*indent)]),
                    None => text.push(character),
                }
            }
            at += part.len();
            wrapped.push(meaning, text);
        }
        wrapped
    }

    /// The text with each meaning written out (`<Bad worse>`), for tests.
    #[cfg(test)]
    pub(crate) fn with_meanings(&self) -> String {
        let part = |(text, meaning): (&str, Meaning)| match meaning {
            Meaning::Plain => text.to_owned(),
            _ => format!("<{meaning:?} {text}>"),
        };
        self.parts().map(part).collect()
    }

    /// The text in parts, each with its meaning.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (&str, Meaning)> {
        let ends = self.marks.iter().map(|(part, _)| part.end);
        let starts = std::iter::once(0).chain(ends);
        let marked = self.marks.iter().zip(starts).flat_map(|((part, meaning), before)| {
            let plain = (&self.text[before..part.start], Meaning::Plain);
            [plain, (&self.text[part.clone()], *meaning)]
        });
        let last = self.marks.last().map_or(0, |(part, _)| part.end);
        marked.chain([(&self.text[last..], Meaning::Plain)])
    }

    /// The text's lines and tables.
    pub(crate) fn blocks(&self) -> Vec<Block> {
        let (mut blocks, mut line, mut at) = (Vec::new(), Self::default(), 0);
        let mut tables = self.tables.iter().peekable();
        for (part, meaning) in self.parts() {
            for piece in part.split_inclusive('\n') {
                let next = tables.next_if(|(range, _)| range.start <= at);
                blocks.extend(next.map(|(_, table)| Block::Table(Rc::clone(table))));
                // with the end of its last line
                let is_inside = self
                    .tables
                    .iter()
                    .any(|(range, _)| range.contains(&at) || range.end == at && piece == "\n");
                at += piece.len();
                if is_inside {
                    continue;
                }
                line.push(meaning, piece.trim_end_matches('\n'));
                if piece.ends_with('\n') {
                    blocks.push(Block::Line(std::mem::take(&mut line)));
                }
            }
        }
        blocks.extend((line.width() > 0).then_some(Block::Line(line)));
        blocks
    }
}

/// The spaces where lines break, each with the indentation of the next line.
fn breaks(text: &str, width: usize) -> BTreeMap<usize, usize> {
    let columns = |text: &str| Span::raw(text).width();
    let mut breaks = BTreeMap::new();
    let mut start = 0;
    for whole in text.split('\n') {
        let line = whole.trim_end_matches(' ');
        let indent = indent(line, width);
        let (mut from, mut before, mut last) = (0, 0, None);
        // Several spaces separate cells.
        let is_single =
            |at: &usize| !line[..*at].ends_with(' ') && !line[at + 1..].starts_with(' ');
        let spaces = line.match_indices(' ').map(|(at, _)| at).filter(is_single);
        for at in spaces.chain([line.len()]) {
            if let Some(space) = last
                && before + columns(&line[from..at]) > width
            {
                breaks.insert(start + space, indent);
                (from, before) = (space + 1, indent);
            }
            last = Some(at);
        }
        start += whole.len() + 1;
    }
    breaks
}

/// The columns before the last cell of a line, if that cell begins in the first 60 % of the width.
/// Otherwise the line's indentation plus 2.
fn indent(line: &str, width: usize) -> usize {
    let text = line.trim_start_matches(' ');
    let before = line.len() - text.len();
    let is_cell = |(at, first): &(usize, char)| *first != ' ' && text[..*at].ends_with("  ");
    let cells = text.char_indices().filter(is_cell);
    let columns = cells.map(|(at, _)| before + Span::raw(&text[..at]).width());
    columns.filter(|column| column * 5 <= width * 3).max().unwrap_or(before + 2)
}

/// `write!` adds text without a meaning.
impl fmt::Write for Styled {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.text.push_str(text);
        Ok(())
    }
}

impl Display for Styled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<String> for Styled {
    fn from(text: String) -> Self {
        Self { text, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Styled {
        let mut text = Styled::default();
        let _ = write!(text, "state: ");
        text.push(Meaning::Bad, "worse");
        let mut all = Styled::from("> ".to_owned());
        all.append(&text);
        all
    }

    #[test]
    fn parts_are_the_whole_text() {
        let text = sample();
        let marked = text.parts().find(|(_, meaning)| *meaning != Meaning::Plain);
        assert_eq!(marked, Some(("worse", Meaning::Bad)));
        assert_eq!(text.parts().map(|(part, _)| part).collect::<String>(), "> state: worse");
    }

    #[test]
    fn a_text_is_lines_and_tables() {
        let cells = |a: &str, b: &str| vec![a.to_owned().into(), Styled::new(Meaning::Bad, b)];
        let rows = vec![cells("a", "b"), cells("c", "d")];
        let table = Table { rows, ..Table::default() };
        let mut lines = Styled::from("a  ".to_owned());
        lines.push(Meaning::Bad, "b");
        lines.push(Meaning::Plain, "\nc  ");
        lines.push(Meaning::Bad, "d");
        let line = |text: &str| Block::Line(text.to_owned().into());
        for end in ["", "\n"] {
            let mut lines = lines.clone();
            lines.push(Meaning::Plain, end);
            let mut text = Styled::from("one\n".to_owned());
            text.append(&lines.of_table(table.clone()));
            let _ = write!(text, "{}\ntwo\n", if end.is_empty() { "\n" } else { "" });
            let table = Block::Table(Rc::new(table.clone()));
            assert_eq!(text.blocks(), [line("one"), table, line(""), line("two")]);
        }
    }

    #[test]
    fn a_long_line_ends_with_an_ellipsis_and_keeps_its_colours() {
        assert_eq!(sample().cut(14), sample());
        let cut = sample().cut(12);
        assert_eq!((cut.as_str(), cut.width()), ("> state: wo…", 12));
        assert_eq!(cut.marks, [(9..11, Meaning::Bad)]);
        assert_eq!(sample().cut(5).marks, []);
    }

    #[test]
    fn a_long_line_breaks_between_words_below_its_last_cell_and_keeps_its_colours() {
        let mut text = Styled::from("info: all is well here, too\n  RPS   eth0  ".to_owned());
        text.push(Meaning::Bad, "one two three");
        let wrapped = text.wrapped(24);
        let (info, rps) = ("info: all is well here,\n  too", "  RPS   eth0  one two");
        assert_eq!(wrapped.as_str(), format!("{info}\n{rps}\n{:14}three", ""));
        assert_eq!(wrapped.marks, [(44..71, Meaning::Bad)]);
        assert_eq!(text.wrapped(80), text);
        // a cell that begins far to the right, and a word that fits into no line
        let wrapped = |text: &str| Styled::from(text.to_owned()).wrapped(10).text;
        assert_eq!(wrapped("  a bcdef  gh ij"), "  a\n    bcdef  gh\n    ij");
        assert_eq!(wrapped("abcdefghijklm n"), "abcdefghijklm\n  n");
    }

    #[test]
    fn lines_with_several_breaks_end_within_the_width() {
        let text = "  - ".to_owned() + &"word ".repeat(40);
        let wrapped = Styled::from(text.clone()).wrapped(33);
        assert!(wrapped.as_str().lines().all(|line| line.len() <= 33), "{wrapped}");
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(wrapped.as_str()), words(&text));
    }
}
