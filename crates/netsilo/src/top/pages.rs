//! The pages that are tables, and what each lists. The map is in [`crate::top::map`].

mod consumers;
mod cpus;
mod decisions;
pub(crate) mod drops;
mod findings;
mod queues;

use crate::top::listing::Listing;
use crate::top::map;
use crate::top::state::{Page, State};
use crate::top::window::Window;

/// The table of the current page, filtered and sorted; `None` for the map.
pub(crate) fn listing(state: &State, window: &Window) -> Option<Listing> {
    let listing = match state.page {
        Page::Map => return None,
        Page::Queues => queues::listing(state, window),
        Page::Cpus => cpus::listing(state, window),
        Page::Consumers => consumers::listing(window, state.palette),
        Page::Findings => findings::listing(state, window),
        Page::Decisions => decisions::listing(window),
        Page::Drops => drops::listing(state, window),
    };
    Some(listing.arranged(&state.filter, state.view().sort))
}

/// The keys of the rows that can be selected, from top to bottom.
pub(crate) fn keys(state: &State) -> Vec<String> {
    let Some(window) = &state.window else { return Vec::new() };
    match listing(state, window) {
        Some(listing) => listing.rows.into_iter().map(|row| row.key).collect(),
        None => map::lines(window, &state.filter).iter().filter_map(map::Line::key).collect(),
    }
}

/// The key of the selected row. If the chosen row is gone, the first one.
pub(crate) fn selected(state: &State, keys: &[String]) -> Option<String> {
    let chosen = state.view().selected.as_ref().filter(|key| keys.contains(key));
    chosen.or(keys.first()).cloned()
}
