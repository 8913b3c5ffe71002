//! A text whose parts have meanings; a terminal shows them in colours, a pipe gets the text alone.

use std::fmt::{self, Display, Write as _};
use std::ops::Range;

use ratatui::text::Span;

use crate::tell::palette::Meaning;

/// A text, and the meaning of some of its parts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Styled {
    text: String,
    /// Parts that do not overlap, in their order.
    marks: Vec<(Range<usize>, Meaning)>,
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

    /// Adds another text with its meanings.
    pub(crate) fn append(&mut self, other: &Self) {
        let offset = self.text.len();
        self.text.push_str(&other.text);
        let shifted = |(part, meaning): &(Range<usize>, Meaning)| {
            (part.start + offset..part.end + offset, *meaning)
        };
        self.marks.extend(other.marks.iter().map(shifted));
    }

    /// Gives the whole text one meaning.
    pub(crate) fn all(self, meaning: Meaning) -> Self {
        Self::new(meaning, self.text)
    }

    /// The text alone.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// The number of columns that the text takes in a terminal.
    pub(crate) fn width(&self) -> usize {
        Span::raw(&self.text).width()
    }

    /// The text, which has one line, in at most this many columns; an ellipsis ends a longer one.
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
        Self { text, marks: Vec::new() }
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
    fn a_long_line_ends_with_an_ellipsis_and_keeps_its_colours() {
        assert_eq!(sample().cut(14), sample());
        let cut = sample().cut(12);
        assert_eq!((cut.as_str(), cut.width()), ("> state: wo…", 12));
        assert_eq!(cut.marks, [(9..11, Meaning::Bad)]);
        assert_eq!(sample().cut(5).marks, []);
    }
}
