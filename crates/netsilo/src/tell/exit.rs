//! Exit codes (`docs/topics/exit-codes.md`), and the only place that prints an error.

use std::io::ErrorKind;
use std::process::ExitCode;

use anyhow::{Error, Result};
use netsilo_sys::cost::store::StoreError;
use netsilo_sys::daemon::instance::InstanceError;
use netsilo_sys::files::trust::PathError;
use netsilo_sys::outcomes::OutcomeError;
use netsilo_sys::transaction::apply::ApplyError;
use netsilo_sys::transaction::guard::ConfirmError;
use netsilo_sys::transaction::journal::JournalError;

use crate::tell::out::{self, note};
use crate::tell::versioned::Versioned;

/// Bytes of stack for a command, whatever `ulimit -s` says: in 64 KiB the command line alone does
/// not fit.
const STACK: usize = 8 << 20;

/// Does work in a thread that has enough stack. The error is the exit code of a panic, or of a
/// thread that cannot start.
pub fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, ExitCode> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work);
        match thread.map(|it| it.join()) {
            Ok(Ok(value)) => Ok(value),
            // The panic has been printed.
            Ok(Err(_)) => Err(ExitCode::from(101)),
            Err(error) => {
                note(&format!("cannot start a thread: {error}"));
                Err(ExitCode::from(Exit::Refused.code()))
            }
        }
    })
}

/// How a verb ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// 0: done, or nothing to do. The work does not depend on standard output.
    Done,
    /// 0: the requested output is printed.
    Printed,
    /// 1: refused or failed for a printed reason. Nothing was changed.
    Refused,
    /// 2: the command line is wrong. clap uses this code too.
    Usage,
    /// 3: `status` found no daemon.
    NotRunning,
    /// 10: `plan --detailed-exitcode` has changes to make.
    ChangesPending,
    /// 11: `check` has a finding at least as severe as `--fail-on`.
    Findings,
    /// 12: `--ndjson`: some lines of the input could not be used. The others have their answer.
    UnusableLines,
    /// 20: a write failed, and everything was restored.
    FailedAndRestored,
    /// 21: something could not be restored.
    RestoreIncomplete,
    /// 30: another program owns these settings.
    OtherOwner,
    /// 77: a privilege is missing.
    NoPermission,
    /// 78: the daemon's configuration is wrong; `EX_CONFIG` of sysexits.h.
    BadConfiguration,
}

impl Exit {
    /// The number.
    pub fn code(self) -> u8 {
        match self {
            Self::Done | Self::Printed => 0,
            Self::Refused => 1,
            Self::Usage => 2,
            Self::NotRunning => 3,
            Self::ChangesPending => 10,
            Self::Findings => 11,
            Self::UnusableLines => 12,
            Self::FailedAndRestored => 20,
            Self::RestoreIncomplete => 21,
            Self::OtherOwner => 30,
            Self::NoPermission => 77,
            Self::BadConfiguration => 78,
        }
    }

    /// The meaning in a few words, for help texts. `docs/topics/exit-codes.md` has the next steps.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::Done | Self::Printed => "done, or nothing to do",
            Self::Refused => "refused or failed for the printed reason; nothing was changed",
            Self::Usage => "the command line is invalid",
            Self::NotRunning => "no daemon answers",
            Self::ChangesPending => "with --detailed-exitcode: changes are pending",
            Self::Findings => "a finding or problem is at least as severe as --fail-on",
            Self::UnusableLines => "with --ndjson: some lines of the input could not be used",
            Self::FailedAndRestored => "a write failed, and everything was restored",
            Self::RestoreIncomplete => "a setting could not be restored; run netsilo undo",
            Self::OtherOwner => "another program owns these settings",
            Self::NoPermission => "a privilege is missing",
            Self::BadConfiguration => "the configuration is bad",
        }
    }

    /// The exit code if standard output failed, and whether to print a line about it. If the output
    /// is the verb's work, the code is 1, unless its reader needed no more output. The code of
    /// other work stays the same.
    fn without_output(self, reader_left: bool) -> (Self, bool) {
        match self {
            Self::Done | Self::FailedAndRestored | Self::RestoreIncomplete => (self, true),
            Self::Printed | Self::ChangesPending | Self::Findings | Self::UnusableLines
                if !reader_left =>
            {
                (Self::Refused, true)
            }
            Self::Printed
            | Self::ChangesPending
            | Self::Findings
            | Self::UnusableLines
            | Self::Refused
            | Self::Usage
            | Self::NotRunning
            | Self::OtherOwner
            | Self::NoPermission
            | Self::BadConfiguration => (self, !reader_left),
        }
    }

    /// Returns the code of an error, according to what the caller may do next.
    fn from_error(error: &Error) -> Self {
        if let Some(ExitError(exit, _)) = error.downcast_ref() {
            return *exit;
        }
        let journal = |error: &JournalError| match error {
            JournalError::Unrecorded { .. } => Self::RestoreIncomplete,
            error if error.is_permission() => Self::NoPermission,
            _ => Self::Refused,
        };
        if let Some(error) = error.downcast_ref::<JournalError>() {
            return journal(error);
        }
        if let Some(ConfirmError::Journal(error)) = error.downcast_ref() {
            return journal(error);
        }
        if let Some(InstanceError::State(error)) = error.downcast_ref() {
            return journal(error);
        }
        if let Some(error) = error.downcast_ref::<PathError>() {
            return if error.is_permission() { Self::NoPermission } else { Self::Refused };
        }
        if let Some(error) = error.downcast_ref::<StoreError>() {
            return if error.is_permission() { Self::NoPermission } else { Self::Refused };
        }
        if let Some(error) = error.downcast_ref::<OutcomeError>() {
            return if error.is_permission() { Self::NoPermission } else { Self::Refused };
        }
        match error.downcast_ref::<ApplyError>() {
            Some(ApplyError::Journal(error)) => journal(error),
            Some(ApplyError::NoPermission(_)) => Self::NoPermission,
            Some(ApplyError::Restored { .. }) => Self::FailedAndRestored,
            Some(ApplyError::Incomplete { .. }) => Self::RestoreIncomplete,
            _ => Self::Refused,
        }
    }
}

