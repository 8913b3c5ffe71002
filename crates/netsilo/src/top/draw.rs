//! Draws a state: the title, the row of pages, the page or its overlay, and the line at the bottom.

mod map;
mod pen;
mod table;

use netsilo_decide::judge::findings::Severity;
use netsilo_model::parse::sanitize::escaped;
use netsilo_model::snapshot::attribution::AttributionSource;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::symbols::border;
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph, Widget as _, Wrap};

use crate::tell::palette::{Meaning, Palette};
use crate::tell::words::plural;
use crate::top::draw::pen::{Pen, width};
use crate::top::pages;
use crate::top::state::{Overlay, Page, Pending, Source, State, Text};
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

/// Draws the whole screen.
pub(crate) fn draw(frame: &mut Frame<'_>, state: &State) {
    let pending = u16::from(state.pending.is_some());
    let rows = [1, 1, pending].map(Constraint::Length);
    let [title, tabs, banner, body, bottom] =
        Layout::vertical([rows[0], rows[1], rows[2], Constraint::Min(0), Constraint::Length(1)])
            .areas(frame.area());
    let palette = state.palette;
    let mut pen = Pen { buffer: frame.buffer_mut(), palette, area: title };
    draw_title(&mut pen, state);
    draw_tabs(&mut pen.within(tabs), state);
    if let Some(pending) = &state.pending {
        draw_pending(&mut pen.within(banner), state, pending);
    }
    draw_page(&mut pen.within(body), state);
    draw_bottom(&mut pen.within(bottom), state);
    if let Some(overlay) = &state.overlay {
        draw_overlay(&mut pen.within(body), overlay);
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
    let mut x = pen.put_within(0, 0, "netsilo", Meaning::Title, most) + 1;
    if let Some(window) = &state.window {
        x = pen.put_within(x, 0, &title(window), Meaning::Plain, most.saturating_sub(x)) + 1;
    }
    let past = &state.history.read;
    let highest = past.iter().copied().fold(0.0, f64::max);
    let room = most.saturating_sub(x).min(past.len());
    if highest > 0.0 && past.len() > 1 {
        let bars = past.iter().skip(past.len() - room).map(|it| pen.palette.level(it / highest));
        pen.put_within(x, 0, &bars.collect::<String>(), Meaning::Work, most.saturating_sub(x));
    }
}

fn title(window: &Window) -> String {
    let report = &window.report;
    let by = match report.attribution.source {
        AttributionSource::Bpf => "eBPF",
        AttributionSource::SockDiag => "sock_diag, TCP only",
        AttributionSource::None => "counters only",
    };
    let totals = &report.totals;
    let mut parts = vec![
        format!("{} {}", report.machine.hostname, report.machine.release).trim_end().to_owned(),
        plural(report.cpus.len(), "cpu"),
        format!("{:.1} s by {by}", report.elapsed_s),
    ];
    parts.extend(totals.packets_per_s.map(|rate| format!("{} packets/s", count(rate))));
    parts.extend(totals.bytes_per_s.map(|rate| format!("{} read", bytes_per_s(rate))));
    parts.join(", ")
}

fn draw_tabs(pen: &mut Pen<'_>, state: &State) {
    let mut x = 0;
    for (number, page) in (1..).zip(Page::ALL) {
        let (mut text, mut meaning) = (format!(" {number} {}", page.name()), Meaning::Plain);
        if let (Page::Findings, Some(window)) = (page, &state.window) {
            let grave = |severity| {
                window.check.findings.iter().filter(|it| it.severity == severity).count()
            };
            let (critical, warnings) = (grave(Severity::Critical), grave(Severity::Warning));
            if critical + warnings > 0 {
                text += &format!(" {}!", critical + warnings);
                meaning = if critical > 0 { Meaning::Bad } else { Meaning::Fair };
            }
        }
        text.push(' ');
        let end = pen.put(x, 0, &text, meaning);
        if page == state.page {
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
    let changes = plural(pending.changes, "change");
    let words = match left.as_secs() {
        0 => "being restored".to_owned(),
        left => format!("restored in {left} s {bar}  c keep  u undo now"),
    };
    pen.put(
        0,
        0,
        &format!("transaction {} ({changes}): {words}", pending.transaction),
        Meaning::Bad,
    );
}

fn draw_page(pen: &mut Pen<'_>, state: &State) {
    let Some(window) = &state.window else {
        let words = match &state.ended {
            Some(why) => why.as_str(),
            None => "observing: the first window comes after one interval",
        };
        pen.put(2, 1, words, Meaning::Plain);
        return;
    };
    let selected = pages::selected(state, &pages::keys(state));
    match pages::listing(state, window) {
        Some(listing) => table::draw(pen, &listing, selected.as_deref()),
        None => map::draw(pen, state, window, selected.as_deref()),
    }
}

/// A question, the filter, a message, or the most important keys.
fn draw_bottom(pen: &mut Pen<'_>, state: &State) {
    let keys = "? help  / filter  space freeze  enter explain  p plan  u undo  q quit";
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
        (Some(Overlay::Plan(..)), ..) => {
            ("a apply  up/down scroll  esc back".into(), Meaning::Quiet)
        }
        (Some(Overlay::Busy(_)), ..) => ("writing".into(), Meaning::Title),
        (Some(Overlay::Text(_)), ..) => ("up/down scroll  esc back".into(), Meaning::Quiet),
        _ if state.typing => (format!("/{}_", state.filter), Meaning::Title),
        _ if !state.filter.is_empty() => {
            (format!("only rows with {:?}; esc shows all", state.filter), Meaning::Title)
        }
        (_, _, Some(why)) if state.window.is_some() => (why.clone(), Meaning::Bad),
        _ => (keys.to_owned(), Meaning::Quiet),
    };
    pen.put(0, 0, &text, meaning);
}

fn draw_overlay(pen: &mut Pen<'_>, overlay: &Overlay) {
    let text = match overlay {
        Overlay::Text(text) | Overlay::Plan(_, text) | Overlay::AskApply(_, text) => text,
        Overlay::Busy(text) => text,
        Overlay::AskUndo => return,
    };
    let area = pen.area;
    Clear.render(area, pen.buffer);
    let set = pen.palette.glyph(border::PLAIN, ASCII);
    let block = Block::bordered().border_set(set).title(format!(" {} ", escaped(&text.title)));
    let inner = block.inner(area);
    block.border_style(pen.palette.style(Meaning::Quiet)).render(area, pen.buffer);
    body(text, pen.palette, inner, pen);
}

fn body(text: &Text, palette: Palette, area: Rect, pen: &mut Pen<'_>) {
    let line = |text: &String| {
        let meaning = if text.starts_with("# ") { Meaning::Title } else { Meaning::Plain };
        Line::styled(escaped(text).into_owned(), palette.style(meaning))
    };
    let lines: Vec<Line<'_>> = text.lines.iter().skip(text.scroll).map(line).collect();
    Paragraph::new(lines).wrap(Wrap { trim: false }).render(area, pen.buffer);
}
