//! The page of CPUs: how each spends its time, now and in earlier windows.

use netsilo_decide::report::CpuLine;
use netsilo_decide::report::quiet::split_quiet;

use crate::tell::palette::{Meaning, Palette};
use crate::tell::words::grouped;
use crate::top::listing::{Cell, Column, Listing, Row, left, number};
use crate::top::map::{busy, softirq};
use crate::top::state::{State, sparkline};
use crate::top::window::Window;
use crate::views::show::cpus::summed_up;
use crate::views::units::{count, percent};

const COLUMNS: &[Column] = &[
    number("cpu", 0),
    number("node", 5),
    left("core", 9),
    left("time", 0),
    number("busy", 3),
    number("softirq", 1),
    number("ipi", 7),
    number("net_rx/s", 6),
    number("dropped/s", 8),
    left("history", 4),
    left("polls", 0),
    left("readers", 2),
];

/// Width of the bar of a CPU's time, in characters.
const BAR: usize = 20;

/// Characters of the history.
const PAST: usize = 20;

/// Lists the CPUs that have something to report. The others are summarized by node.
pub(super) fn listing(state: &State, window: &Window) -> Listing {
    let (named, quiet) = split_quiet(&window.report.cpus);
    let mut notes = vec![legend(state.palette)];
    notes.extend(quiet.iter().map(summed_up));
    Listing {
        columns: COLUMNS,
        rows: named.into_iter().map(|line| row(state, line)).collect(),
        empty: "no cpu matches the filter".into(),
        notes,
    }
}

/// The parts of a CPU's time: its name, its share, and how it is drawn.
fn parts(line: &CpuLine, palette: Palette) -> [(&'static str, f64, char, Meaning); 5] {
    let shares = line.shares.unwrap_or_default();
    let irq = line.hardirq_share.unwrap_or(shares.irq);
    [
        ("usr", shares.usr + shares.nice, palette.glyph('░', 'u'), Meaning::Plain),
        ("sys", shares.sys, palette.glyph('▒', 's'), Meaning::Plain),
        ("irq", irq, palette.glyph('▓', 'i'), Meaning::Fair),
        ("softirq", softirq(line).unwrap_or(0.0), palette.glyph('█', '#'), Meaning::Work),
        ("ipi", line.ipi_share.unwrap_or(0.0), palette.glyph('▞', 'x'), Meaning::Bad),
    ]
}

fn legend(palette: Palette) -> String {
    let parts = parts(&CpuLine::default(), palette);
    let parts: Vec<String> =
        parts.iter().map(|(name, _, glyph, _)| format!("{glyph} {name}")).collect();
    format!(
        "time: {} {} idle; history: busy, newest right",
        parts.join(" "),
        palette.glyph('·', '.')
    )
}

/// The parts as a bar. The measured parts and those sampled at clock ticks may add up to more than
/// 1.
fn bar(line: &CpuLine, palette: Palette) -> Cell {
    let mut cell = Cell { parts: Vec::new(), value: busy(line) };
    let (mut sum, mut drawn) = (0.0, 0);
    for (_, share, glyph, meaning) in parts(line, palette) {
        sum += share;
        let end = ((sum * BAR as f64).round() as usize).min(BAR);
        cell.parts.push((glyph.to_string().repeat(end - drawn), meaning));
        drawn = end;
    }
    cell.parts.push((palette.glyph("·", ".").repeat(BAR - drawn), Meaning::Quiet));
    cell
}

fn history(state: &State, line: &CpuLine) -> Cell {
    let past = state.history.busy.get(&line.cpu);
    let text = past.map_or_else(String::new, |past| sparkline(past, 1.0, PAST, state.palette));
    Cell { value: busy(line), ..Cell::text(text) }
}

/// How bad it is that a CPU spends this share of its time on this.
fn hot(share: Option<f64>) -> Meaning {
    match share {
        Some(share) if share >= 0.9 => Meaning::Bad,
        Some(share) if share >= 0.6 => Meaning::Fair,
        _ => Meaning::Plain,
    }
}

fn row(state: &State, line: &CpuLine) -> Row {
    let (busy, softirq) = (busy(line), softirq(line));
    Row {
        key: format!("cpu{}", line.cpu),
        cells: vec![
            Cell::number(Some(f64::from(line.cpu.0)), |cpu| cpu.to_string()),
            Cell::number(line.node.map(|node| f64::from(node.0)), |node| node.to_string()),
            Cell::text(line.core.to_string()),
            bar(line, state.palette),
            Cell::number(busy, percent).meaning(hot(busy)),
            Cell::number(softirq, percent).meaning(hot(softirq)),
            Cell::number(line.ipi_share, percent),
            Cell::number(line.net_rx_per_s, count),
            Cell::number(line.dropped_per_s, count),
            history(state, line),
            Cell::text(grouped(&line.polls).join(" ")),
            Cell::text(line.consumers.join(" ")),
        ],
    }
}

#[cfg(test)]
mod tests {
    use netsilo_model::derive::rates::Shares;

    use super::*;
    use crate::tell::palette::Depth;

    #[test]
    fn a_bar_has_its_length_whatever_the_shares_add_up_to() {
        let palette = Palette { depth: Depth::None, unicode: false };
        let drawn = |usr, softirq| {
            let shares = Some(Shares { usr, ..Shares::default() });
            let line = CpuLine { shares, softirq_share: Some(softirq), ..CpuLine::default() };
            bar(&line, palette).parts.into_iter().map(|(text, _)| text).collect::<String>()
        };
        assert_eq!(drawn(0.5, 0.25), "uuuuuuuuuu#####.....");
        assert_eq!(drawn(0.9, 0.9), "uuuuuuuuuuuuuuuuuu##");
        assert_eq!(drawn(0.0, 0.0), ".".repeat(BAR));
    }
}
