//! Draws a page that is a table.

use crate::tell::palette::Meaning;
use crate::top::draw::pen::{MARGIN, Pen, width};
use crate::top::listing::{Cell, Listing, Row};

/// Draws the rows around the selected one, and the notes below. The rows need the space more than
/// the notes and the names of the columns do.
pub(super) fn draw(pen: &mut Pen<'_>, listing: &Listing, selected: Option<&str>) {
    let height = usize::from(pen.area.height);
    let notes = listing.note_lines();
    let shown = notes.len().min(height.saturating_sub(4) / 2);
    let foot = height - shown;
    let head = usize::from(height > 2);
    if listing.rows.is_empty() {
        pen.put_lines(0, &listing.empty, Meaning::Quiet);
    } else {
        rows(pen, listing, selected, head, foot - head - usize::from(shown > 0));
    }
    for (at, note) in notes.iter().take(shown).enumerate() {
        let more = notes.len() - at;
        if at + 1 == shown && more > 1 {
            pen.put(MARGIN, foot + at, &format!("? shows {more} more lines"), Meaning::Quiet);
        } else {
            pen.put(MARGIN, foot + at, note, Meaning::Quiet);
        }
    }
}

fn rows(pen: &mut Pen<'_>, listing: &Listing, selected: Option<&str>, head: usize, room: usize) {
    let columns = columns(listing, usize::from(pen.area.width).saturating_sub(MARGIN));
    for Placed { at, x, width } in columns.iter().take(if head > 0 { columns.len() } else { 0 }) {
        let column = listing.columns[*at];
        if column.right {
            pen.put_right(x + width, 0, column.name, Meaning::Title)
        } else {
            pen.put_within(*x, 0, column.name, Meaning::Title, *width);
        }
    }
    let chosen = listing.rows.iter().position(|row| Some(row.key.as_str()) == selected);
    let first = first_row(listing.rows.len(), chosen.unwrap_or(0), room);
    for (line, row) in listing.rows.iter().skip(first).take(room).enumerate() {
        for placed in &columns {
            cell(pen, listing, row, placed, head + line);
        }
        if Some(first + line) == chosen {
            pen.select(head + line);
        }
    }
}

/// The first row shown, chosen so that the selected one is among `room` rows.
pub(super) fn first_row(rows: usize, chosen: usize, room: usize) -> usize {
    let middle = chosen.saturating_sub(room / 2);
    middle.min(rows.saturating_sub(room))
}

/// A column that is shown: its number, its first character, its width.
struct Placed {
    at: usize,
    x: usize,
    width: usize,
}

/// The columns that fit. The remaining width goes to those that were cut.
fn columns(listing: &Listing, total: usize) -> Vec<Placed> {
    let natural: Vec<usize> = listing
        .columns
        .iter()
        .enumerate()
        .map(|(at, column)| {
            let cells = listing.rows.iter().filter_map(|row| row.cells.get(at)).map(cell_width);
            cells.chain([column.name.len()]).max().unwrap_or(0)
        })
        .collect();
    let least: Vec<usize> = listing
        .columns
        .iter()
        .zip(&natural)
        .map(|(column, natural)| column.least.min(*natural))
        .collect();
    let kept = listing.fitting(&least, total);
    let used: usize = kept.iter().map(|at| least[*at] + 2).sum();
    let mut spare = (total + 2).saturating_sub(used);
    let mut x = MARGIN;
    let place = |at: usize| {
        let more = spare.min(natural[at] - least[at]);
        spare -= more;
        let placed = Placed { at, x, width: least[at] + more };
        x += placed.width + 2;
        placed
    };
    kept.into_iter().map(place).collect()
}

fn cell_width(cell: &Cell) -> usize {
    cell.parts.iter().map(|(text, _)| width(text)).sum()
}

fn cell(pen: &mut Pen<'_>, listing: &Listing, row: &Row, placed: &Placed, y: usize) {
    let Some(cell) = row.cells.get(placed.at) else { return };
    let end = placed.x + placed.width;
    let mut x = if listing.columns[placed.at].right {
        end.saturating_sub(cell_width(cell))
    } else {
        placed.x
    };
    for (text, meaning) in &cell.parts {
        x = pen.put_within(x, y, text, *meaning, end.saturating_sub(x));
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_chosen_row_is_always_shown() {
        for (rows, room) in [(100, 10), (5, 10), (10, 10), (3, 1)] {
            for chosen in 0..rows {
                let first = super::first_row(rows, chosen, room);
                assert!((first..first + room).contains(&chosen), "{rows} {room} {chosen}");
                assert!(first == 0 || first + room <= rows);
            }
        }
    }
}
