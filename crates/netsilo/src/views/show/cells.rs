//! Cells that the tables of queues and of CPUs share.

use crate::tell::palette::Meaning;
use crate::tell::styled::Styled;

/// Width of a bar.
pub(super) const BAR: usize = 8;

/// A cell. An unknown value is shown as less important.
pub(super) fn cell(text: String) -> Styled {
    let meaning = if text == "-" { Meaning::Quiet } else { Meaning::Plain };
    Styled::new(meaning, text)
}

/// The cell for a share of a CPU's time. It is highlighted if the share is large.
pub(super) fn load(share: f64, text: String) -> Styled {
    match Meaning::of_load(share) {
        Meaning::Work => text.into(),
        bad => Styled::new(bad, text),
    }
}

/// A row in which each of these columns is marked if it differs from the previous row. The last
/// cell is marked if `last` is true.
pub(super) fn marked(
    mut row: Vec<Styled>,
    before: &[Styled],
    columns: &[usize],
    last: bool,
) -> Vec<Styled> {
    let end = row.len() - 1;
    for (at, cell) in row.iter_mut().enumerate() {
        let differs = columns.contains(&at) && before.get(at).is_some_and(|old| old != cell);
        if differs || last && at == end {
            *cell = std::mem::take(cell).all(Meaning::Changed);
        }
    }
    row
}
