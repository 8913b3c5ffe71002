//! The program `netsilo-bench`; all code is in the library, which `crates/dev` uses too.

use std::process::ExitCode;

fn main() -> ExitCode {
    netsilo_bench::main()
}
