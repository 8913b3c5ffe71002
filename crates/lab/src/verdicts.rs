//! `make bench-verdicts`: what `check` says of RPS on a veth, held to what RPS does there.
//!
//! Containers have such a netdev each, and clusters switch RPS on for all of them. The veth is as
//! the kernel makes it: packets are processed on the sender's CPU.

mod score;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::say::{bar, say};
use crate::verdicts::score::{Pair, Recorded};
use crate::wire::{Wire, kernel};

/// Arguments of `verdicts`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Verdicts {
    /// Rounds of each pair; fewer than six have no interval
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Save the measured rates and a bundle of each load in this folder [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Measure nothing: judge these saved loads
    #[arg(long, value_name = "DIR", conflicts_with_all = ["keep", "rounds", "seconds"])]
    from: Option<PathBuf>,
}

/// The loads: a name, arguments of `bench run`, and the server's work per request in microseconds.
const LOADS: [(&str, &str, u32); 15] = [
    ("TCP_RR x 1", "-t TCP_RR -n 1", 0),
    ("TCP_RR x 4", "-t TCP_RR -n 4", 0),
    ("TCP_RR x 16", "-t TCP_RR -n 16", 0),
    ("TCP_RR x 64", "-t TCP_RR -n 64", 0),
    ("TCP_RR x 1, 50 us of work", "-t TCP_RR -n 1", 50),
    ("TCP_RR x 16, 5 us of work", "-t TCP_RR -n 16", 5),
    ("TCP_RR x 16, 50 us of work", "-t TCP_RR -n 16", 50),
    ("TCP_RR x 16, 200 us of work", "-t TCP_RR -n 16", 200),
    ("UDP_RR x 1", "-t UDP_RR -n 1", 0),
    ("UDP_RR x 4", "-t UDP_RR -n 4", 0),
    ("UDP_RR x 16", "-t UDP_RR -n 16", 0),
    ("UDP_RR x 64", "-t UDP_RR -n 64", 0),
    ("UDP_RR x 16, 50 us of work", "-t UDP_RR -n 16", 50),
    ("TCP_STREAM x 1", "-t TCP_STREAM -n 1", 0),
    ("TCP_STREAM x 4", "-t TCP_STREAM -n 4", 0),
];

/// The CPUs that RPS may use, as a mask: the one that does not process yet (the server's), and all.
const MASKS: [u32; 2] = [0b10, 0b11];

/// Measures, or reads what was measured, and prints a table.
pub(crate) fn run(args: &Verdicts) -> Result<()> {
    let temporary = tempfile::tempdir()?;
    let folder = args.from.as_ref().or(args.keep.as_ref());
    let folder = folder.map_or_else(|| temporary.path().to_owned(), Clone::clone);
    if args.from.is_none() {
        std::fs::create_dir_all(&folder)?;
        record(args, &folder)?;
    }
    say(&score::table(&Recorded::read(&folder)?, &folder)?)
}

/// Measures each load without RPS and with each mask, in turn.
fn record(args: &Verdicts, folder: &Path) -> Result<()> {
    let wire = Wire::new()?;
    let mut pairs = Vec::new();
    let bar = bar(LOADS.len() as u64 * u64::from(args.rounds));
    for (number, (name, load, work)) in LOADS.into_iter().enumerate() {
        bar.set_message(name);
        let _server = wire.server(work)?;
        let bundle = format!("{number:02}.tar.zst");
        wire.capture(load, &folder.join(&bundle)).context(name)?;
        let rate = |mask| {
            wire.set_rps(mask)?;
            wire.rate(load, args.seconds).context(name)
        };
        let (mut off, mut on) = (Vec::new(), vec![Vec::new(); MASKS.len()]);
        for _ in 0..args.rounds {
            off.push(rate(0)?);
            for (mask, rates) in MASKS.into_iter().zip(&mut on) {
                rates.push(rate(mask)?);
            }
            bar.inc(1);
        }
        wire.set_rps(0)?;
        pairs.extend(MASKS.into_iter().zip(on).map(|(rps, on)| {
            let (load, off, bundle) = (name.to_owned(), off.clone(), bundle.clone());
            Pair { load, rps, off, on, bundle }
        }));
    }
    bar.finish_and_clear();
    let Verdicts { rounds, seconds, .. } = args;
    let about = format!(
        "netsilo-lab verdicts --rounds {rounds} --seconds {seconds}; Linux {}; server on CPU 1, \
         clients on CPU 0",
        kernel()?
    );
    Recorded { about, pairs }.write(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of a text, without the lines that separate the head of a table.
    fn narrow(text: &str) -> String {
        text.split_whitespace().filter(|word| !word.starts_with("|-")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn verdicts_score_as_documented() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folder = root.join("fixtures/verdicts/veth");
        let table = score::table(&Recorded::read(&folder).unwrap(), &folder).unwrap();
        let documented = std::fs::read_to_string(root.join("docs/verdicts.md")).unwrap();
        assert!(narrow(&documented).contains(&narrow(&table)), "not in docs/verdicts.md:\n{table}");
    }
}
