//! The arguments of `netsilo top`.

use std::path::PathBuf;
use std::time::Duration;

use crate::args::apply_options::confirm_time;
use crate::args::goal::GoalArgs;
use crate::args::look;
use crate::args::state_dir::StateDir;

/// Arguments of `netsilo top`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) observe: look::ObserveArgs,
    /// Restore what key a applied, unless key c confirms it within this time (1s to 1day)
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = confirm_time)]
    pub(super) confirm_within: Duration,
    #[command(flatten)]
    pub(super) state: StateDir,
    /// Save all windows to this file when top ends, for --from
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    pub(super) record: Option<PathBuf>,
    /// Panic at this key, to test that the terminal is restored
    #[cfg(debug_assertions)]
    #[arg(long, value_name = "KEY", hide = true)]
    pub(super) panic_at: Option<char>,
    #[command(flatten, next_help_heading = "What key p plans")]
    pub(super) goal: GoalArgs,
}
