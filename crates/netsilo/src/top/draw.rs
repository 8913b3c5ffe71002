//! Draws a state: the title, the row of pages, the page or its overlay, and the line at the bottom.

mod map;
mod parts;
mod pen;
mod table;

use netsilo_decide::judge::findings::Severity;
use netsilo_model::parse::sanitize::escaped;
use netsilo_model::snapshot::attribution::AttributionSource;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Margin, Rect};
use ratatui::symbols::border;
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph, Widget as _, Wrap};

use crate::tell::palette::{Meaning, Palette};
use crate::tell::words::plural;
use crate::top::draw::parts::{beside, kept};
use crate::top::draw::pen::{Pen, lines, width};
use crate::top::pages;
use crate::top::state::{Overlay, Page, Pending, Source, State, Text, sparkline};
use crate::top::window::Window;
use crate::views::units::{bytes_per_s, count};

/// Borders without UTF-8.
const ASCII: border::Set<'_> = border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
};

/// Rows that the page keeps before the title, the tabs and the list of keys are dropped.
const LEAST_BODY: usize = 4;

/// Draws the whole screen. Parts for which there is no room are left out.
pub(crate) fn draw(buffer: &mut Buffer, state: &State) {
    let (width, height) = (usize::from(buffer.area.width), usize::from(buffer.area.height));
    let (bottom, meaning, rank) = bottom(state, width);
    let bottom = &bottom[..bottom.len().min(height.div_ceil(2))];
    let pending = usize::from(state.pending.is_some());
    let parts = [(1, 4), (1, 3), (pending, 0), (bottom.len(), rank)];
    let [title, tabs, pending, end] = kept(height.saturating_sub(LEAST_BODY), parts);
    let [title, tabs, pending, end] =
        [title, tabs, pending, end].map(|rows| Constraint::Length(rows as u16));
    let rows = [title, tabs, pending, Constraint::Fill(1), end];
    let [title, tabs, banner, body, end] = Layout::vertical(rows).areas(buffer.area);
    let mut pen = Pen { area: buffer.area, palette: state.palette, buffer };
    draw_title(&mut pen.within(title), state);
    draw_tabs(&mut pen.within(tabs), state);
    if let Some(pending) = &state.pending {
        draw_pending(&mut pen.within(banner), state, pending);
    }
    match &state.overlay {
        Some(overlay) if overlay.text().is_some() => draw_overlay(&mut pen.within(body), overlay),
        _ => draw_page(&mut pen.within(body), state),
    }
    for (at, line) in bottom.iter().enumerate() {
        pen.within(end).put(0, at, line, meaning);
    }
}

/// What is observed, how, and how much data arrives.
fn draw_title(pen: &mut Pen<'_>, state: &State) {
    let end = usize::from(pen.area.width);
    let right = match (&state.source, state.frozen) {
        (Source::Bundle { of: 1, .. }, _) => "a bundle".to_owned(),
        (Source::Bundle { window, of }, false) => format!("window {window} of {of}"),
        (Source::Bundle { window, of }, true) => format!("FROZEN: window {window} of {of}"),
        (Source::Live, true) => "FROZEN: space continues".to_owned(),
        (Source::Live, false) => format!("interval {}", humantime::format_duration(state.interval)),
    };
    pen.put_right(end, 0, &right, if state.frozen { Meaning::Bad } else { Meaning::Quiet });
    let most = end.saturating_sub(width(&right) + 1);
    if most < "netsilo".len() {
        return;
    }
    let mut x = pen.put_within(0, 0, "netsilo", Meaning::Title, most) + 1;
    if let Some(window) = &state.window {
        let title = title(window, most.saturating_sub(x));
        x = pen.put_within(x, 0, &title, Meaning::Plain, most.saturating_sub(x)) + 1;
    }
    let past = &state.history.read;
    let room = most.saturating_sub(x).min(past.len());
    if past.len() > 1 {
        let highest = past.iter().copied().fold(0.0, f64::max);
        pen.put(x, 0, &sparkline(past, highest, room, pen.palette), Meaning::Work);
    }
}

