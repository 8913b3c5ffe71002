//! `netsilo top`: a full-screen live view of which CPU polls which queue, and which process reads
//! its data.
//!
//! `state` is what is shown, `update` makes the next state from an event, and `draw` draws a state.
//! These and the pages compute no rate and do no input or output. `window` has the data of one
//! interval: the values of `show` and `check`. `source` and `changes` observe and write in separate
//! threads; `shell` connects all of them to the terminal.

mod args;
mod changes;
mod draw;
mod help;
mod listing;
mod map;
mod pages;
mod save;
mod shell;
mod source;
mod state;
mod terminal;
mod update;
mod window;

#[cfg(test)]
mod picture;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use netsilo_sys::files::output;

use crate::args::costs::costs_for;
use crate::tell::exit::Exit;
use crate::tell::out;
use crate::tell::palette::Palette;
use crate::tell::words::plural;
pub(crate) use crate::top::args::Args;
use crate::top::shell::Windows;
use crate::top::source::Recording;
use crate::top::state::{Source, State};
use netsilo_sys::clock::since_boot;

/// Shows windows until the user quits.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let signals = shell::signals()?;
    let costs = costs_for(args.observe.is_bundle())?;
    let recording = args.record.as_deref().map(start_recording).transpose()?;
    let (source, windows) = match args.observe.open_bundle()? {
        Some(bundle) => {
            let source = Source::Bundle { window: 0, of: bundle.windows() };
            (source, Windows::Bundle(Box::new(bundle)))
        }
        None => (Source::Live, Windows::Live(recording.clone())),
    };
    let state = State {
        confirm_within: args.confirm_within,
        interval: args.observe.live().interval(),
        ..State::new(palette(), source, read_only(args))
    };
    let last = shell::run(args, windows, costs, signals, state);
    if let Ok(State { pending: Some(pending), .. }) = &last {
        let left = pending.deadline.saturating_sub(since_boot()).as_secs();
        out::note(&format!(
            "transaction {} is restored in {left} s unless you run: netsilo confirm",
            pending.transaction
        ));
    }
    if let (Some(recording), Some(path)) = (recording, &args.record) {
        let (manifest, full) = recording.write(path)?;
        let windows = plural(manifest.windows, "window");
        let full = if full { ", which fill it" } else { "" };
        out::note(&format!(
            "{} has {windows}{full}: netsilo top --from plays them",
            path.display()
        ));
    }
    last?;
    Ok(Exit::Done)
}

/// Starts a recording. Fails if its file cannot be written.
fn start_recording(path: &Path) -> Result<Arc<Recording>> {
    output::check(path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(Arc::new(Recording::start()?))
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
