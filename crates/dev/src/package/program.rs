//! The programs that packages contain.

use clap::Command;
use netsilo::cli::examples::Ending;
use netsilo::cli::topics::{TOPICS, Topic};

/// A program, as its command line describes it.
pub struct Program {
    /// Its name.
    pub name: &'static str,
    /// Its command line.
    pub command: fn() -> Command,
    /// The end of each verb's help.
    pub endings: &'static [Ending],
    /// Pages that its own manual page includes.
    pub topics: &'static [Topic],
}

/// All programs.
pub const PROGRAMS: [Program; 2] = [
    Program {
        name: "netsilo",
        command: netsilo::cli::bare_command,
        endings: netsilo::cli::examples::ENDINGS,
        topics: TOPICS,
    },
    Program {
        name: "netsilo-bench",
        command: netsilo_bench::cli::bare_command,
        endings: netsilo_bench::cli::ENDINGS,
        topics: &[],
    },
];