/// The parts of the title that fit.
fn title(window: &Window, room: usize) -> String {
    let report = &window.report;
    let by = match report.attribution.source {
        AttributionSource::Bpf => "eBPF",
        AttributionSource::SockDiag => "sock_diag, TCP only",
        AttributionSource::None => "counters only",
    };
    let (machine, totals) = (&report.machine, &report.totals);
    let rate =
        |rate: Option<f64>, render: &dyn Fn(f64) -> String| rate.map_or_else(String::new, render);
    let parts = [
        (format!("{} {}", machine.hostname, machine.release).trim_end().to_owned(), 1),
        (plural(report.cpus.len(), "cpu"), 5),
        (format!("{:.1} s by {by}", report.elapsed_s), 4),
        (rate(totals.packets_per_s, &|rate| format!("{} packets/s", count(rate))), 3),
        (rate(totals.bytes_per_s, &|rate| format!("{} read", bytes_per_s(rate))), 2),
    ];
    beside(room, parts.each_ref().map(|(text, rank)| (text.as_str(), *rank))).replace("  ", ", ")
}

/// The pages with their names. If they do not fit, only the current page has its name.
fn draw_tabs(pen: &mut Pen<'_>, state: &State) {
    let count = |severity| {
        state.history.findings.iter().filter(|seen| seen.finding.severity == severity).count()
    };
    let (critical, warnings) = (count(Severity::Critical), count(Severity::Warning));
    let tab = |number: usize, page: Page| match page {
        Page::Findings if critical + warnings > 0 => {
            format!(" {number} {} {}! ", page.name(), critical + warnings)
        }
        _ => format!(" {number} {} ", page.name()),
    };
    let mut tabs: Vec<(Page, String)> =
        (1..).zip(Page::ALL).map(|(number, page)| (page, tab(number, page))).collect();
    let room = usize::from(pen.area.width);
    let fit =
        |tabs: &[(Page, String)]| tabs.iter().map(|(_, text)| text.len()).sum::<usize>() <= room;
    if !fit(&tabs) {
        let others = tabs.iter_mut().filter(|(page, _)| *page != state.page);
        others.for_each(|(_, text)| text.truncate(2));
    }
    if !fit(&tabs) {
        tabs.retain(|(page, _)| *page == state.page);
    }
    let mut x = 0;
    for (page, text) in &tabs {
        let meaning = match page {
            Page::Findings if critical > 0 => Meaning::Bad,
            Page::Findings if warnings > 0 => Meaning::Fair,
            _ => Meaning::Plain,
        };
        let end = pen.put(x, 0, text, meaning);
        if *page == state.page {
            // without colours and attributes, the brackets still show the page
            pen.put(x, 0, "[", Meaning::Title);
            pen.put(end.saturating_sub(1), 0, "]", Meaning::Title);
            pen.reverse(x, end, 0);
        }
        x = end;
    }
}

/// The transaction that awaits its confirmation, with the time left.
fn draw_pending(pen: &mut Pen<'_>, state: &State, pending: &Pending) {
    const BAR: usize = 12;
    let left = pending.deadline.saturating_sub(state.now);
    let share = left.as_secs_f64() / pending.within.as_secs_f64().max(1.0);
    let full = ((share * BAR as f64).ceil() as usize).min(BAR);
    let bar =
        pen.palette.glyph("█", "#").repeat(full) + &pen.palette.glyph("░", ".").repeat(BAR - full);
    let what =
        format!("transaction {} ({})", pending.transaction, plural(pending.changes, "change"));
    let room = usize::from(pen.area.width);
    let words = match left.as_secs() {
        0 => beside(room, [(&what, 1), ("being restored", 0)]),
        left => {
            let time = format!("restored in {left} s");
            let keys = [("c keep", 1), ("u undo now", 3)];
            beside(room, [(&what, 2), (&time, 0), (&bar, 4), keys[0], keys[1]])
        }
    };
    pen.put(0, 0, &words, Meaning::Bad);
}

