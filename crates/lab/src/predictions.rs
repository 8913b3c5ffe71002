//! `make predict-blind`: settings and loads that were not used to fit the model are predicted
//! first, then measured.
//!
//! Over a veth of this machine's kernel, rates are predicted; in a guest, counts ([`guest`]).

mod draw;
mod guest;
mod predicted;
mod table;

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::experiment::record::{LoadRecord, RoundResult, SettingRecord, Start};
use crate::experiment::run::records;
use crate::experiment::study::{Options, Scene, Study, Usual};
use crate::experiment::tables::print;
use crate::predictions::draw::{RandomLoad, draw, name, words};
use crate::predictions::guest::Drawn;
use crate::predictions::predicted::{PredictedLoad, PredictedSetting};
use crate::veths::{Server, Veth, VethSetting};
use crate::wire::{Course, kernel};

const USUAL: Usual = Usual { rounds: 4, seconds: 1.0 };

/// Arguments of `predictions`. `--seed` also determines the loads and the settings.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Predictions {
    #[command(flatten)]
    options: Options,
    /// Pairs of a setting and a load: five settings for each load
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u16).range(5..=200))]
    pairs: u16,
    /// Predict and measure counts in a guest: packets by CPU, IPIs, interrupts. The guest may be
    /// emulated
    #[arg(long)]
    guest: bool,
    /// With --from: predict again with the current model, which may have been fitted to these
    /// measurements
    #[arg(long, requires = "from", conflicts_with = "guest")]
    again: bool,
}

/// Predicts and measures, or reads earlier measurements, and prints a table.
pub(crate) fn run(args: &Predictions) -> Result<()> {
    let temporary = tempfile::tempdir()?;
    let loads = usize::from(args.pairs) / draw::SETTINGS;
    let seed = args.options.seed.unwrap_or(1);
    let study: Box<dyn Study> = if args.guest {
        Box::new(Drawn::new(seed, loads))
    } else {
        Box::new(Veths { seed, loads })
    };
    for (folder, recorded) in records(&args.options, USUAL, vec![study], &temporary)? {
        let measured = recorded.loads.iter().filter(|load| load.complete_rounds() > 0);
        let table = if args.guest {
            guest::render(&measured.map(guest::GuestRow::new).collect::<Result<Vec<_>>>()?)
        } else {
            let row = |load| {
                let row = PredictedLoad::new(load)?;
                if args.again { row.predicted_again(load, &folder) } else { Ok(row) }
            };
            table::render(&measured.map(row).collect::<Result<Vec<_>>>()?)
        };
        print(&table, &recorded)?;
    }
    Ok(())
}

/// Random loads on veths. Each load has a separate veth.
struct Veths {
    seed: u64,
    loads: usize,
}

/// A random load on a veth that a kthread polls.
struct VethScene {
    number: usize,
    seed: u64,
    load: RandomLoad,
    settings: Vec<VethSetting>,
    veth: Veth,
}

impl Study for Veths {
    fn folder(&self) -> &'static str {
        "veth"
    }

    fn loads(&self) -> Vec<String> {
        let name = |number| name(self.seed, number, &draw(self.seed, number).0.name());
        (0..self.loads).map(name).collect()
    }

    fn machine(&mut self) -> Result<String> {
        Ok(format!("Linux {}; server on CPU 1, clients on CPU 0", kernel()?))
    }

    fn start(&mut self, load: &str) -> Result<Box<dyn Scene + '_>> {
        let number = self.loads().iter().position(|name| name == load).context("unknown load")?;
        let (load, settings) = draw(self.seed, number);
        let veth = Veth::start(Course::One, Server::works(load.work_us), &load.arguments())?;
        Ok(Box::new(VethScene { number, seed: self.seed, load, settings, veth }))
    }
}

impl Scene for VethScene {
    /// What netsilo observes of the load under the first setting, and the predictions for all
    /// settings.
    fn plan(&mut self, folder: &Path) -> Result<LoadRecord> {
        let Self { seed, number, load, settings, veth } = self;
        veth.set(&settings[0])?;
        let bundle = format!("{seed}-{number:03}.tar.zst");
        veth.capture(&folder.join(&bundle))?;
        let predicted = predicted::predicted(settings, &folder.join(&bundle))?;
        let setting = |it: &PredictedSetting| SettingRecord::with(&words(&it.setting), it);
        Ok(LoadRecord {
            name: name(*seed, *number, &load.name()),
            unit: veth.unit(),
            settings: predicted.iter().map(setting).collect::<Result<_>>()?,
            starts: vec![Start { placement: 0, bundle }],
            ..LoadRecord::default()
        })
    }

    fn apply(&mut self, setting: &SettingRecord) -> Result<()> {
        self.veth.set(&setting.details::<PredictedSetting>()?.setting)
    }

    fn measure(&mut self, seconds: f64) -> Result<RoundResult> {
        self.veth.measure(seconds)
    }
}
