//! Arguments of `netsilo predict`.

use std::path::PathBuf;
use std::str::FromStr;

use crate::args::look::ObserveArgs;
use crate::verbs::predict::range::Range;

/// Options for an observed machine. Arguments that require `--scenario` name them too, because clap
/// does not demand an argument that a given one excludes.
const OF_THE_OBSERVED: [&str; 6] = ["plan", "load", "from", "interval", "window", "no_bpf"];

/// Arguments of `netsilo predict`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// File that describes machine, NIC, load and settings (docs/predict.md) [default: observe
    /// this machine]
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_THE_OBSERVED)]
    pub(super) scenario: Option<PathBuf>,
    /// Replace a value of the file: load.instances=500, machine.cores=32
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "scenario",
        conflicts_with_all = OF_THE_OBSERVED)]
    pub(super) changes: Vec<Pair>,
    /// Predict this setting: plan, or an algorithm (spread); with --scenario a name in the file.
    /// All KEY=VALUE together are one setting: rps=0-7, rfs=32768, xps=near, rx-usecs=50,
    /// rx-frames=32, adaptive-rx=on, threaded=on, queues=8, udp-ports=on; with --scenario irq=0-7
    /// and other keys of the file's settings
    /// [default: plan; with --scenario all of the file]
    #[arg(long = "setting", value_name = "NAME|KEY=VALUE")]
    pub(super) settings: Vec<String>,
    /// Predict the plan in this file, as printed by `netsilo plan --json`
    #[arg(long, value_name = "FILE")]
    pub(super) plan: Vec<PathBuf>,
    /// Predict at this multiple of the observed load: x2, x0.5 [default: x1]
    #[arg(long, value_name = "xFACTOR", value_parser = factor)]
    pub(super) load: Option<f64>,
    /// Predict over a range of one key of the file: load.instances=1..2000, or 1..2000/50 for 50
    /// points [default: 24 points]
    #[arg(long, value_name = "KEY=FROM..TO", requires = "scenario",
        conflicts_with = "per_cpu", conflicts_with_all = OF_THE_OBSERVED)]
    pub(super) sweep: Option<Range>,
    /// Also show how each CPU spends its time
    #[arg(short = 'v', long = "verbose")]
    pub(super) per_cpu: bool,
    /// Seed of the random draws from which the intervals of a described machine are computed
    #[arg(long, value_name = "N", default_value_t = 1, requires = "scenario",
        conflicts_with_all = OF_THE_OBSERVED)]
    pub(super) seed: u64,
    /// Print the result as JSON
    #[arg(short, long)]
    pub(super) json: bool,
    /// Predict for each line of standard input, which is an observation (netsilo capture --ndjson)
    /// or the path of a bundle, and print one line of JSON for each
    #[arg(long, conflicts_with_all = [
        "scenario", "plan", "per_cpu", "json", "from", "interval", "window", "no_bpf",
    ])]
    pub(super) ndjson: bool,
    #[command(flatten)]
    pub(super) observe: ObserveArgs,
}

/// A key and its value.
#[derive(Debug, Clone)]
pub(super) struct Pair(pub(super) String, pub(super) String);

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() && !value.is_empty() => {
                Ok(Self(key.to_owned(), value.to_owned()))
            }
            _ => Err("write KEY=VALUE".to_owned()),
        }
    }
}

/// Parses a multiple of the load.
fn factor(text: &str) -> Result<f64, String> {
    let number = text.strip_prefix('x').unwrap_or(text).parse::<f64>();
    number
        .ok()
        .filter(|factor| (0.01..=100.0).contains(factor))
        .ok_or_else(|| "write a multiple from x0.01 to x100".to_owned())
}

/// Settings by name, and the keys of one more setting.
pub(super) fn split(settings: &[String]) -> (Vec<String>, Vec<(String, String)>) {
    let (mut names, mut keys) = (Vec::new(), Vec::new());
    for setting in settings {
        match setting.split_once('=') {
            Some((key, value)) => keys.push((key.to_owned(), value.to_owned())),
            None => names.push(setting.clone()),
        }
    }
    (names, keys)
}
