//! netsilo: sees where a machine's network receive work runs, says where it should run, puts it there, undoes it.

use std::process::ExitCode;

mod apply;
mod cli;
mod exit;
mod out;
mod plan_view;
mod undo;

fn main() -> ExitCode {
    exit::code(cli::run())
}
