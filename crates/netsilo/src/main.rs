//! The program `netsilo`. All code is in the library, because `crates/dev` uses it too.

use std::process::ExitCode;

fn main() -> ExitCode {
    netsilo::main()
}
