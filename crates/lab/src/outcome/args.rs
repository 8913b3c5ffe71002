//! How long to measure.

/// How long to measure.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Measure {
    /// Rounds of each load; odd ones tell which place is best, even ones by how much
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..))]
    pub(super) rounds: u16,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 2)]
    pub(super) seconds: u32,
    /// Times that the default is asked from each start
    #[arg(long, default_value_t = 2)]
    pub(super) looks: u16,
}
