//! netsilo: shows where a machine's network receive work runs, plans where it should run, applies
//! the plan, and undoes it.

use std::process::ExitCode;

mod ab;
mod apply;
mod bench;
mod calibrate;
mod capture;
#[cfg(test)]
mod cases;
mod check;
mod check_config;
mod check_view;
mod cli;
mod config;
mod exit;
mod explain;
mod export;
mod mask;
mod observe;
mod out;
mod pin;
mod plan;
mod plan_view;
mod report;
mod rss;
mod rss_view;
mod run;
mod show;
mod show_view;
mod stages_view;
mod status;
mod switch;
mod undo;
mod units;
mod verdict_view;
mod why;
mod why_view;

fn main() -> ExitCode {
    exit::code(cli::run())
}