fn draw_page(pen: &mut Pen<'_>, state: &State) {
    let Some(window) = &state.window else {
        let words = match &state.ended {
            Some(why) => why.as_str(),
            None => "observing: the first window comes after one interval",
        };
        pen.put_lines(0, words, Meaning::Plain);
        return;
    };
    let selected = pages::selected(state, &pages::keys(state));
    match pages::listing(state, window) {
        Some(listing) => table::draw(pen, &listing, selected.as_deref()),
        None => map::draw(pen, state, window, selected.as_deref()),
    }
}

/// A question, the filter, a message, or the most important keys: its lines and meaning, and its
/// rank among the parts of the screen.
fn bottom(state: &State, room: usize) -> (Vec<String>, Meaning, u8) {
    let (text, meaning) = match (&state.overlay, &state.message, &state.ended) {
        (Some(Overlay::AskApply(plan, _)), ..) => {
            let changes = plural(plan.changes.len(), "change");
            let within = humantime::format_duration(state.confirm_within);
            (
                format!("write {changes}, restored after {within} unless confirmed? y/n"),
                Meaning::Bad,
            )
        }
        (Some(Overlay::AskUndo), ..) => ("undo the newest transaction? y/n".into(), Meaning::Bad),
        (_, Some(message), _) => (message.clone(), Meaning::Title),
        (Some(Overlay::Busy(_)), ..) => ("writing".into(), Meaning::Title),
        (Some(overlay), ..) => {
            let apply = if matches!(overlay, Overlay::Plan(..)) { "a apply" } else { "" };
            let keys = [(apply, 1), ("up/down scroll", 3), ("w save", 4), ("esc back", 2)];
            return (vec![beside(room, keys)], Meaning::Quiet, 2);
        }
        _ if state.typing => (format!("/{}_", state.filter), Meaning::Title),
        _ if !state.filter.is_empty() => {
            (format!("only rows with {:?}; esc shows all", state.filter), Meaning::Title)
        }
        (_, _, Some(why)) if state.window.is_some() => (why.clone(), Meaning::Bad),
        _ => {
            let keys = [
                ("? help", 1),
                ("/ filter", 6),
                ("space freeze", 7),
                ("enter explain", 4),
                ("p plan", 3),
                ("u undo", 5),
                ("w save", 8),
                ("q quit", 2),
            ];
            return (vec![beside(room, keys)], Meaning::Quiet, 2);
        }
    };
    (lines(&text, room), meaning, 0)
}

/// A text, in a frame if there is room for a frame.
fn draw_overlay(pen: &mut Pen<'_>, overlay: &Overlay) {
    let Some(text) = overlay.text() else { return };
    let mut area = pen.area.inner(Margin::new(1, 0));
    if usize::from(area.height) > LEAST_BODY {
        let set = pen.palette.glyph(border::PLAIN, ASCII);
        let block = Block::bordered().border_set(set).title(format!(" {} ", escaped(&text.title)));
        area = block.inner(pen.area);
        block.border_style(pen.palette.style(Meaning::Quiet)).render(pen.area, pen.buffer);
    }
    body(text, pen.palette, area, pen);
}

fn body(text: &Text, palette: Palette, area: Rect, pen: &mut Pen<'_>) {
    let line = |text: &String| {
        let meaning = if text.starts_with("# ") { Meaning::Title } else { Meaning::Plain };
        Line::styled(escaped(text).into_owned(), palette.style(meaning))
    };
    let lines: Vec<Line<'_>> = text.lines.iter().skip(text.scroll).map(line).collect();
    Paragraph::new(lines).wrap(Wrap { trim: false }).render(area, pen.buffer);
}
