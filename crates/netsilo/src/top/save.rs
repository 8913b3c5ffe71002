//! Writes what the screen shows to a file.

use std::fs::File;
use std::io::{ErrorKind, Write as _};

use anyhow::{Context as _, Result, bail};
use netsilo_model::parse::sanitize::escaped;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::tell::palette::{Depth, Palette};
use crate::top::draw::draw;
use crate::top::pages;
use crate::top::state::{Overlay, State};

/// Files of one page that a directory may have.
const MOST_FILES: u32 = 1000;

/// Rows that a page may have.
const MOST_ROWS: usize = 2000;

/// Writes the page, or the text that covers it, to a new file in the current directory. Returns the
/// file's name.
pub(super) fn save(state: &State, width: u16) -> Result<String> {
    let overlay = state.overlay.as_ref().and_then(Overlay::text);
    let stem = overlay.map_or(state.page.name(), |_| "text");
    for number in 1..=MOST_FILES {
        let name = format!("netsilo-{stem}-{number}.txt");
        match File::create_new(&name) {
            Ok(mut file) => {
                let text = text(state, width);
                file.write_all(text.as_bytes()).with_context(|| format!("cannot write {name}"))?;
                return Ok(name);
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| format!("cannot write {name}")),
        }
    }
    bail!("this directory has {MOST_FILES} files netsilo-{stem}-*.txt: remove some")
}

/// The page in the width of the screen but with all its rows, or the text that covers it.
pub(super) fn text(state: &State, width: u16) -> String {
    if let Some(text) = state.overlay.as_ref().and_then(Overlay::text) {
        let lines = [&text.title, ""].into_iter().chain(text.lines.iter().map(String::as_str));
        return lines.map(|line| format!("{}\n", escaped(line))).collect();
    }
    let rows = pages::keys(state).len() * 3 + 100;
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, rows.min(MOST_ROWS) as u16));
    let palette = Palette { depth: Depth::None, ..state.palette };
    draw(&mut buffer, &State { palette, message: None, ..state.clone() });
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    // without the keys, which are in the last row
    let mut lines: Vec<String> =
        (0..buffer.area.height - 1).map(|y| row(y).trim_end().to_owned()).collect();
    lines.dedup_by(|a, b| a.is_empty() && b.is_empty());
    lines.join("\n").trim_end().to_owned() + "\n"
}
