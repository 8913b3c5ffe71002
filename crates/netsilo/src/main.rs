//! The program `netsilo`; all code is in the library, which `crates/dev` uses too.

use std::process::ExitCode;

fn main() -> ExitCode {
    netsilo::main()
}
