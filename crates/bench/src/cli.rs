//! The command line: arguments, and one match from verb to function.

use anyhow::Result;
use clap::{Command, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use netsilo::cli::examples::{Ending, WRITES, ending, with_endings};
use netsilo::cli::help;
use netsilo::tell::exit::Exit;
use netsilo::verbs::guard;
use netsilo_sys::files::root::Root;

use crate::{experiment, report, run, serve};

/// Make and answer network loads, measure both machines, and compare settings of a machine under
/// them.
#[derive(Debug, Parser)]
#[command(name = "netsilo-bench", version, max_term_width = 120, disable_help_subcommand = true)]
#[command(after_help = "More: man netsilo-bench; docs/bench.md")]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Answer the loads of run until interrupted
    Serve(serve::Args),
    /// Generate a load against serve; report its rate and what it costs both machines
    Run(Box<run::Args>),
    /// Compare settings of this machine under loads, in rounds and random order
    Experiment(Box<experiment::Args>),
    /// Print the results of an experiment as Markdown or JSON
    Report(report::Args),
    #[command(hide = true)]
    Instance {
        /// Internal task of this process
        task: String,
    },
    #[command(hide = true)]
    Guard(guard::Args),
}

/// The end of each verb's help.
pub const ENDINGS: &[Ending] = &[
    ending(
        "serve",
        [
            ("netsilo-bench serve", "for this machine only"),
            ("netsilo-bench serve --bind 0.0.0.0", "for other machines"),
        ],
    ),
    ending(
        "run",
        [
            ("netsilo-bench run 192.0.2.7", "requests and responses"),
            ("netsilo-bench run 192.0.2.7 --test TCP_STREAM", "a stream"),
        ],
    ),
    ending(
        "experiment",
        [
            ("netsilo-bench experiment matrix --peer 192.0.2.7", "a published experiment"),
            ("netsilo-bench experiment matrix --print >my.toml", "start of your own"),
        ],
    )
    .with_exits(WRITES),
    ending(
        "report",
        [
            ("netsilo-bench report matrix-1", "Markdown"),
            ("netsilo-bench report matrix-1 --json", "all figures"),
        ],
    ),
];

/// The command line, without the additions of [`command`].
pub fn bare_command() -> Command {
    Args::command()
}

/// The command line, with examples and exit codes at the end of each verb's help.
pub fn command() -> Command {
    with_endings(bare_command(), ENDINGS)
}

/// Runs the verb of the command line.
pub(crate) fn run() -> Result<Exit> {
    let matches = command().try_get_matches();
    let args = match matches.and_then(|matches| Args::from_arg_matches(&matches)) {
        Ok(args) => args,
        Err(error) => return Ok(help::shown(&error)),
    };
    Root::check_host()?;
    match args.verb {
        Verb::Serve(args) => serve::run(&args),
        Verb::Run(args) => run::run(&args),
        Verb::Experiment(args) => experiment::run(&args),
        Verb::Report(args) => report::run(&args),
        Verb::Instance { task } => {
            netsilo_load::instance(&task)?;
            Ok(Exit::Done)
        }
        Verb::Guard(args) => guard::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_each_example_is_one() {
        command().debug_assert();
        let command = command();
        let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
        let verbs: Vec<&str> = verbs.map(Command::get_name).collect();
        assert_eq!(ENDINGS.iter().map(|it| it.verb).collect::<Vec<_>>(), verbs);
        for (line, _) in ENDINGS.iter().flat_map(|it| it.examples) {
            let line = line.split(" >").next().unwrap_or(line);
            let parsed = self::command().try_get_matches_from(line.split(' '));
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
        }
    }
}
