//! `make predict-blind`: settings and loads that no fit has seen, predicted first, then measured.
//!
//! Over a veth of this machine's kernel these are rates, in a guest counts ([`guest`]).

mod draw;
mod guest;
mod predicted;
mod table;

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::experiment::record::{Load, Measured, Setting, Start};
use crate::experiment::run::records;
use crate::experiment::study::{Options, Scene, Study, Usual};
use crate::experiment::tables::print;
use crate::predictions::draw::{RandomLoad, VethSetting, draw, name};
use crate::predictions::guest::Drawn;
use crate::predictions::predicted::{PredictedSetting, Row};
use crate::wire::{Kthread, Running, Wire, kernel};

const USUAL: Usual = Usual { rounds: 4, seconds: 1.0 };

/// Arguments of `predictions`; `--seed` also draws the loads and the settings.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Predictions {
    #[command(flatten)]
    options: Options,
    /// Pairs of a setting and a load: five settings for each load
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u16).range(5..=200))]
    pairs: u16,
    /// Predict and measure counts in a guest: packets by CPU, IPIs, interrupts. It may be emulated
    #[arg(long)]
    guest: bool,
    /// With --from: predict again with the present model, which has seen these measurements
    #[arg(long, requires = "from", conflicts_with = "guest")]
    again: bool,
}

/// Predicts and measures, or reads what was measured, and prints a table.
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
                let row = Row::new(load)?;
                if args.again { row.predicted_again(load, &folder) } else { Ok(row) }
            };
            table::render(&measured.map(row).collect::<Result<Vec<_>>>()?)
        };
        print(&table, &recorded)?;
    }
    Ok(())
}

/// Random loads on veths, each on one of its own.
struct Veths {
    seed: u64,
    loads: usize,
}

/// A random load on a veth that a kthread polls.
struct Veth {
    number: usize,
    seed: u64,
    load: RandomLoad,
    settings: Vec<VethSetting>,
    wire: Wire,
    kthread: Kthread,
    _server: Running,
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
        let wire = Wire::new()?;
        let kthread = wire.threaded()?;
        let server = wire.server(load.work_us)?;
        let seed = self.seed;
        Ok(Box::new(Veth { number, seed, load, settings, wire, kthread, _server: server }))
    }
}

impl Scene for Veth {
    /// What netsilo sees of the load under the first setting, and the predictions for all.
    fn plan(&mut self, folder: &Path) -> Result<Load> {
        let Self { seed, number, load, settings, wire, kthread, .. } = self;
        settings[0].apply(wire, kthread)?;
        let bundle = format!("{seed}-{number:03}.tar.zst");
        wire.capture(&load.arguments(), &folder.join(&bundle))?;
        let predicted = predicted::predicted(settings, &folder.join(&bundle))?;
        let setting = |it: &PredictedSetting| Setting::with(&it.setting.name(), it);
        Ok(Load {
            name: name(*seed, *number, &load.name()),
            unit: if load.bytes == 0 { "byte" } else { "transaction" }.to_owned(),
            settings: predicted.iter().map(setting).collect::<Result<_>>()?,
            starts: vec![Start { placement: 0, bundle }],
            ..Load::default()
        })
    }

    fn apply(&mut self, setting: &Setting) -> Result<()> {
        setting.details::<PredictedSetting>()?.setting.apply(&self.wire, &self.kthread)
    }

    fn measure(&mut self, seconds: f64) -> Result<Measured> {
        Ok(Measured::new(self.wire.rate(&self.load.arguments(), seconds)?, Vec::new()))
    }
}
