//! Connects the parts: events in, states to the screen, requests to the threads that observe and
//! write.
//!
//! Keys, signals, windows and changes each come from a separate thread through one channel. So the
//! screen is drawn when something happened, and at no other time.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use netsilo_decide::judge::why::why;
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::snapshot::subject::Subject;
use netsilo_sys::bundle::Bundle;
use netsilo_sys::clock::since_boot;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args::state_dir::StateDir;
use crate::tell::exit::in_words;
use crate::tell::presentation::Presentation;
use crate::top::args::Args;
use crate::top::draw::draw;
use crate::top::save::save;
use crate::top::source::{Pace, Recording};
use crate::top::state::{Source, State};
use crate::top::terminal::{Screen, next_event};
use crate::top::update::{Event, Request, update};
use crate::top::window::Window;
use crate::top::{changes, source};
use crate::views;

/// What the requests need.
struct Shell<'a> {
    args: &'a Args,
    pace: Arc<Pace>,
    send: Sender<Event>,
}

/// Where windows come from.
pub(super) enum Windows {
    /// This machine, and the recording of `--record`.
    Live(Option<Arc<Recording>>),
    Bundle(Box<Bundle>),
}

/// Runs until the user quits. Returns the last state.
pub(super) fn run(
    args: &Args,
    windows: Windows,
    costs: Costs,
    signals: Signals,
    state: State,
) -> Result<State> {
    let (send, events) = channel();
    let pace = Arc::new(Pace::new(state.interval));
    let mut screen = Screen::open()?;
    listen(signals, &send)?;
    watch(args, windows, &pace, costs, &send)?;
    let mut shell = Shell { args, pace, send };
    shell.run(&mut screen, &events, state)
}

/// Catches the signals that end or continue the program.
///
/// Call it before a bundle is opened: the owner of temporary folders ends the program on signals
/// that nothing has caught by then.
pub(super) fn signals() -> Result<Signals> {
    Signals::new([SIGTERM, SIGHUP, SIGINT, SIGCONT]).context("cannot wait for signals")
}

/// Starts the threads of keys and of signals.
fn listen(mut signals: Signals, send: &Sender<Event>) -> Result<()> {
    let caught = send.clone();
    start("signals", send, move || {
        let event = |signal| if signal == SIGCONT { Event::Continued } else { Event::Quit };
        signals.forever().map(event).try_for_each(|event| caught.send(event)).ok();
        Ok(())
    })?;
    let keys = send.clone();
    start("keys", send, move || {
        loop {
            // the terminal is gone; SIGHUP may arrive too
            let event = next_event().unwrap_or(Some(Event::Quit));
            if event.is_some_and(|event| keys.send(event).is_err()) {
                return Ok(());
            }
        }
    })?;
    Ok(())
}

/// Starts the thread of windows.
fn watch(
    args: &Args,
    windows: Windows,
    pace: &Arc<Pace>,
    costs: Costs,
    send: &Sender<Event>,
) -> Result<()> {
    let (live, state_dir) = (args.observe.live().clone(), args.state.path().to_owned());
    let (pace, events) = (pace.clone(), send.clone());
    start("windows", send, move || match windows {
        Windows::Bundle(bundle) => source::play(*bundle, &pace, &costs, &events),
        Windows::Live(recording) => {
            source::live(&live, &pace, recording.as_deref(), &costs, &state_dir, &events)
        }
    })
}

/// Starts a thread. If it fails or panics, that is an event.
fn start(
    name: &str,
    send: &Sender<Event>,
    work: impl FnOnce() -> Result<()> + Send + 'static,
) -> Result<()> {
    let panics = Panics(send.clone());
    let body = move || {
        if let Err(error) = work() {
            let _ = panics.0.send(Event::Ended(in_words(&error)));
        }
    };
    thread::Builder::new().name(name.into()).spawn(body).context("cannot start a thread")?;
    Ok(())
}

/// Ends the program if its thread panics. The panic hook has already restored the terminal.
struct Panics(Sender<Event>);

impl Drop for Panics {
    fn drop(&mut self) {
        if thread::panicking() {
            let _ = self.0.send(Event::Panicked);
        }
    }
}

