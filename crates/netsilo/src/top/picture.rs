//! The picture of the README: the map page of a machine whose queues are badly placed, as SVG.
//!
//! `make generate` draws it again.

use std::fmt::Write as _;
use std::sync::Arc;

use netsilo_model::cost::weights::Costs;
use netsilo_model::synthetic::scene::Scene;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

use crate::current::assert_current;
use crate::tell::palette::{Depth, Palette};
use crate::top::draw::draw;
use crate::top::state::{Source, State};
use crate::top::update::{Event, update};
use crate::top::window::Window;

/// Columns and rows of the terminal.
const SIZE: (u16, u16) = (90, 17);
/// Width and height of a character, in pixels.
const CHARACTER: (u16, u16) = (9, 19);
const MARGIN: u16 = 14;

const BACKGROUND: &str = "#14171b";
const FOREGROUND: &str = "#dfe3e8";

/// Redis on socket 0, nginx on socket 1, all interrupts on CPU 0.
const MACHINE: &str = include_str!("../../../../cases/virtio-all-on-cpu0/before.json");

fn screen() -> Buffer {
    let scene: Scene = serde_json::from_str(MACHINE).unwrap();
    let mut observation = scene.observation();
    observation.after.machine.hostname = "web1".into();
    observation.after.machine.release = "6.12".into();
    let window = Window::new(observation, &Costs::default(), Err("no daemon".into()));
    let palette = Palette { depth: Depth::Rgb, unicode: true };
    let state = State::new(palette, Source::Live, None);
    let (state, _) = update(state, Event::Window(Arc::new(window)));
    let mut terminal = Terminal::new(TestBackend::new(SIZE.0, SIZE.1)).unwrap();
    terminal.draw(|frame| draw(frame.buffer_mut(), &state)).unwrap();
    terminal.backend().buffer().clone()
}

/// The style of a cell in SVG attributes. Cells of one style are drawn together.
fn style(cell: &Cell) -> String {
    let colour = match cell.fg {
        Color::Rgb(r, g, b) => format!("#{r:02x}{g:02x}{b:02x}"),
        _ => FOREGROUND.to_owned(),
    };
    let weight = if cell.modifier.contains(Modifier::BOLD) { " font-weight=\"bold\"" } else { "" };
    format!("fill=\"{colour}\"{weight}")
}

/// The runs of one row: first column, style, text.
fn runs(buffer: &Buffer, y: u16) -> Vec<(u16, String, String)> {
    let mut runs: Vec<(u16, String, String)> = Vec::new();
    for x in 0..buffer.area.width {
        let cell = &buffer[(x, y)];
        match runs.last_mut() {
            Some((_, known, text)) if *known == style(cell) => text.push_str(cell.symbol()),
            _ => runs.push((x, style(cell), cell.symbol().to_owned())),
        }
    }
    runs
}

/// The screen of a terminal as SVG. Each run has its length, so that columns align in any font.
fn svg(buffer: &Buffer) -> String {
    let ((columns, rows), (width, height)) = (SIZE, CHARACTER);
    let (w, h) = (columns * width + 2 * MARGIN, rows * height + 2 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" role=\"img\">\n\
         <title>netsilo top: two of four queues are read on the other socket</title>\n\
         <rect width=\"{w}\" height=\"{h}\" rx=\"8\" fill=\"{BACKGROUND}\"/>\n\
         <g font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" \
         font-size=\"15\">\n"
    );
    for y in 0..rows {
        for (x, style, text) in runs(buffer, y) {
            let shown = text.trim_end();
            if shown.trim_start().is_empty() {
                continue;
            }
            let blanks = shown.chars().take_while(|c| *c == ' ').count() as u16;
            let shown = shown.trim_start();
            let (left, length) =
                (MARGIN + (x + blanks) * width, shown.chars().count() as u16 * width);
            let base = MARGIN + y * height + height * 3 / 4;
            // blanks that no renderer merges
            let shown = shown.replace(' ', "\u{a0}").replace('&', "&amp;").replace('<', "&lt;");
            let _ = writeln!(
                svg,
                "<text x=\"{left}\" y=\"{base}\" textLength=\"{length}\" {style}>{shown}</text>"
            );
        }
    }
    svg + "</g>\n</svg>\n"
}

#[test]
fn the_picture_of_the_readme_is_current() {
    assert_current("docs/pictures/top.svg", &svg(&screen()));
}
