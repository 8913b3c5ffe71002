//! Simulations as text: the same table with latencies and losses, and timelines.

use netsilo_predict::simulate::comparison::{SimulatedComparison, SimulatedSetting};

use crate::tell::palette::{Depth, Meaning, Palette};
use crate::tell::presentation::Presentation;
use crate::tell::styled::Styled;
use crate::views::predict::{Cell, cells, cpu_times, highest_rate, table};
use crate::views::table::wrapped;
use crate::views::units::{count, nanoseconds, or_dash};

/// Renders simulated settings beside each other, with each CPU's time if `per_cpu` is set.
pub(crate) fn simulation(
    comparison: &SimulatedComparison,
    per_cpu: bool,
    presentation: Presentation,
) -> Styled {
    let most = highest_rate(comparison.settings.iter().map(|it| &it.predicted));
    let row = |setting: &SimulatedSetting| {
        let mut row = cells(&setting.predicted, most, presentation);
        let limit = row.pop();
        row.extend(measured(setting));
        row.extend(limit);
        row
    };
    let mut text = table(comparison.settings.iter().map(row).collect(), presentation);
    let note = format!(
        "rate: {}, simulated; analytic: the rate without --simulate; softirq, usr+sys: in CPUs; \
         change: against {}, with its 90% interval; latency: mean; lost: packets/s",
        comparison.unit, comparison.against
    );
    text.push(Meaning::Quiet, format_args!("\n{}\n", wrapped(&note, presentation.width)));
    if per_cpu {
        for setting in &comparison.settings {
            text.append(&cpu_times(&setting.predicted, presentation));
            text.append(&timeline(setting, presentation));
        }
    }
    text
}

/// What only a simulation shows.
fn measured(setting: &SimulatedSetting) -> [Cell; 4] {
    let latency = |us: Option<f64>| or_dash(us, |us| nanoseconds(us * 1e3)).into();
    [
        ("p50", latency(setting.p50_us)),
        ("p99", latency(setting.p99_us)),
        ("lost", count(setting.lost_per_s).into()),
        ("analytic", count(setting.analytic_rate).into()),
    ]
}

/// How busy each CPU is while time passes, one character for each slice.
fn timeline(setting: &SimulatedSetting, presentation: Presentation) -> Styled {
    let plain = Palette { depth: Depth::None, unicode: false };
    let palette = presentation.palette.unwrap_or(plain);
    let timeline = &setting.timeline;
    let digits = (timeline.cpus.len().max(2) - 1).to_string().len();
    let mut text = Styled::default();
    for (cpu, slices) in timeline.cpus.iter().enumerate() {
        let levels: String = slices.iter().map(|it| palette.level(1.0 - it.idle())).collect();
        text.push(Meaning::Plain, format_args!("cpu {cpu:>digits$}"));
        text.push(Meaning::Work, format!(" {levels}").trim_end());
        text.push(Meaning::Plain, "\n");
    }
    let slice = nanoseconds(timeline.slice_ms * 1e6);
    let note = format!("in use: {slice} a character, {} is all", palette.level(1.0));
    text.push(Meaning::Quiet, format_args!("{}\n", wrapped(&note, presentation.width)));
    text
}
