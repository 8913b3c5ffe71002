//! `make bench-verdicts`: the verdict of `check` about RPS on a veth, checked against the effect of
//! RPS there.
//!
//! Each container has a veth, and clusters switch RPS on for all of them. The veth is as the kernel
//! makes it: packets are processed on the sender's CPU.

mod score;

use std::path::Path;

use anyhow::{Context, Result};

use crate::experiment::record::{LoadRecord, RoundResult, SettingRecord, Start};
use crate::experiment::run::records;
use crate::experiment::study::{Options, Scene, Study, Usual};
use crate::experiment::tables::print;
use crate::verdicts::score::Rps;
use crate::veths::{Server, Veth};
use crate::wire::{Course, cpus_of, kernel};

/// Arguments of `verdicts`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Verdicts {
    #[command(flatten)]
    options: Options,
}

const USUAL: Usual = Usual { rounds: 6, seconds: 1.0 };

/// The loads: a name, arguments of `netsilo-bench run`, and the server's work per request in
/// microseconds.
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

/// The CPUs of RPS, as a mask: none; the server's CPU, which does no receive work yet; all.
const MASKS: [u32; 3] = [0, 0b10, 0b11];

/// The veths. Each load has a separate veth.
struct Veths;

/// A load on a veth as the kernel makes it.
struct VethScene {
    number: usize,
    veth: Veth,
}

/// Measures, or reads earlier measurements, and prints a table.
pub(crate) fn run(args: &Verdicts) -> Result<()> {
    let temporary = tempfile::tempdir()?;
    for (folder, recorded) in records(&args.options, USUAL, vec![Box::new(Veths)], &temporary)? {
        print(&score::table(&recorded, &folder)?, &recorded)?;
    }
    Ok(())
}

impl Study for Veths {
    fn folder(&self) -> &'static str {
        "veth"
    }

    fn loads(&self) -> Vec<String> {
        LOADS.map(|(name, ..)| name.to_owned()).to_vec()
    }

    fn machine(&mut self) -> Result<String> {
        Ok(format!("Linux {}; server on CPU 1, clients on CPU 0", kernel()?))
    }

    fn start(&mut self, load: &str) -> Result<Box<dyn Scene + '_>> {
        let number = LOADS.iter().position(|(name, ..)| *name == load).context("unknown load")?;
        let (_, client, work) = LOADS[number];
        let veth = Veth::start(Course::One, Server::works(work), client)?;
        Ok(Box::new(VethScene { number, veth }))
    }
}

impl Scene for VethScene {
    fn plan(&mut self, folder: &Path) -> Result<LoadRecord> {
        let name = LOADS[self.number].0;
        let bundle = format!("{:02}.tar.zst", self.number);
        self.veth.capture(&folder.join(&bundle))?;
        let setting = |rps| {
            let name = match rps {
                0 => "no RPS".to_owned(),
                _ => format!("RPS onto {}", cpus_of(rps)),
            };
            SettingRecord::with(&name, &Rps { rps })
        };
        Ok(LoadRecord {
            name: name.to_owned(),
            unit: self.veth.unit(),
            settings: MASKS.into_iter().map(setting).collect::<Result<_>>()?,
            starts: vec![Start { placement: 0, bundle }],
            ..LoadRecord::default()
        })
    }

    fn apply(&mut self, setting: &SettingRecord) -> Result<()> {
        self.veth.set_rps(setting.details::<Rps>()?.rps)
    }

    fn measure(&mut self, seconds: f64) -> Result<RoundResult> {
        self.veth.measure(seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::record::Recorded;

    /// Joins the words of a text, without the lines that separate the head of a table.
    fn narrow(text: &str) -> String {
        text.split_whitespace().filter(|word| !word.starts_with("|-")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn verdicts_score_as_documented() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folder = root.join("fixtures/verdicts/veth");
        let table = score::table(&Recorded::read(&folder).unwrap().unwrap(), &folder).unwrap();
        let page = std::fs::read_to_string(root.join("evidence/verdicts.md")).unwrap();
        assert!(narrow(&page).contains(&narrow(&table)), "not in evidence/verdicts.md:\n{table}");
    }
}
