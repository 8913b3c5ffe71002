//! How far the model is off, over some cells.

use netsilo_stats::Estimate;

use crate::cells::{Cell, Kind};

/// One cell with what the model says of it.
pub(crate) struct Judged {
    pub(crate) published: f64,
    pub(crate) predicted: f64,
    pub(crate) interval: Option<Estimate>,
}

impl Judged {
    pub(crate) fn line(&self, cell: &Cell) -> String {
        let interval =
            self.interval.map_or_else(String::new, |it| format!("{:.4} to {:.4}", it.low, it.high));
        let (published, predicted) = (self.published, self.predicted);
        format!("    {:52} {published:>14.4} {predicted:>14.4}  {interval}", cell.name)
    }
}

/// Mean and largest of some errors.
#[derive(Default)]
struct Errors {
    all: Vec<f64>,
}

impl Errors {
    fn text(&self) -> String {
        if self.all.is_empty() {
            return "-".to_owned();
        }
        let mean = self.all.iter().sum::<f64>() / self.all.len() as f64;
        let worst = self.all.iter().copied().fold(0.0, f64::max);
        format!("{:.1}, {:.1}", 100.0 * mean, 100.0 * worst)
    }
}

/// The errors of some cells.
#[derive(Default)]
pub(crate) struct Summary {
    cells: usize,
    signs: [usize; 2],
    gain: Errors,
    rate: Errors,
    softirq: Errors,
    tasks: Errors,
    held: [usize; 2],
    widths: Vec<f64>,
}

impl Summary {
    pub(crate) fn heading() -> String {
        "| experiment | fit | cells | signs right | gain: mean, worst (points) | \
         rate (%) | %softirq of a CPU (points) | %usr+%sys of a CPU (points) | \
         90 % intervals hold | half their width: median, worst (%) |\n\
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
        self.widths.push((interval.high - interval.low) / 2.0 / base);
    }

    pub(crate) fn row(&self, name: &str, fit: &str) -> String {
        let mut widths = self.widths.clone();
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
