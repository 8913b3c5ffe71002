//! `netsilo top`: a full-screen live view of which CPU polls which queue and who reads its data.
//!
//! `state` is what is shown, `update` makes the next state from an event, `draw` draws a state;
//! these and the pages compute no rate and do no input or output. `window` is what one interval
//! showed: the values of `show` and `check`. `source` and `changes` observe and write in threads of
//! their own; `shell` connects all of them to the terminal.

mod args;
mod changes;
mod draw;
mod help;
mod listing;
mod map;
mod pages;
mod palette;
mod shell;
mod source;
mod state;
mod terminal;
mod update;
mod window;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use anyhow::Result;

use crate::args::costs::costs_for;
use crate::tell::exit::Exit;
use crate::tell::out;
pub(crate) use crate::top::args::Args;
use crate::top::palette::Palette;
use crate::top::state::{Source, State};
use crate::top::update::{Event, update};
use crate::top::window::Window;
use netsilo_sys::clock::since_boot;

/// Shows windows until the user quits.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let signals = shell::signals()?;
    let costs = costs_for(args.observe.is_bundle())?;
    let bundle = args.observe.bundle()?;
    let source = if bundle.is_some() { Source::Bundle } else { Source::Live };
    let mut state = State {
        confirm_within: args.confirm_within,
        interval: args.observe.live().interval(),
        ..State::new(palette(), source, read_only(args))
    };
    if let Some(observation) = bundle {
        let window = Window::new(observation, &costs, Err("a bundle has no daemon".to_owned()));
        (state, _) = update(state, Event::Window(Arc::new(window)));
    }
    let last = shell::run(args, costs, signals, state)?;
    if let Some(pending) = last.pending {
        let left = pending.deadline.saturating_sub(since_boot()).as_secs();
        out::note(&format!(
            "transaction {} is restored in {left} s unless you run: netsilo confirm",
            pending.transaction
        ));
    }
    Ok(Exit::Ok)
}

fn palette() -> Palette {
    Palette::from_environment(|name| std::env::var(name).ok())
}

/// Why no plan can be applied here.
fn read_only(args: &Args) -> Option<String> {
    if args.observe.is_bundle() {
        return Some("a bundle shows another time or machine".into());
    }
    let root = rustix::process::geteuid().is_root();
    (!root).then(|| "not root; a plan can be shown but not applied".into())
}
