//! `netsilo predict --simulate`: the settings packet by packet.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressStyle};
use netsilo_predict::comparison::Comparison;
use netsilo_predict::file::Described;
use netsilo_predict::parameters::Values;
use netsilo_predict::simulate::comparison::SimulatedComparison;
use netsilo_predict::simulate::{NotSimulated, Options, Simulated, Simulation};

use crate::args::parse::duration;
use crate::tell::exit::{Exit, ExitError};
use crate::tell::out;
use crate::tell::presentation::Presentation;
use crate::tell::versioned::Versioned;
use crate::views::predict::simulated::simulation;

/// Steps of a simulation after which the progress is shown.
const STEPS: u32 = 200;

/// Parses the time to simulate.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        time if time < SHORTEST => Err("write at least 1ms".into()),
        time => Ok(time),
    }
}

/// A shorter time shows too few transactions.
const SHORTEST: Duration = Duration::from_millis(1);

/// Prints a simulation.
pub(super) fn print(simulated: SimulatedComparison, per_cpu: bool, json: bool) -> Result<Exit> {
    let presentation = Presentation::of_stdout();
    if json {
        out::json(&Versioned::first(simulated))?
    } else {
        out::styled(&simulation(&simulated, per_cpu, presentation))
    }
    Ok(Exit::Printed)
}

/// Simulates the settings of `analytic`, with a progress bar if that takes over two seconds.
pub(super) fn compare(
    described: &Described,
    analytic: Comparison,
    values: &Values,
    options: &Options,
) -> Result<SimulatedComparison> {
    let mut progress = Progress { start: Instant::now(), bar: None };
    let count = analytic.settings.len() as u32;
    let mut simulated = Vec::with_capacity(analytic.settings.len());
    for (index, setting) in (0..).zip(&analytic.settings) {
        let known = described.settings.get(&setting.name);
        let known = known.context("each setting is one of the scenario's")?;
        let simulation = Simulation::new(&described.scenario, known, values, options);
        let simulation = simulation.map_err(|refusal| refused(&refusal))?;
        simulated.push(run(simulation, |step| progress.show(index * STEPS + step, count * STEPS)));
    }
    progress.end();
    Ok(SimulatedComparison::new(analytic, simulated, options))
}

fn refused(why: &NotSimulated) -> anyhow::Error {
    ExitError(Exit::Refused, format!("{why}; predict without --simulate answers")).into()
}

fn run(mut simulation: Simulation, mut show: impl FnMut(u32)) -> Simulated {
    for step in 1..=STEPS {
        simulation.advance(f64::from(step) / f64::from(STEPS));
        show(step);
    }
    simulation.finish()
}

struct Progress {
    start: Instant,
    /// `None` in the first two seconds.
    bar: Option<ProgressBar>,
}

impl Progress {
    fn show(&mut self, done: u32, all: u32) {
        if self.start.elapsed() < Duration::from_secs(2) {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template("simulating {wide_bar} {eta}");
            let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(all.into()).with_style(style).with_elapsed(self.start.elapsed())
        });
        bar.set_position(done.into());
    }

    fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}
