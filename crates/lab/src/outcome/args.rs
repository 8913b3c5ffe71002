//! What to measure, and for how long.

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Part {
    /// Veths of this machine, at true speed
    Veth,
    /// A guest with 8 CPUs on two sockets: counts
    Guest8,
    /// A guest with 16 CPUs on two sockets: counts
    Guest16,
    /// A guest with 8 CPUs that forwards between two NICs: counts
    Forward,
}

impl Part {
    /// The folder of its outcomes.
    pub(super) fn folder(self) -> &'static str {
        match self {
            Self::Veth => "veth",
            Self::Guest8 => "guest8",
            Self::Guest16 => "guest16",
            Self::Forward => "forward",
        }
    }
}

/// How long to measure.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Measure {
    /// Rounds of each load; odd ones tell which place is best, even ones by how much. With fewer
    /// than ten, the regret has no interval
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(2..))]
    pub(super) rounds: u16,
    /// Seconds of each measurement on a veth; in a guest, whole ones
    #[arg(long, default_value_t = 0.5, value_parser = seconds)]
    pub(super) seconds: f64,
    /// Times that the default is asked from each start
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) looks: u16,
    /// Measure only loads whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(super) load: String,
    /// Begin no load after this many seconds; the same command with --keep then goes on
    #[arg(long, value_name = "SECONDS")]
    pub(super) at_most: Option<u64>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if (0.2..=60.0).contains(&seconds) { Ok(seconds) } else { Err("from 0.2 to 60".to_owned()) }
}
