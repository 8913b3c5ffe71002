//! Exit codes (`docs/exit-codes.md`), and the one place where an error is printed.

use std::process::ExitCode;

use anyhow::Result;

/// How a verb ended, where it did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// 0: done, or nothing to do.
    Ok,
    /// 1: refused for a reason that was printed.
    Refused,
    /// 10: `plan --detailed-exitcode` has changes.
    ChangesPending,
    /// 30: another program owns the knobs.
    OtherOwner,
}

/// The process's exit code; a failure is explained on stderr, with its causes.
#[expect(clippy::print_stderr, reason = "the one place where errors are printed")]
pub(crate) fn code(result: Result<Exit>) -> ExitCode {
    match result {
        Ok(exit) => ExitCode::from(match exit {
            Exit::Ok => 0,
            Exit::Refused => 1,
            Exit::ChangesPending => 10,
            Exit::OtherOwner => 30,
        }),
        Err(error) => {
            eprintln!("netsilo: {error:#}");
            ExitCode::from(1)
        }
    }
}
