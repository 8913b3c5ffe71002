//! Output: results to stdout, messages to stderr.
//!
//! Nothing here ends the program or makes it fail. After standard output has failed once, nothing
//! more is written to it, and the first error is kept. `exit::code` decides what that error means
//! for the exit code, `consent` refuses to write what could not be shown, and commands that print
//! repeatedly end.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::OnceLock;

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::tell::presentation::Presentation;
use crate::tell::printable::printable;
use crate::tell::styled::Styled;

/// Why standard output accepts no more results. It is global because a process has one standard
/// output.
static LOST: OnceLock<io::Error> = OnceLock::new();

/// The name that messages begin with; see [`set_program`].
static PROGRAM: OnceLock<&'static str> = OnceLock::new();

/// The device number of `/dev/null` (`Documentation/admin-guide/devices.txt`).
const NULL: (u32, u32) = (1, 3);

/// Prints a result.
pub fn text(text: &str) {
    write(|stdout| Printable::new(text).write_to(stdout));
}

/// Prints a result, in colours on a terminal.
pub(crate) fn styled(text: &Styled) {
    let shown = Presentation::of_stdout().show(text);
    write(|stdout| stdout.write_all(shown.as_bytes()));
}

/// Shows the changes that are to be written. If stdout has JSON, they are shown on stderr.
pub(crate) fn proposal(text: &Styled, json: bool) {
    if json { eprint(text.as_str()) } else { styled(text) }
}

/// Prints the next of several results. Clears a terminal first; otherwise prints a line between
/// them. Returns false if nobody reads further results.
#[must_use]
pub(crate) fn redraw(text: &Styled) -> bool {
    let before = if io::stdout().is_terminal() { "\x1b[H\x1b[J" } else { "\n" };
    write(|stdout| stdout.write_all(before.as_bytes()));
    styled(text);
    lost().is_none()
}

/// Prints the next of several results. Returns false if nobody reads further results.
#[must_use]
pub(crate) fn next(line: &str) -> bool {
    text(line);
    lost().is_none()
}

/// Prints a result as indented JSON.
pub fn json(value: &impl Serialize) -> Result<()> {
    text(&indented(value)?);
    Ok(())
}

/// Returns the first error of standard output.
pub(crate) fn lost() -> Option<&'static io::Error> {
    LOST.get()
}

/// Returns why nobody has seen what was printed. If standard output is closed, the standard library
/// opens `/dev/null` in its place before `main`.
pub(crate) fn unseen() -> Option<String> {
    if let Some(error) = lost() {
        return Some(format!("cannot write to stdout: {error}"));
    }
    let device = rustix::fs::fstat(io::stdout()).ok()?.st_rdev;
    let null = (rustix::fs::major(device), rustix::fs::minor(device)) == NULL;
    null.then(|| "stdout is closed or /dev/null".to_owned())
}

/// Writes to standard output, unless it has failed before.
pub(crate) fn write(print: impl FnOnce(&mut dyn io::Write) -> io::Result<()>) {
    if lost().is_some() {
        return;
    }
    let mut stdout = io::stdout().lock();
    if let Err(error) = print(&mut stdout).and_then(|()| stdout.flush()) {
        let _ = LOST.set(error);
    }
}

/// A value as indented JSON with a newline at its end.
pub fn indented(value: &impl Serialize) -> Result<String> {
    let json = serde_json::to_string_pretty(value).context("cannot serialize JSON")?;
    Ok(without_negative_zero(json) + "\n")
}

/// A value as one line of JSON.
pub(crate) fn line(value: &impl Serialize) -> Result<String> {
    let json = serde_json::to_string(value).context("cannot serialize JSON")?;
    Ok(without_negative_zero(json) + "\n")
}

/// JSON with 0.0 instead of -0.0, which is the sum of no addends.
pub(crate) fn without_negative_zero(json: String) -> String {
    let mut text = String::with_capacity(json.len());
    let mut rest = json.as_str();
    let mut in_string = false;
    while let Some(at) = rest.find(['"', '\\', '-']) {
        let (before, tail) = rest.split_at(at);
        text.push_str(before);
        // an escape is two bytes: `\"` ends no string
        let len = if tail.starts_with('\\') { tail.len().min(2) } else { 1 };
        let is_zero = tail
            .strip_prefix("-0.0")
            .is_some_and(|after| !after.starts_with(|c: char| c.is_ascii_digit() || c == 'e'));
        if in_string || !is_zero {
            text.push_str(&tail[..len]);
        }
        in_string ^= tail.starts_with('"');
        rest = &tail[len..];
    }
    text + rest
}

/// Makes all later messages begin with the name of another program than `netsilo`.
pub fn set_program(name: &'static str) {
    PROGRAM.get_or_init(|| name);
}

/// Prints a message on stderr and ignores failure.
pub fn note(message: &str) {
    eprint_line(format_args!("{}: {message}", PROGRAM.get().unwrap_or(&"netsilo")));
}

/// Prints a line on stderr. Ignores failure, because the terminal may be gone.
pub(crate) fn eprint_line(message: impl Display) {
    eprint(format_args!("{message}\n"));
}

/// Prints a text on stderr and ignores failure.
pub(crate) fn eprint(text: impl Display) {
    let _ = Printable::new(&text.to_string()).write_to(io::stderr());
}

/// A text without control characters, except newline and tab. All output is of this type, including
/// errors.
struct Printable<'a>(Cow<'a, str>);

impl<'a> Printable<'a> {
    fn new(text: &'a str) -> Self {
        Self(printable(text))
    }

    fn write_to(&self, mut stream: impl io::Write) -> io::Result<()> {
        stream.write_all(self.0.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_of_nothing_is_zero_and_strings_keep_their_text() {
        let sum: f64 = [0.0; 0].iter().sum();
        let value = (sum, -0.5, -0.05, "a -0.0 \"-0.0\" \\", sum);
        assert_eq!(line(&value).unwrap(), "[0.0,-0.5,-0.05,\"a -0.0 \\\"-0.0\\\" \\\\\",0.0]\n");
        assert_eq!(indented(&[sum]).unwrap(), "[\n  0.0\n]\n");
    }
}