/// A message with the exit code to end with.
#[derive(Debug)]
pub struct ExitError(pub Exit, pub String);

impl std::fmt::Display for ExitError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.1)
    }
}

impl std::error::Error for ExitError {}

/// Why a command with `--json` failed, on standard error.
#[derive(Debug, serde::Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ErrorDocument {
    /// The reason.
    error: String,
    /// The exit code.
    exit_code: u8,
    /// The meaning of the exit code.
    meaning: &'static str,
}

/// Prints why a command ended with this exit code, on standard error: with `--json` as JSON.
pub(crate) fn report(exit: Exit, error: String) {
    if !is_json(std::env::args().skip(1)) {
        return note(&error);
    }
    let (exit_code, meaning) = (exit.code(), exit.meaning());
    let document = Versioned::first(ErrorDocument { error, exit_code, meaning });
    match out::line(&document) {
        Ok(line) => out::eprint(&line),
        Err(_) => note(&document.result.error),
    }
}

/// Prints an error of the command line, with what may have been meant.
pub(crate) fn report_usage(error: &clap::Error, tip: Option<String>) {
    if is_json(std::env::args().skip(1)) {
        let error = error.render().to_string();
        let error = error.trim_start_matches("error: ").trim_end();
        let tip = tip.map_or_else(String::new, |tip| format!("; {tip}"));
        return report(Exit::Usage, format!("{error}{tip}"));
    }
    let _ = error.print();
    if let Some(tip) = tip {
        out::eprint_line(format_args!("\n  tip: {tip}"));
    }
}

/// Whether a command line asks for JSON: `--json`, or `-j`, alone or with other letters.
fn is_json(words: impl Iterator<Item = String>) -> bool {
    let mut words = words.take_while(|word| word != "--");
    words.any(|word| {
        let letters = word.strip_prefix('-').filter(|it| !it.starts_with('-'));
        word == "--json"
            || letters.is_some_and(|it| {
                it.chars().take_while(char::is_ascii_alphabetic).any(|c| c == 'j')
            })
    })
}

/// Returns the exit code of the process. Prints an error with its causes on stderr.
pub fn code(result: Result<Exit>) -> ExitCode {
    let exit = result.unwrap_or_else(|error| {
        let exit = Exit::from_error(&error);
        report(exit, in_words(&error));
        exit
    });
    let Some(error) = out::lost() else { return ExitCode::from(exit.code()) };
    let (exit, told) = exit.without_output(error.kind() == ErrorKind::BrokenPipe);
    if told {
        note(&format!("cannot write to stdout: {error}"));
    }
    ExitCode::from(exit.code())
}

/// Joins the error and its causes. Skips a cause that the message already tells.
pub(crate) fn in_words(error: &Error) -> String {
    error.chain().skip(1).map(ToString::to_string).fold(error.to_string(), |words, cause| {
        if words.contains(&cause) { words } else { format!("{words}: {cause}") }
    })
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    #[test]
    fn a_cause_that_the_message_tells_is_not_repeated() {
        let cause = std::io::Error::other("no space left");
        let error = anyhow::Error::new(cause).context("writing a: no space left");
        let error = Err::<(), _>(error).context("cannot capture").unwrap_err();
        assert_eq!(super::in_words(&error), "cannot capture: writing a: no space left");

        let cause = std::io::Error::other("refused");
        let error = anyhow::Error::new(cause).context("no server at ::1 (refused): start one");
        assert_eq!(super::in_words(&error), "no server at ::1 (refused): start one");
    }
}
