//! Exit codes (`docs/exit-codes.md`), and the one place where an error is printed.

use std::process::ExitCode;

use anyhow::Result;

/// How a verb ended, where it did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// 0: done.
    Ok,
}

/// The process's exit code; a failure is explained on stderr, with its causes.
#[expect(clippy::print_stderr, reason = "the one place where errors are printed")]
pub(crate) fn code(result: Result<Exit>) -> ExitCode {
    match result {
        Ok(exit) => ExitCode::from(match exit {
            Exit::Ok => 0,
        }),
        Err(error) => {
            eprintln!("netsilo: {error:#}");
            ExitCode::from(1)
        }
    }
}
