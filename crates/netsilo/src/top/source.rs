//! Where windows come from: this machine, or a bundle.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use netsilo_model::cost::weights::Costs;
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::bpf::tracer::Options;
use netsilo_sys::bundle::{Addresses, Bundle, Capture, Manifest};
use netsilo_sys::files::root::Root;

use crate::args::look::LiveArgs;
use crate::tell::exit::in_words;
use crate::tell::status::Status;
use crate::top::state::HISTORY;
use crate::top::update::Event;
use crate::top::window::Window;
use crate::verbs::status;

/// When the next window comes. The user may change this at any time.
#[derive(Debug)]
pub(super) struct Pace {
    state: Mutex<PaceState>,
    changed: Condvar,
}

#[derive(Debug, Clone, Copy)]
struct PaceState {
    interval: Duration,
    /// Number of windows of a bundle to step at once. Negative means back.
    step: isize,
    /// Whether the playback of a bundle is paused.
    paused: bool,
}

impl Pace {
    /// Starts with this interval.
    pub(super) fn new(interval: Duration) -> Self {
        let state = PaceState { interval, step: 0, paused: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Changes the interval. The window that is being observed ends at once.
    pub(super) fn set_interval(&self, interval: Duration) {
        self.change(|state| state.interval = interval);
    }

    /// Steps in a bundle. Negative means back.
    pub(super) fn step(&self, by: isize) {
        self.change(|state| state.step += by);
    }

    /// Pauses the playback of a bundle, or continues it.
    pub(super) fn pause(&self, paused: bool) {
        self.change(|state| state.paused = paused);
    }

    fn change(&self, change: impl FnOnce(&mut PaceState)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, PaceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn interval(&self) -> Duration {
        self.lock().interval
    }

    /// Waits for this time, or until the interval is changed.
    fn wait(&self, time: Duration) {
        let (start, first) = (Instant::now(), self.interval());
        let mut state = self.lock();
        while let Some(left) = time.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
            if state.interval != first {
                return;
            }
            state = self.wait_for(state, left);
        }
    }

    /// Waits for the next step in a bundle and returns it. At the end of the bundle only the user
    /// can cause a step.
    fn next_step(&self, at_end: bool) -> isize {
        let start = Instant::now();
        let mut state = self.lock();
        loop {
            let left = state.interval.saturating_sub(start.elapsed());
            if state.step != 0 {
                return std::mem::take(&mut state.step);
            }
            let plays = !state.paused && !at_end;
            if plays && left.is_zero() {
                return 1;
            }
            state = self.wait_for(state, if plays { left } else { Duration::from_secs(3600) });
        }
    }

    fn wait_for<'a>(
        &self,
        state: MutexGuard<'a, PaceState>,
        time: Duration,
    ) -> MutexGuard<'a, PaceState> {
        self.changed
            .wait_timeout(state, time)
            .map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state)
    }
}

/// What `--record` keeps. The thread that observes adds to it, and `top` writes it at its end.
#[derive(Debug)]
pub(super) struct Recording(Mutex<Recorded>);

#[derive(Debug)]
struct Recorded {
    capture: Capture,
    /// The kernel's release, from the first window on.
    release: String,
}

impl Recording {
    pub(super) fn start() -> Result<Self> {
        Ok(Self(Mutex::new(Recorded { capture: Capture::start()?, release: String::new() })))
    }

    fn lock(&self) -> MutexGuard<'_, Recorded> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The root through which the next sample is read.
    fn sample(&self) -> Result<Root> {
        let (mut recorded, live) = (self.lock(), Root::live());
        if recorded.capture.is_full() { Ok(live) } else { Ok(recorded.capture.sample(&live)?) }
    }

    /// Adds a window whose sample was read.
    fn window(&self, observation: &Observation) {
        let mut recorded = self.lock();
        if !recorded.capture.is_full() {
            recorded.capture.window(&observation.attribution);
            recorded.release.clone_from(&observation.after.machine.release);
        }
    }

    /// Writes all windows that have ended. Returns what the bundle contains, and whether it is
    /// full.
    pub(super) fn write(&self, path: &Path) -> Result<(Manifest, bool)> {
        let empty = Recorded { capture: Capture::start()?, release: String::new() };
        let Recorded { capture, release } = std::mem::replace(&mut *self.lock(), empty);
        let full = capture.is_full();
        let manifest = capture.write(path, &release, Addresses::Replace);
        Ok((manifest.context("cannot write the recording")?, full))
    }
}

/// Observes this machine and sends windows until nobody receives them.
pub(super) fn live(
    args: &LiveArgs,
    pace: &Pace,
    recording: Option<&Recording>,
    costs: &Costs,
    state_dir: &Path,
    send: &Sender<Event>,
) -> Result<()> {
    args.each_of(
        Options::for_findings(),
        || recording.map_or_else(|| Ok(Root::live()), Recording::sample),
        || pace.interval(),
        |time| pace.wait(time),
        |observation| {
            if let Some(recording) = recording {
                recording.window(&observation);
            }
            let window = Window::new(observation, costs, daemon(state_dir));
            Ok(((), send.send(Event::Window(Arc::new(window))).is_ok()))
        },
    )
}

/// Plays the windows of a bundle until nobody receives them.
pub(super) fn play(
    mut bundle: Bundle,
    pace: &Pace,
    costs: &Costs,
    send: &Sender<Event>,
) -> Result<()> {
    // the newest windows that were read; the last one has number `read`
    let (mut windows, mut read, mut at) = (VecDeque::new(), 0, 0);
    loop {
        let step = if at == 0 { 1 } else { pace.next_step(at == bundle.windows()) };
        let oldest = read + 1 - windows.len();
        let wanted = at.saturating_add_signed(step).clamp(oldest, bundle.windows());
        while read < wanted {
            let Some(observation) = bundle.next_window()? else { return Ok(()) };
            let window = Window::new(observation, costs, Err("a bundle has no daemon".to_owned()));
            windows.push_back(Arc::new(window));
            read += 1;
            if windows.len() > HISTORY {
                windows.pop_front();
            }
        }
        at = wanted;
        let window = Arc::clone(&windows[windows.len() - 1 - (read - at)]);
        if send.send(Event::Played(at, window)).is_err() {
            return Ok(());
        }
    }
}

/// The daemon's status, or why there is none.
fn daemon(state_dir: &Path) -> Result<Status, String> {
    status::read(state_dir).map_err(|error| in_words(&error))
}