impl Shell<'_> {
    fn run(
        &mut self,
        screen: &mut Screen,
        events: &Receiver<Event>,
        mut state: State,
    ) -> Result<State> {
        state.now = since_boot();
        loop {
            screen.draw(|frame| draw(frame.buffer_mut(), &state))?;
            let mut event = Some(next(events, &state));
            // process all events before the next picture
            while let Some(now) = event.take() {
                #[cfg(debug_assertions)]
                assert!(!self.is_panic(&now), "the key of --panic-at was pressed");
                let (next, request) = update(state, now);
                state = next;
                match request {
                    Some(Request::Quit) => return Ok(state),
                    Some(Request::Fail) => bail!("a part of top has failed, as printed above"),
                    Some(Request::Suspend) => screen.suspend()?,
                    Some(Request::Resume) => screen.resume()?,
                    Some(Request::Save) => {
                        let saved =
                            save(&state, screen.area.width).map_err(|error| in_words(&error));
                        let _ = self.send.send(Event::Saved(saved));
                    }
                    Some(request) => self.perform(request, &state)?,
                    None => {}
                }
                event = events.try_recv().ok();
            }
        }
    }

    #[cfg(debug_assertions)]
    fn is_panic(&self, event: &Event) -> bool {
        let key = self.args.panic_at.map(ratatui::crossterm::event::KeyCode::Char);
        matches!(event, Event::Key(pressed) if Some(*pressed) == key)
    }

    fn perform(&mut self, request: Request, state: &State) -> Result<()> {
        let answer = match request {
            // done by `run`
            Request::Quit | Request::Fail | Request::Suspend | Request::Resume | Request::Save => {
                None
            }
            Request::Interval(length) => {
                self.pace.set_interval(length);
                None
            }
            Request::Step(by) => {
                self.pace.step(by);
                None
            }
            Request::Pause(paused) => {
                self.pace.pause(paused);
                None
            }
            Request::Plan(fix) => state.window_of(fix.as_ref()).map(|window| {
                let is_bundle = state.source != Source::Live;
                let plan = changes::plan(window, &self.args.goal, fix, is_bundle);
                Event::Planned(plan.map(Arc::new).map_err(|error| in_words(&error)))
            }),
            Request::Why(subject) => {
                state.window.as_deref().map(|window| explained(window, &subject))
            }
            Request::Apply(plan) => {
                let (args, within) = (self.args.state.clone(), state.confirm_within);
                return self.write(move |send| {
                    Event::Applied(
                        changes::apply(&plan, &args, within, send)
                            .map_err(|error| in_words(&error)),
                    )
                });
            }
            Request::Confirm(id) => {
                return self.settle(move |state| changes::confirm(state, id));
            }
            Request::Undo => return self.settle(changes::undo_newest),
        };
        if let Some(answer) = answer {
            let _ = self.send.send(answer);
        }
        Ok(())
    }

    fn settle(
        &self,
        work: impl FnOnce(&StateDir) -> Result<String> + Send + 'static,
    ) -> Result<()> {
        let args = self.args.state.clone();
        self.write(move |_| Event::Settled(work(&args).unwrap_or_else(|error| in_words(&error))))
    }

    /// Writes in a thread, because it may take seconds until interrupts arrive on their new CPUs.
    fn write(&self, work: impl FnOnce(&Sender<Event>) -> Event + Send + 'static) -> Result<()> {
        let send = self.send.clone();
        start("changes", &self.send, move || {
            let _ = send.send(work(&send));
            Ok(())
        })?;
        Ok(())
    }
}

fn explained(window: &Window, subject: &Subject) -> Event {
    let costs = Costs::default();
    let answer = why(&Analysis::new(&window.observation, &costs), subject);
    let text = answer
        .map(|why| views::why::render(&why, Presentation::default()).to_string())
        .map_err(|error| error.to_string());
    Event::Explained(subject.to_string(), text)
}

/// Waits for the next event. While a transaction awaits its confirmation, the clock is also an
/// event.
fn next(events: &Receiver<Event>, state: &State) -> Event {
    if state.pending.is_none() {
        return events.recv().unwrap_or(Event::Quit);
    }
    match events.recv_timeout(Duration::from_millis(500)) {
        Ok(event) => event,
        Err(RecvTimeoutError::Timeout) => Event::Now(since_boot()),
        Err(RecvTimeoutError::Disconnected) => Event::Quit,
    }
}
