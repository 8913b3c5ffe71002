//! Output: results to stdout, messages to stderr; a closed pipe ends the program quietly.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};

use anyhow::{Context as _, Result};
use netsilo_model::parse::sanitize::is_control;
use serde::Serialize;

/// Prints a result.
pub(crate) fn text(text: &str) -> Result<()> {
    exit_on_broken_pipe(Printable::new(text).write_to(io::stdout().lock()))
}

/// Prints the next of several results: clears a terminal first, separates by a line otherwise.
pub(crate) fn screen(text: &str) -> Result<()> {
    let before = if io::stdout().is_terminal() { "\x1b[H\x1b[J" } else { "\n" };
    exit_on_broken_pipe(io::stdout().lock().write_all(before.as_bytes()))?;
    crate::tell::out::text(text)
}

/// The width of the terminal; `None` if the output is none, and so has no end of a line.
pub(crate) fn width() -> Option<usize> {
    let terminal = io::stdout().is_terminal();
    let (columns, _) = terminal.then(|| ratatui::crossterm::terminal::size().ok()).flatten()?;
    (columns > 0).then_some(usize::from(columns))
}

/// Prints a result as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    text(&indented(value)?)
}

/// A value as indented JSON with a newline at its end.
pub(crate) fn indented(value: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string_pretty(value).context("cannot serialize JSON")? + "\n")
}

/// Prints a result as one line of JSON.
pub(crate) fn json_line(value: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_string(value).context("cannot serialize JSON")?;
    line.push('\n');
    text(&line)
}

/// Prints a message on stderr and ignores failure.
pub(crate) fn note(message: &str) {
    eprint_line(format_args!("netsilo: {message}"));
}

/// Prints a line on stderr and ignores failure: the terminal may be gone.
pub(crate) fn eprint_line(message: impl Display) {
    eprint(format_args!("{message}\n"));
}

/// Prints a text on stderr and ignores failure.
pub(crate) fn eprint(text: impl Display) {
    let _ = Printable::new(&text.to_string()).write_to(io::stderr());
}

/// A text without control characters but newline and tab; all output is one, errors too.
struct Printable<'a>(Cow<'a, str>);

impl<'a> Printable<'a> {
    fn new(text: &'a str) -> Self {
        Self(printable(text))
    }

    fn write_to(&self, mut stream: impl io::Write) -> io::Result<()> {
        stream.write_all(self.0.as_bytes())
    }
}

/// Escapes every control character but newline and tab, so that names cannot control a terminal.
///
/// In JSON such characters occur only inside strings, where the escape has the same meaning.
fn printable(text: &str) -> Cow<'_, str> {
    let is_escaped = |c: char| is_control(c) && c != '\n' && c != '\t';
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    // all of them are below U+10000, so four digits suffice, as in JSON
    let written_out =
        |c: char| if is_escaped(c) { format!("\\u{:04x}", u32::from(c)) } else { c.into() };
    Cow::Owned(text.chars().map(written_out).collect())
}

/// Ends with 0 on a closed pipe: `netsilo show | head` is no failure.
fn exit_on_broken_pipe(written: io::Result<()>) -> Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => other.context("cannot write to stdout"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_are_escaped_and_json_keeps_its_meaning() {
        assert_eq!(printable("a\tb\nc\n"), "a\tb\nc\n");
        assert_eq!(printable("\u{1b}[2J\u{9b}1m\r\u{202e}"), "\\u001b[2J\\u009b1m\\u000d\\u202e");
        let names = ["\u{7f}\u{9b}31m", "\u{202e}\u{feff}", "a\nb\u{1b}"];
        let json = serde_json::to_string(&names).unwrap();
        let printed = printable(&json);
        assert!(printed.is_ascii() && !printed.chars().any(char::is_control), "{printed}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&printed).unwrap(), names);
    }
}
