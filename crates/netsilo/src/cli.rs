//! The command line: arguments, and one match from verb to function.

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::tell::exit::Exit;
use crate::verbs::{
    ab, apply, calibrate, capture, check, check_config, explain, export, mask, pin, plan, rss,
    show, status, undo, why,
};
use crate::{bench, daemon, report};

/// Sees where a Linux machine's network receive work runs, says where it should run, puts it there,
/// undoes it exactly.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 120, after_help = "Exit codes: docs/exit-codes.md")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show which rx queue is processed on which CPU, and who reads its data where
    Show(show::Args),
    /// Say what is wrong with the receive path, what each remedy would gain or cost, and when not
    /// to
    Check(check::Args),
    /// Print the page of a finding, or the list of all findings
    Explain(explain::Args),
    /// Tell where RSS takes a flow, and how evenly it spreads those that arrive
    Rss(rss::Args),
    /// Print what apply would write, with the reasons
    Plan(plan::Args),
    /// Show the plan, ask, and write it as one transaction that undo takes back
    Apply(apply::Args),
    /// Restrict a consumer to some CPUs; shows it first, asks, and undo takes it back
    Pin(pin::Args),
    /// Keep what apply --confirm-within has written
    Confirm(undo::ConfirmArgs),
    /// Take back what is still ours of all that was applied since boot
    Undo(undo::UndoArgs),
    /// Save all that is read into a bundle, to be looked at elsewhere with --from
    Capture(capture::Args),
    /// Tell what put work on a CPU and why exactly there; or why a queue, netdev or interrupt is
    /// where it is
    Why(why::Args),
    /// Print the plan in the words of another program: irqbalance, systemd, tuned, a shell script
    Export(export::Args),
    /// Measure what a cache line and a wakeup cost between this machine's CPUs, for plan to reckon
    /// with
    Calibrate(calibrate::Args),
    /// Switch between two settings, measure each in turns, and say whether it makes a difference
    Ab(Box<ab::Args>),
    /// Make a network load, or answer one, and measure both machines
    #[command(subcommand)]
    Bench(bench::Args),
    /// Show what came of an experiment: a page, Markdown or JSON
    Report(report::Args),
    /// Print a set of CPUs in each of the kernel's spellings
    Mask(mask::Args),
    /// Follow the workload: look, decide, place, verify, again and again (the daemon)
    Run(daemon::Args),
    /// Show what the daemon does, and why
    Status(status::Args),
    /// Check the daemon's configuration: a file, or a folder as /etc/netsilo
    CheckConfig(check_config::Args),
    #[command(hide = true)]
    Guard(apply::GuardArgs),
}

/// Runs the verb that the command line names.
pub(crate) fn run() -> Result<Exit> {
    match Args::parse().verb {
        Verb::Show(args) => show::run(&args),
        Verb::Check(args) => check::run(&args),
        Verb::Explain(args) => explain::run(&args),
        Verb::Rss(args) => rss::run(&args),
        Verb::Plan(args) => plan::run(&args),
        Verb::Apply(args) => apply::run(&args),
        Verb::Pin(args) => pin::run(&args),
        Verb::Confirm(args) => undo::confirm(&args),
        Verb::Undo(args) => undo::undo(&args),
        Verb::Capture(args) => capture::run(&args),
        Verb::Why(args) => why::run(&args),
        Verb::Export(args) => export::run(&args),
        Verb::Calibrate(args) => calibrate::run(&args),
        Verb::Ab(args) => ab::run(&args),
        Verb::Bench(args) => bench::run(&args),
        Verb::Report(args) => report::run(&args),
        Verb::Mask(args) => mask::run(&args),
        Verb::Run(args) => daemon::run(&args),
        Verb::Status(args) => status::run(&args),
        Verb::CheckConfig(args) => check_config::run(&args),
        Verb::Guard(args) => apply::guard(&args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Args::command().debug_assert();
    }
}
