//! Markdown of `docs/` as text of a manual page.

use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};

/// What headings of the second level become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// `.SH`
    Section,
    /// `.SS`
    Subsection,
}

/// Adds a text in Markdown: paragraphs, lists, tables, code.
pub(crate) fn write(roff: &mut Roff, text: &str, level: Level) {
    let mut page = Page { roff, level, line: Vec::new(), style: roman, table: None, begins: true };
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        page.event(event);
    }
}

struct Page<'a> {
    roff: &'a mut Roff,
    level: Level,
    /// The text of the paragraph, item or cell so far.
    line: Vec<Inline>,
    style: fn(String) -> Inline,
    table: Option<Table>,
    /// Whether nothing has been written since the last heading. Then a paragraph needs no macro.
    begins: bool,
}

#[derive(Default)]
struct Table {
    header: Vec<Vec<Inline>>,
    row: Vec<Vec<Inline>>,
}

impl Page<'_> {
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(&tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) => self.line.push((self.style)(text.into_string())),
            Event::Code(text) => self.line.push(bold(text.into_string())),
            Event::SoftBreak | Event::HardBreak => self.line.push(roman(" ")),
            _ => {}
        }
    }

    fn start(&mut self, tag: &Tag<'_>) {
        match tag {
            Tag::Paragraph => self.gap(),
            Tag::Item => {
                self.roff.control("IP", ["\\(bu", "2"]);
                self.begins = true;
            }
            Tag::CodeBlock(_) => {
                self.gap();
                self.roff.control("RS", ["4"]).control("nf", []);
            }
            Tag::Emphasis => self.style = italic,
            Tag::Strong => self.style = bold,
            Tag::Table(_) => self.table = Some(Table::default()),
            _ => {}
        }
    }

    /// Writes an empty line, except after a heading and in an item.
    fn gap(&mut self) {
        if !std::mem::take(&mut self.begins) {
            self.roff.control("PP", []);
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph => self.text(),
            TagEnd::Item => {
                self.text();
                self.begins = false;
            }
            TagEnd::Heading(HeadingLevel::H1) => self.line.clear(),
            TagEnd::Heading(_) => {
                let macro_name = if self.level == Level::Section { "SH" } else { "SS" };
                let title: String = std::mem::take(&mut self.line).iter().map(plain).collect();
                self.roff.control(macro_name, [title.as_str()]);
                self.begins = true;
            }
            TagEnd::CodeBlock => {
                self.text();
                self.roff.control("fi", []).control("RE", []);
            }
            TagEnd::Emphasis | TagEnd::Strong => self.style = roman,
            TagEnd::TableCell => {
                let cell = std::mem::take(&mut self.line);
                if let Some(table) = &mut self.table {
                    table.row.push(cell);
                }
            }
            TagEnd::TableHead => {
                if let Some(table) = &mut self.table {
                    table.header = std::mem::take(&mut table.row);
                }
            }
            TagEnd::TableRow => self.row(),
            TagEnd::Table => self.table = None,
            _ => {}
        }
    }

    /// Ends a paragraph.
    fn text(&mut self) {
        if !self.line.is_empty() {
            self.roff.text(std::mem::take(&mut self.line));
        }
    }

    /// Writes a row of a table as a tagged paragraph: the first cell, then each other cell with the
    /// header of its column.
    fn row(&mut self) {
        let Some(table) = &mut self.table else { return };
        let mut cells = std::mem::take(&mut table.row).into_iter();
        self.begins = false;
        self.roff.control("TP", []).text(cells.next().unwrap_or_default());
        let named = table.header.iter().skip(1).zip(cells).filter(|(_, cell)| !cell.is_empty());
        for (at, (name, cell)) in named.enumerate() {
            if at > 0 {
                self.roff.control("br", []);
            }
            let name: String = name.iter().map(plain).collect();
            self.roff.text([vec![italic(format!("{name}: "))], cell].concat());
        }
    }
}

fn plain(inline: &Inline) -> &str {
    match inline {
        Inline::Roman(text) | Inline::Italic(text) | Inline::Bold(text) => text,
        Inline::LineBreak => " ",
    }
}
