//! Measures one window of the live workload, or while a command runs. Checks it in parts, so that a
//! bad candidate is noticed before the window ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use netsilo_model::snapshot::attribution::Attribution;
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::snapshot::runqueue;
use netsilo_sys::bpf::tracer;
use netsilo_sys::files::root::Root;
use netsilo_sys::observe::{CountingMode, Observer};
use netsilo_trial::race::rails::{Breach, Peek, Waits};
use netsilo_trial::race::{Counts, RacePlan, TurnEnd};
use netsilo_trial::workload::WorkloadMeasure;

use crate::args::look::wait_unless_stopped;
use crate::tell::exit::in_words;
use crate::tell::out;
use crate::verbs::ab::measurement::{LONGEST_COMMAND, command};

/// Length of a part of a window. Two parts and the settling time are shorter than a second.
pub(super) const PEEK: Duration = Duration::from_millis(250);

/// How much longer than planned a window may take.
const MARGIN: Duration = Duration::from_secs(30);

/// Takes a part of a window. Returns the limit that the part broke.
pub(super) type Watch<'a> = &'a mut dyn FnMut(&Peek) -> Option<Breach>;

/// The result of a window.
pub(super) struct WindowResult {
    pub(super) peeks: Vec<Peek>,
    pub(super) end: TurnEnd,
    /// What was counted, other than the objective.
    pub(super) counts: Counts,
}

impl WindowResult {
    /// A window that ended early.
    pub(super) fn ended(peeks: Vec<Peek>, end: TurnEnd) -> Self {
        Self { peeks, end, counts: Counts::new() }
    }

    /// A window with what was counted in all of it.
    fn counted(peeks: Vec<Peek>, end: TurnEnd, whole: &Observation, plan: &RacePlan) -> Self {
        let others = WorkloadMeasure::COUNTS.into_iter().filter(|it| it.as_str() != plan.objective);
        let counts = others.filter_map(|it| Some((it, it.compute(whole).ok()?))).collect();
        Self { peeks, end, counts }
    }
}

/// Adds a part to the window so far.
fn add(whole: &mut Option<Observation>, part: Observation) {
    match whole {
        Some(whole) => whole.append(part),
        None => *whole = Some(part),
    }
}

/// Measures windows one after another.
pub(super) struct Meter<'a> {
    plan: &'a RacePlan,
    root: Root,
    observer: Observer,
    /// `None` if a command prints the number.
    measure: Option<WorkloadMeasure>,
    stop: &'a AtomicBool,
}

impl<'a> Meter<'a> {
    pub(super) fn start(plan: &'a RacePlan, stop: &'a AtomicBool) -> Result<Self> {
        let measure = WorkloadMeasure::ALL.into_iter().find(|it| it.as_str() == plan.objective);
        let root = Root::live();
        // the run-queue latency is a guard rail of every objective; for a command's number, eBPF is
        // needed only for this
        let options = tracer::Options { runqueue: true, ..tracer::Options::default() };
        let options = match measure {
            Some(_) => options,
            None => {
                tracer::Options { time: false, containers: false, forwarding: false, ..options }
            }
        };
        let mut observer = Observer::start_with(&root, CountingMode::Continuous, options)?;
        let first = observer.next(&root, Duration::ZERO, |_| {})?;
        if let Some(why) = no_runqueue_latency(&first.attribution) {
            out::note(&format!("run-queue latency is not a guard rail: {why}"));
        }
        Ok(Self { plan, root, observer, measure, stop })
    }

    /// Maximum time that a candidate is in effect.
    pub(super) fn longest_window(&self) -> Duration {
        let window = if self.measure.is_some() { self.plan.window } else { LONGEST_COMMAND };
        self.plan.settle + 2 * window + MARGIN
    }

    /// Measures one window. Returns `None` if it was interrupted.
    pub(super) fn measure(&mut self, watch: Watch<'_>) -> Result<Option<WindowResult>> {
        let stop = self.stop;
        self.part(self.plan.settle, stop)?;
        let window = match self.measure {
            Some(measure) => self.live(measure, watch)?,
            None => self.command(watch)?,
        };
        Ok(window.filter(|_| !stop.load(Ordering::Relaxed)))
    }

