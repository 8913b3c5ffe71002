//! Options for applying a plan: the question to the user, confirmation, verification.

use std::time::Duration;

use crate::args::state_dir::StateDir;

/// Options for applying a plan.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ApplyOptions {
    /// Write without asking first
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Restore everything unless `netsilo confirm` runs within this time (1s to 1day)
    /// [default: keep the changes]
    #[arg(long, value_name = "DURATION", value_parser = confirm_time)]
    pub(crate) confirm_within: Option<Duration>,
    /// Afterwards wait until each netdev that received packets all the time before has received one
    /// again, and restore everything if one has not within this time (1s to 1day) [default: do not
    /// wait]
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = confirm_time,
        conflicts_with = "confirm_within"
    )]
    pub(crate) receiving_within: Option<Duration>,
    /// First measure with and without the plan, up to 12 times each for TIME (1s if not given), and
    /// do not apply the plan if it raises CPU time per received megabyte [default: do not measure]
    #[arg(
        long,
        value_name = "TIME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1s",
        value_parser = crate::args::parse::counting_time
    )]
    pub(crate) verify: Option<Duration>,
    /// Also print each write, and how long each phase took: read, plan, write, wait for interrupts
    /// to arrive
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Print the outcome as JSON
    #[arg(short, long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) state: StateDir,
}

impl ApplyOptions {
    /// Whether the changes are restored unless confirmed.
    pub(crate) fn awaits_confirmation(&self) -> bool {
        self.confirm_within.is_some()
    }

    /// The same options, without the question.
    pub(crate) fn without_asking(&self) -> Self {
        Self { yes: true, ..self.clone() }
    }
}

/// Parses a confirmation time between one second and one day.
pub(crate) fn confirm_time(text: &str) -> Result<Duration, String> {
    let time = crate::args::parse::duration(text)?;
    let (least, most) = (Duration::from_secs(1), Duration::from_secs(24 * 60 * 60));
    if (least..=most).contains(&time) { Ok(time) } else { Err("choose between 1s and 1day".into()) }
}
