//! Output: results to stdout, messages to stderr; a closed pipe ends the program quietly.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::tell::presentation::Presentation;
use crate::tell::printable::printable;
use crate::tell::styled::Styled;

/// Prints a result.
pub(crate) fn text(text: &str) -> Result<()> {
    exit_on_broken_pipe(Printable::new(text).write_to(io::stdout().lock()))
}

/// Prints a result; in colours on a terminal.
pub(crate) fn styled(text: &Styled) -> Result<()> {
    let shown = Presentation::of_stdout().show(text);
    exit_on_broken_pipe(io::stdout().lock().write_all(shown.as_bytes()))
}

/// Prints the next of several results: clears a terminal first, separates by a line otherwise.
pub(crate) fn redraw(text: &Styled) -> Result<()> {
    let before = if io::stdout().is_terminal() { "\x1b[H\x1b[J" } else { "\n" };
    exit_on_broken_pipe(io::stdout().lock().write_all(before.as_bytes()))?;
    styled(text)
}

/// Prints a result as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    text(&indented(value)?)
}

/// A value as indented JSON with a newline at its end.
pub(crate) fn indented(value: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string_pretty(value).context("cannot serialize JSON")? + "\n")
}

/// A value as one line of JSON.
pub(crate) fn line(value: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string(value).context("cannot serialize JSON")? + "\n")
}

/// Prints a result as one line of JSON.
pub(crate) fn json_line(value: &impl Serialize) -> Result<()> {
    text(&line(value)?)
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

/// Ends with 0 on a closed pipe: `netsilo show | head` is no failure.
fn exit_on_broken_pipe(written: io::Result<()>) -> Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => other.context("cannot write to stdout"),
    }
}