    /// Observes one part. Ends early when `end` is set.
    fn part(&mut self, time: Duration, end: &AtomicBool) -> Result<Observation> {
        Ok(self.observer.next(&self.root, time, |time| wait_unless_stopped(time, end))?)
    }

    fn live(&mut self, measure: WorkloadMeasure, watch: Watch<'_>) -> Result<Option<WindowResult>> {
        let (mut peeks, mut whole) = (Vec::new(), None::<Observation>);
        let mut waits = Waits::default();
        let mut left = self.plan.window;
        while !left.is_zero() {
            let time = left.min(self.plan.peek);
            left -= time;
            let observation = self.part(time, self.stop)?;
            if self.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let peek = Peek::from_observation(&observation, Some(measure), &mut waits);
            peeks.push(peek);
            if let Some(breach) = watch(&peek) {
                return Ok(Some(WindowResult::ended(peeks, TurnEnd::Broke(breach))));
            }
            add(&mut whole, observation);
        }
        let whole = whole.context("the window is empty")?;
        let end = match measure.compute(&whole) {
            Ok(value) => TurnEnd::Value(value),
            Err(why) => TurnEnd::Lost(format!("no {measure}: {why}")),
        };
        Ok(Some(WindowResult::counted(peeks, end, &whole, self.plan)))
    }

    fn command(&mut self, watch: Watch<'_>) -> Result<Option<WindowResult>> {
        let (plan, stop) = (self.plan, self.stop);
        let (mut peeks, mut waits, mut whole) = (Vec::new(), Waits::default(), None);
        let ran = while_running(&plan.load, |running| {
            while !running.has_ended() {
                let observation = self.part(plan.peek, &running.over)?;
                if stop.load(Ordering::Relaxed) {
                    running.kill();
                    return Ok(None);
                }
                let peek = Peek::from_observation(&observation, None, &mut waits);
                peeks.push(peek);
                if let Some(breach) = watch(&peek) {
                    running.kill();
                    return Ok(Some(breach));
                }
                add(&mut whole, observation);
            }
            Ok(None)
        })?;
        let end = match ran {
            (Some(breach), _) => TurnEnd::Broke(breach),
            (None, Err(error)) => TurnEnd::Failed(in_words(&error)),
            (None, Ok(None)) => return Ok(None),
            (None, Ok(Some(value))) => {
                let peek = Peek { objective: Some(value), ..Peek::default() };
                peeks.push(peek);
                watch(&peek).map_or(TurnEnd::Value(value), TurnEnd::Broke)
            }
        };
        Ok(Some(WindowResult::counted(peeks, end, &whole.unwrap_or_default(), plan)))
    }
}

/// Why the run-queue latency is not measured.
fn no_runqueue_latency(attribution: &Attribution) -> Option<String> {
    let mut hooks = attribution.hooks.iter().filter(|hook| hook.quantity == runqueue::QUANTITY);
    let refused = hooks.find_map(|it| Some(format!("{}: {}", it.hook, it.refused.as_ref()?)));
    let missing = attribution.runqueue_latency.is_none();
    refused.or_else(|| missing.then(|| "eBPF does not count here".into()))
}

/// A running command.
#[derive(Default)]
pub(super) struct Running {
    killed: AtomicBool,
    pub(super) over: AtomicBool,
}

impl Running {
    fn has_ended(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Ends the command and all processes that it started.
    pub(super) fn kill(&self) {
        self.killed.store(true, Ordering::Relaxed);
    }
}

/// Runs a command while `work` runs. Returns the result of `work` and the command's number, or
/// `None` if the command was killed.
pub(super) fn while_running<T>(
    words: &[String],
    meanwhile: impl FnOnce(&Running) -> Result<T>,
) -> Result<(T, Result<Option<f64>>)> {
    let running = Running::default();
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let value = command(words, &running.killed);
            running.over.store(true, Ordering::Relaxed);
            value
        });
        let done = meanwhile(&running);
        if done.is_err() {
            running.kill();
        }
        let value = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((done?, value))
    })
}
