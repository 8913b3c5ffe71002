//! Predictions as text.

use netsilo_predict::comparison::{Comparison, Predicted, Sweep};
use netsilo_predict::prediction::CpuTime;
use netsilo_trial::stats::Estimate;

use crate::tell::palette::Meaning;
use crate::tell::presentation::Presentation;
use crate::tell::styled::Styled;
use crate::views::table::{narrowed, wrapped};
use crate::views::units::{count, nanoseconds, or_dash, percent};

/// Columns of the longest bar.
const BAR: usize = 16;

/// A cell of a table, with the name of its column.
pub(super) type Cell = (&'static str, Styled);

/// Renders a comparison of settings, with each CPU's time if `per_cpu` is set.
pub(crate) fn comparison(
    comparison: &Comparison,
    per_cpu: bool,
    presentation: Presentation,
) -> Styled {
    let most = highest_rate(&comparison.settings);
    let rows = comparison.settings.iter().map(|it| cells(it, most, presentation)).collect();
    let mut text = table(rows, presentation);
    let note = format!(
        "rate: {}; softirq, usr+sys: in CPUs; change: against {}, with its 90% interval",
        comparison.unit, comparison.against
    );
    text.push(Meaning::Quiet, format_args!("\n{}\n", wrapped(&note, presentation.width)));
    if per_cpu {
        for setting in &comparison.settings {
            text.append(&cpu_times(setting, presentation));
        }
    }
    text
}

/// The highest rate of all settings. It determines the length of their bars.
fn highest_rate<'a>(settings: impl IntoIterator<Item = &'a Predicted>) -> f64 {
    settings.into_iter().map(|it| it.rate.value).fold(0.0, f64::max)
}

/// The cells of one setting.
fn cells(setting: &Predicted, most: f64, presentation: Presentation) -> Vec<Cell> {
    let sum = |of: fn(&CpuTime) -> f64| format!("{:.2}", setting.cpus.iter().map(of).sum::<f64>());
    vec![
        ("setting", setting.name.clone().into()),
        ("rate", count(setting.rate.value).into()),
        ("", bar(setting.rate.value / most, presentation)),
        ("change", change(setting.gain, setting.is_clear)),
        ("softirq", sum(|cpu| cpu.softirq).into()),
        ("usr+sys", sum(|cpu| cpu.usr + cpu.sys).into()),
        ("IPIs/s", or_dash(setting.ipis_per_s, count).into()),
        ("latency", or_dash(setting.latency_us, |us| nanoseconds(us * 1e3)).into()),
        ("limit", setting.limit.to_string().into()),
    ]
}

/// A table of these cells, without columns that are empty for all settings.
pub(super) fn table(rows: Vec<Vec<Cell>>, presentation: Presentation) -> Styled {
    let is_shown = |column: usize, name: &str| {
        let is_empty = rows.iter().all(|row| row[column].1.as_str() == "-");
        name == "change" || !is_empty
    };
    let names = rows.first().map_or_else(Vec::new, |row| row.iter().map(|cell| cell.0).collect());
    let shown: Vec<usize> = (0..names.len()).filter(|at| is_shown(*at, names[*at])).collect();
    let header: Vec<&str> = shown.iter().map(|at| names[*at]).collect();
    let kept = |row: &Vec<Cell>| shown.iter().map(|at| row[*at].1.clone()).collect();
    let rows: Vec<Vec<Styled>> = rows.iter().map(kept).collect();
    let is_number = |name: &str| !["setting", "", "change", "limit"].contains(&name);
    let drops = ["", "usr+sys", "IPIs/s", "softirq", "latency"];
    narrowed(&header, &rows, is_number, &drops, presentation.width)
}

/// The change against the first setting, with its interval; `is_clear` where it may be claimed.
pub(crate) fn change(gain: Option<Estimate>, is_clear: bool) -> Styled {
    let Some(gain) = gain else { return "-".to_owned().into() };
    if (gain.low, gain.high) == (0.0, 0.0) {
        return Styled::new(Meaning::Quiet, "no change");
    }
    if !is_clear {
        let range = gain.percent_range();
        return Styled::new(Meaning::Quiet, format_args!("no clear change ({range})"));
    }
    let meaning = if gain.value > 0.0 { Meaning::Good } else { Meaning::Bad };
    Styled::new(meaning, gain.in_percent())
}

/// A bar of a share from 0 to 1.
pub(super) fn bar(share: f64, presentation: Presentation) -> Styled {
    let bar = presentation.palette.map_or_else(String::new, |it| it.bar(share, BAR));
    Styled::new(Meaning::Work, bar)
}

/// Each CPU's time under one setting. CPUs with equal times share a line.
fn cpu_times(setting: &Predicted, presentation: Presentation) -> Styled {
    let header = ["cpu", "usr", "sys", "softirq", "booked", "idle"];
    let shown: Vec<[String; 5]> = (setting.cpus.iter())
        .map(|cpu| [cpu.usr, cpu.sys, cpu.softirq, cpu.booked_softirq, cpu.idle()].map(percent))
        .collect();
    let mut rows: Vec<Vec<Styled>> = Vec::new();
    let mut first = 0;
    for alike in shown.chunk_by(PartialEq::eq) {
        let last = first + alike.len() - 1;
        let name = if first == last { last.to_string() } else { format!("{first}-{last}") };
        rows.push(std::iter::once(name).chain(alike[0].iter().cloned()).map(Into::into).collect());
        first = last + 1;
    }
    let mut text = Styled::new(Meaning::Title, format_args!("\n{}\n", setting.name));
    text.append(&narrowed(&header, &rows, |name| name != "cpu", &[], presentation.width));
    let note = "booked: the softirq time that the kernel shows without IRQ_TIME_ACCOUNTING";
    text.push(Meaning::Quiet, format_args!("\n{}\n", wrapped(note, presentation.width)));
    text
}

/// Renders a sweep: the rate of each setting, a star at the best one, and where the best one
/// changes.
pub(crate) fn sweep(sweep: &Sweep, presentation: Presentation) -> Styled {
    let key = sweep.key.rsplit('.').next().unwrap_or(&sweep.key);
    let names = sweep.settings.iter().map(String::as_str);
    let header: Vec<&str> = std::iter::once(key).chain(names).chain([""]).collect();
    let highest = |rates: &[f64]| rates.iter().copied().fold(0.0, f64::max);
    let most = sweep.points.iter().map(|point| highest(&point.rates)).fold(0.0, f64::max);
    let mut rows: Vec<Vec<Styled>> = Vec::new();
    for point in &sweep.points {
        let rates = point.rates.iter().enumerate().map(|(index, rate)| {
            if index == point.best {
                Styled::new(Meaning::Good, format_args!("*{}", count(*rate)))
            } else {
                count(*rate).into()
            }
        });
        let first = std::iter::once(count(point.value).into());
        let bar = bar(highest(&point.rates) / most, presentation);
        rows.push(first.chain(rates).chain([bar]).collect());
    }
    let mut text = narrowed(&header, &rows, |name| !name.is_empty(), &[""], presentation.width);
    let note = format!("rates: {}; * the best, or within 1% of it", sweep.unit);
    text.push(Meaning::Quiet, format_args!("\n{}\n", wrapped(&note, presentation.width)));
    for &at in &sweep.changes {
        let (before, after) = (&sweep.points[at - 1], &sweep.points[at]);
        let (of, than) = (&sweep.settings[after.best], &sweep.settings[before.best]);
        let line = format!("from {key} = {} on {of} is better than {than}", count(after.value));
        text.push(Meaning::Plain, format_args!("{}\n", wrapped(&line, presentation.width)));
    }
    text
}
