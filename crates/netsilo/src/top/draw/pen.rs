//! Writes texts into the terminal's cells, up to a given width.

use netsilo_model::parse::sanitize::escaped;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::Span;

use crate::tell::palette::{Meaning, Palette};
use crate::views::table::wrapped;

/// Writes into an area of the screen.
pub(super) struct Pen<'a> {
    pub(super) buffer: &'a mut Buffer,
    pub(super) palette: Palette,
    pub(super) area: Rect,
}

/// Width left of the rows, for the mark of the selected row.
pub(super) const MARGIN: usize = 2;

/// Width of a text on the screen, in characters of a fixed-width font.
pub(super) fn width(text: &str) -> usize {
    Span::raw(escaped(text)).width()
}

/// A text in lines of this width.
pub(super) fn lines(text: &str, width: usize) -> Vec<String> {
    wrapped(text, Some(width)).lines().map(str::to_owned).collect()
}

impl Pen<'_> {
    /// A pen for a part of the area.
    pub(super) fn within(&mut self, area: Rect) -> Pen<'_> {
        Pen { buffer: self.buffer, palette: self.palette, area }
    }

    /// Writes a text at a column and row of the area. Returns the column after it. A text that is
    /// too long ends in an ellipsis.
    pub(super) fn put(&mut self, x: usize, y: usize, text: &str, meaning: Meaning) -> usize {
        let most = usize::from(self.area.width).saturating_sub(x);
        self.put_within(x, y, text, meaning, most)
    }

    /// The same, in at most this many characters.
    pub(super) fn put_within(
        &mut self,
        x: usize,
        y: usize,
        text: &str,
        meaning: Meaning,
        most: usize,
    ) -> usize {
        let most = most.min(usize::from(self.area.width).saturating_sub(x));
        if y >= usize::from(self.area.height) || most == 0 {
            return x;
        }
        let (text, style) = (escaped(text), self.palette.style(meaning));
        let (at_x, at_y) = (self.area.x + x as u16, self.area.y + y as u16);
        let fits = Span::raw(text.as_ref()).width() <= most;
        let room = if fits { most } else { most - 1 };
        let (end, _) = self.buffer.set_stringn(at_x, at_y, &text, room, style);
        if !fits {
            let ellipsis = self.palette.glyph("…", "~");
            self.buffer.set_stringn(end, at_y, ellipsis, 1, style);
            return usize::from(end - self.area.x) + 1;
        }
        usize::from(end - self.area.x)
    }

    /// Writes the parts of a line that fit whole.
    pub(super) fn put_parts(&mut self, y: usize, parts: &[(String, Meaning)]) {
        let mut x = 0;
        for (text, meaning) in parts {
            if x + width(text.trim_end()) <= usize::from(self.area.width) {
                self.put(x, y, text.trim_end(), *meaning);
                x += width(text);
            }
        }
    }

    /// Writes a text in as many lines as it needs, from a row on.
    pub(super) fn put_lines(&mut self, y: usize, text: &str, meaning: Meaning) {
        let room = usize::from(self.area.width).saturating_sub(MARGIN);
        for (at, line) in lines(text, room).iter().enumerate() {
            self.put(MARGIN, y + at, line, meaning);
        }
    }

    /// Writes a text so that it ends before a column.
    pub(super) fn put_right(&mut self, end: usize, y: usize, text: &str, meaning: Meaning) {
        self.put_within(end.saturating_sub(width(text)), y, text, meaning, end);
    }

    /// Marks a row as the selected one.
    pub(super) fn select(&mut self, y: usize) {
        self.put(0, y, self.palette.glyph("▶", ">"), Meaning::Title);
    }

    /// Exchanges foreground and background of some characters in a row.
    pub(super) fn reverse(&mut self, from: usize, to: usize, y: usize) {
        let row =
            Rect::new(self.area.x + from as u16, self.area.y + y as u16, (to - from) as u16, 1);
        self.buffer.set_style(row.intersection(self.area), Modifier::REVERSED);
    }
}
