//! How far the model is off, over some cells.

use netsilo_predict::interval::Draws;
use netsilo_predict::parameters::Table;
use netsilo_trial::stats::Estimate;

use crate::cells::{self, Cell, Kind};

/// One cell with what the model says of it.
pub(crate) struct Judged {
    pub(crate) published: f64,
    pub(crate) predicted: f64,
    pub(crate) interval: Option<Estimate>,
}

impl Judged {
    pub(crate) fn line(&self, cell: &Cell, fit: &str) -> String {
        let interval =
            self.interval.map_or_else(String::new, |it| format!("{:.4} to {:.4}", it.low, it.high));
        let (published, predicted) = (self.published, self.predicted);
        format!("    {fit:9} {:52} {published:>14.4} {predicted:>14.4}  {interval}", cell.name)
    }
}

/// Predicts each of `cells` with the values of `table`; the interval comes from `draws` draws.
pub(crate) fn judge<'a>(
    cells: impl Iterator<Item = &'a Cell> + Clone,
    table: &Table,
    draws: usize,
) -> Vec<(&'a Cell, Judged)> {
    let draws = Draws::new(table, draws, 1);
    let predicted = cells::predicted(cells.clone(), &table.values());
    let intervals = cells::intervals(cells.clone(), &draws);
    let one = |((cell, predicted), interval): ((&'a Cell, f64), Option<Estimate>)| {
        (cell, Judged { published: cell.published, predicted, interval })
    };
    cells.zip(predicted).zip(intervals).map(one).collect()
}

/// Some errors, as shares.
#[derive(Default)]
pub(crate) struct Errors {
    pub(crate) all: Vec<f64>,
}

impl Errors {
    pub(crate) fn mean(&self) -> f64 {
        self.all.iter().sum::<f64>() / self.all.len() as f64
    }

    pub(crate) fn worst(&self) -> f64 {
        self.all.iter().copied().fold(0.0, f64::max)
    }

    fn text(&self) -> String {
        if self.all.is_empty() {
            return "-".to_owned();
        }
        format!("{:.1}, {:.1}", 100.0 * self.mean(), 100.0 * self.worst())
    }
}

/// The errors of some cells.
#[derive(Default)]
pub(crate) struct Summary {
    cells: usize,
    /// Those that are right, and all.
    pub(crate) signs: [usize; 2],
    pub(crate) gain: Errors,
    pub(crate) rate: Errors,
    pub(crate) softirq: Errors,
    pub(crate) tasks: Errors,
    /// Cells that are in their intervals, and all that have one.
    pub(crate) held: [usize; 2],
    /// Half of each interval of a rate or a ratio of rates, as a share of it.
    pub(crate) widths: Errors,
}

impl Summary {
    pub(crate) fn heading() -> String {
        "| experiment | fit | cells | signs right | gain: mean, worst (points) | \
         rate (%) | %softirq of a CPU (points) | %usr+%sys of a CPU (points) | \
         90 % intervals contain | half their width: median, worst (%) |\n\
         |---|---|---|---|---|---|---|---|---|---|"
            .to_owned()
    }

    pub(crate) fn add(&mut self, kind: Kind, judged: &Judged) {
        let (published, predicted) = (judged.published, judged.predicted);
        self.cells += 1;
        match kind {
            Kind::Gain => {
                self.signs[0] += usize::from((published > 0.0) == (predicted > 0.0));
                self.signs[1] += 1;
                self.gain.all.push((predicted - published).abs());
            }
            Kind::Rate | Kind::AllTasks | Kind::SoftirqRatio => {
                self.rate.all.push((predicted / published - 1.0).abs());
            }
            Kind::Softirq(_) => self.softirq.all.push((predicted - published).abs()),
            Kind::Tasks(_) => self.tasks.all.push((predicted - published).abs()),
        }
        let Some(interval) = judged.interval else { return };
        self.held[0] += usize::from((interval.low..=interval.high).contains(&published));
        self.held[1] += 1;
        // Of a rate or a ratio of rates; a share of a CPU may be 0.
        let base = match kind {
            Kind::Gain => 1.0 + interval.value,
            Kind::Rate => interval.value,
            _ => return,
        };
        self.widths.all.push((interval.high - interval.low) / 2.0 / base);
    }

    pub(crate) fn row(&self, name: &str, fit: &str) -> String {
        let mut widths = self.widths.all.clone();
        widths.sort_by(f64::total_cmp);
        let widths = match (widths.get(widths.len() / 2), widths.last()) {
            (Some(median), Some(worst)) => {
                format!("{:.0}, {:.0}", 100.0 * median, 100.0 * worst)
            }
            _ => "-".to_owned(),
        };
        format!(
            "| {name} | {fit} | {} | {} of {} | {} | {} | {} | {} | {} of {} | {widths} |",
            self.cells,
            self.signs[0],
            self.signs[1],
            self.gain.text(),
            self.rate.text(),
            self.softirq.text(),
            self.tasks.text(),
            self.held[0],
            self.held[1],
        )
    }
}
