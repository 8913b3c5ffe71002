//! The command line: arguments, and one match from verb to function.

pub mod completions;
pub mod examples;
mod groups;
pub mod help;
pub mod topics;

use anyhow::Result;
use clap::{Command, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use netsilo_sys::files::root::Root;

use crate::args::netns;
use crate::tell::exit::Exit;
use crate::verbs::{
    ab, apply, calibrate, capture, check, confirm, doctor, explain, export, guard, isolate, keep,
    pin, plan, predict, rss, show, status, undo,
};
use crate::{daemon, report, top, tune};

/// Show where a Linux machine's network receive work runs, plan where it should run, apply that
/// plan, and undo it exactly.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 120, disable_help_subcommand = true)]
#[command(after_help = "More: netsilo help topics; man netsilo")]
pub(crate) struct Args {
    /// Work in this network namespace: a name of `ip netns`, a pod (default/web-0), a pid, a path
    #[arg(long, global = true, value_name = "NETNS")]
    netns: Option<String>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show which CPU polls each rx queue, and who reads its data where
    Show(show::Args),
    /// Watch queues, CPUs and readers live; plan, apply and undo there
    Top(Box<top::Args>),
    /// Report what is wrong, and what each remedy would gain or cost
    Check(check::Args),
    /// Explain a finding, or why work is on a CPU, queue or interrupt
    Explain(explain::Args),
    /// Predict which rx queue RSS selects for a flow; show its spread
    Rss(rss::Args),
    /// Print what apply would write, with reasons
    Plan(plan::Args),
    /// Predict what settings would do to a machine under its load
    Predict(predict::Args),
    /// Show the plan, ask, and write it as one undoable transaction
    Apply(apply::Args),
    /// Restrict a reader to some CPUs, as one undoable transaction
    Pin(pin::Args),
    /// Move interrupts and packets off some CPUs; count what is left
    Isolate(isolate::Args),
    /// Accept what apply --confirm-within wrote
    Confirm(confirm::Args),
    /// Let what was confirmed survive a reboot
    Keep(keep::Args),
    /// Restore values written since boot, unless others changed them
    Undo(undo::Args),
    /// Save all that netsilo reads as a bundle, to examine elsewhere
    Capture(capture::Args),
    /// Print the plan for irqbalance, systemd, tuned or a shell
    Export(export::Args),
    /// Measure what a cache line and a wakeup cost between CPUs
    Calibrate(calibrate::Args),
    /// Switch between two settings repeatedly; report if they differ
    Ab(Box<ab::Args>),
    /// Try placements and knobs under the live load; keep the best
    Tune(Box<tune::Args>),
    /// Write a page about an incident, to attach to a ticket
    Report(report::Args),
    /// Run the daemon: observe, decide, place, verify in each cycle
    Run(daemon::Args),
    /// Show what the daemon does, and why
    Status(status::Args),
    /// Report what limits netsilo on this machine, and how to fix it
    Doctor(doctor::Args),
    /// Print the help of a verb, or a page on a topic
    Help(help::Args),
    #[command(hide = true)]
    Guard(guard::Args),
}

/// The command line, without the additions of [`command`].
pub fn bare_command() -> Command {
    Args::command()
}

/// The command line, with its verbs in groups, and with examples and exit codes at the end of each
/// verb's help.
pub fn command() -> Command {
    groups::with_groups(examples::with_endings(bare_command(), examples::ENDINGS))
}

/// Reads the command line; `Err`: it only asked for help, or is wrong.
pub(crate) fn args() -> Result<Args, Result<Exit>> {
    // The examples take time to write, and only a help text or an error shows them.
    let read = bare_command().try_get_matches().or_else(|_| command().try_get_matches());
    let read = read.and_then(|matches| Ok((Args::from_arg_matches(&matches)?, matches)));
    let (args, matches) = read.map_err(|error| Ok(help::shown(&error)))?;
    let checked = args.netns.as_ref().map_or(Ok(()), |given| netns::check(given, &matches));
    checked.map(|()| args).map_err(Err)
}

/// Enters the network namespace that the command line names. No other thread may run yet.
pub(crate) fn enter(args: &Args) -> Result<()> {
    Root::check_host()?;
    args.netns.as_deref().map_or(Ok(()), netns::enter)
}

/// Runs the verb of the command line.
pub(crate) fn run(args: Args) -> Result<Exit> {
    match args.verb {
        Verb::Show(args) => show::run(&args),
        Verb::Top(args) => top::run(&args),
        Verb::Check(args) => check::run(&args),
        Verb::Explain(args) => explain::run(&args),
        Verb::Rss(args) => rss::run(&args),
        Verb::Plan(args) => plan::run(&args),
        Verb::Predict(args) => predict::run(&args),
        Verb::Apply(args) => apply::run(&args),
        Verb::Pin(args) => pin::run(&args),
        Verb::Isolate(args) => isolate::run(&args),
        Verb::Confirm(args) => confirm::run(&args),
        Verb::Keep(args) => keep::run(&args),
        Verb::Undo(args) => undo::run(&args),
        Verb::Capture(args) => capture::run(&args),
        Verb::Export(args) => export::run(&args),
        Verb::Calibrate(args) => calibrate::run(&args),
        Verb::Ab(args) => ab::run(&args),
        Verb::Tune(args) => tune::run(&args),
        Verb::Report(args) => report::run(&args),
        Verb::Run(args) => daemon::run(&args),
        Verb::Status(args) => status::run(&args),
        Verb::Doctor(args) => doctor::run(&args),
        Verb::Help(args) => help::run(&args, command()),
        Verb::Guard(args) => guard::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use netsilo_decide::judge::findings::FindingId;

    #[test]
    fn the_command_line_is_consistent() {
        super::command().debug_assert();
    }

    #[test]
    fn every_finding_in_a_help_text_exists() {
        let mut named = Vec::new();
        findings(&super::command(), &mut named);
        assert!(!named.is_empty(), "no help text has an example of --fix ID:SUBJECT");
        for id in named {
            assert!(id.parse::<FindingId>().is_ok(), "no finding is called {id}");
        }
    }

    /// Collects the ids that help texts of a verb and its subcommands write as `ID:SUBJECT`.
    fn findings(command: &clap::Command, named: &mut Vec<String>) {
        for arg in command.get_arguments().filter(|arg| arg.get_id() == "fix") {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let examples = help.split(|c: char| c.is_whitespace() || "(),".contains(c));
            named.extend(examples.filter_map(|it| Some(it.split_once(':')?.0.to_owned())));
        }
        command.get_subcommands().for_each(|verb| findings(verb, named));
    }
}
