//! `netsilo run`, the daemon. In each window it observes, lets the controller decide, writes the
//! decisions and reports them.
//!
//! This shell decides nothing: `netsilo-decide` decides, `netsilo-sys` writes. It may use `tell`,
//! `args` and `views`; `config` reads the configuration, `publish` serves status and metrics.

mod budget;
pub mod config;
mod heartbeat;
mod journald;
mod listeners;
mod metrics;
mod namespaces;
mod outcomes;
mod publish;
mod published_placements;
mod reconcile;
mod write;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use netsilo_decide::control::{Controller, Decision, LogEntry, LogKind, WriteResult};
use netsilo_decide::plan::{Goal, Plan};
use netsilo_model::change::Change;
use netsilo_model::cost::weights::Costs;
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::cost::store::{self, COSTS_DIR};
use netsilo_sys::daemon::events::Events;
use netsilo_sys::daemon::hints::Hints;
use netsilo_sys::daemon::instance::{Instance, InstanceError};
use netsilo_sys::daemon::self_cost::self_cost;
use netsilo_sys::daemon::waiter::{WaitResult, Waiter};
use netsilo_sys::files::root::Root;
use netsilo_sys::observe::Observer;
use netsilo_sys::read::machine::machine_identity;
use netsilo_sys::transaction::kernel::{Kernel as _, Live};
use netsilo_sys::transaction::record::RestoredBy;
use netsilo_sys::transaction::undo::{UndoScope, undo};
use sd_notify::NotifyState;

use crate::args::outcomes::OutcomesDir;
use crate::args::state_dir::StateDir;
use crate::daemon::budget::{Budget, Cycle};
use crate::daemon::config::Config;
use crate::daemon::heartbeat::{Heartbeat, tell_systemd};
use crate::daemon::journald::Journald;
use crate::daemon::listeners::Listeners;
use crate::daemon::metrics::WindowSums;
use crate::daemon::namespaces::OtherNamespaces;
use crate::daemon::outcomes::FollowedOutcomes;
use crate::daemon::published_placements::PublishedPlacements;
use crate::daemon::reconcile::Reconcile;
use crate::daemon::write::Stopped;
use crate::tell::exit::{Exit, ExitError, in_words};
use crate::tell::out::{self, eprint_line};
use crate::tell::status::{AttributionStatus, ConfigStatus, CountingStatus, Mode, SOCKET, Status};
use crate::tell::words::plural;
use crate::views;

/// How many decisions the status holds.
const LOG: usize = 100;

/// Arguments of `netsilo run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Configuration file, or folder with netsilo.toml and conf.d/*.toml [default: /etc/netsilo if
    /// it exists]
    #[arg(short, long, value_name = "FILE|DIR")]
    config: Option<PathBuf>,
    /// Check the configuration and end
    #[arg(long, conflicts_with = "hints_only")]
    check_config: bool,
    /// Write no knob; only publish hints for other balancers
    #[arg(long)]
    hints_only: bool,
    /// Folder where netsilo calibrate stores its measurement
    #[arg(long, value_name = "DIR", default_value = COSTS_DIR, hide = true)]
    costs_dir: PathBuf,
    /// Socket of systemd-journald
    #[arg(long, value_name = "PATH", default_value = journald::SOCKET, hide = true)]
    journald_socket: PathBuf,
    #[command(flatten)]
    outcomes: OutcomesDir,
    #[command(flatten)]
    state: StateDir,
}

impl Args {
    /// Loads the configuration. Without --config, the default folder may be missing.
    fn load(&self) -> Result<Config> {
        let mut config = match &self.config {
            Some(path) => config::load(path)?,
            None => config::load_if_there(Path::new(config::CONFIG_DIR))?,
        };
        config.hints_only |= self.hints_only;
        Ok(config)
    }

    /// Returns the weights measured on this machine, or the defaults. Adds a note if stored weights
    /// cannot be used.
    fn costs(&self, root: &Root, notes: &mut Vec<String>) -> Costs {
        match machine_identity(root) {
            Ok(machine) => {
                let loaded = store::load(&self.costs_dir, &machine);
                notes.extend(loaded.note);
                loaded.costs
            }
            Err(error) => {
                notes.push(format!("using default weights: {error}"));
                Costs::default()
            }
        }
    }
}

/// Runs until a signal ends the daemon.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    if args.check_config {
        print_checked(&args.load()?, args.config.as_deref());
        return Ok(Exit::Printed);
    }
    let config = args
        .load()
        .context(ExitError(Exit::BadConfiguration, "cannot use the configuration".into()))?;
    let dir = args.state.absolute()?;
    let mut notes = Vec::new();
    let instance = match Instance::take(&dir) {
        Ok(instance) => Some(instance),
        Err(InstanceError::State(error)) if error.is_permission() => {
            notes.push(format!("no journal, hints and status: {error}"));
            None
        }
        Err(error) => return Err(error.into()),
    };
    let mut daemon = Daemon::start(args, config, dir, instance.is_some(), notes)?;
    let end = daemon.follow();
    let restored = daemon.end();
    end?;
    Ok(restored)
}

/// Prints the files of an accepted configuration.
fn print_checked(config: &Config, path: Option<&Path>) {
    for file in &config.files {
        out::text(&format!("{}\n", file.display()));
    }
    let result = if config.files.is_empty() {
        let path = path.unwrap_or(Path::new(config::CONFIG_DIR)).display();
        let why = "neither netsilo.toml nor conf.d/*.toml exists: the daemon uses its defaults";
        format!("{path}: {why}\n")
    } else {
        format!("{}: no error\n", plural(config.files.len(), "file"))
    };
    out::text(&result);
}

/// The daemon's state.
struct Daemon<'a> {
    args: &'a Args,
    config: Config,
    dir: PathBuf,
    root: Root,
    kernel: Live,
    controller: Controller,
    costs: Costs,
    outcomes: FollowedOutcomes,
    /// When to check a transaction again whose guard may have been killed.
    unguarded: Option<Duration>,
    observer: Observer,
    waiter: Waiter,
    beat: Heartbeat,
    reconcile: Reconcile,
    budget: Budget,
    published: PublishedPlacements,
    hints: Option<Hints>,
    journald: Option<Journald>,
    status: Status,
    log: VecDeque<LogEntry>,
    sums: WindowSums,
    namespaces: OtherNamespaces,
    listeners: Listeners,
}

impl<'a> Daemon<'a> {
    /// Starts the daemon. `has_state` is whether it can write to the state folder.
    fn start(
        args: &'a Args,
        config: Config,
        dir: PathBuf,
        has_state: bool,
        mut notes: Vec<String>,
    ) -> Result<Self> {
        let (kernel, root) = (args.state.kernel()?, args.state.root()?);
        let mut mode = Mode::Placing;
        let mut unguarded = None;
        if has_state {
            match write::recover(&kernel, &dir) {
                Ok(recovered) => {
                    notes.extend(recovered.words);
                    unguarded = recovered.look_at;
                }
                Err(error) => notes.push(in_words(&error)),
            }
        } else {
            mode = Mode::ObserveOnly("no state folder to write a journal to; run as root".into());
        }
        // Listen before the first snapshot, so that no event in between is missed.
        let listener = if root.is_live() {
            Events::listen(&root).map_err(|e| notes.push(format!("no kernel events: {e}"))).ok()
        } else {
            None
        };
        if listener.as_ref().is_some_and(|listener| !listener.announces_ethtool()) {
            notes.push(
                "the kernel does not announce changes of channels and rings (ethtool netlink, 5.7)"
                    .into(),
            );
        }
        let waiter = Waiter::new(listener).context("cannot handle signals")?;
        let observer = Observer::start_light(&root, config.counting())?;
        let listeners = Listeners::open(has_state.then(|| dir.join(SOCKET)))?;
        let mut daemon = Self {
            args,
            controller: Controller::new(config.policy()),
            costs: args.costs(&root, &mut notes),
            outcomes: FollowedOutcomes::default(),
            unguarded,
            status: Status::first(kernel.now(), mode, notes),
            config: Config::default(),
            dir,
            root,
            kernel,
            observer,
            waiter,
            beat: Heartbeat::new(),
            reconcile: Reconcile::default(),
            budget: Budget::default(),
            published: PublishedPlacements::default(),
            hints: None,
            journald: Journald::connect(&args.journald_socket),
            log: VecDeque::new(),
            sums: WindowSums::default(),
            namespaces: OtherNamespaces::default(),
            listeners,
        };
        daemon.configure(config)?;
        for note in &daemon.status.notes {
            eprint_line(note);
        }
        daemon.publish(Duration::ZERO);
        tell_systemd(&[NotifyState::Ready]);
        Ok(daemon)
    }

    /// Applies a configuration, except for the controller's part. A failure changes nothing.
    fn configure(&mut self, config: Config) -> Result<()> {
        let new_hints = if config.hints && self.has_state() && self.hints.is_none() {
            Some(Hints::new(&self.dir).context("cannot publish hints")?)
        } else {
            None
        };
        self.listeners.move_metrics(config.metrics.address())?;
        self.hints = new_hints.or(self.hints.take()).filter(|_| config.hints);
        if !matches!(self.status.mode, Mode::ObserveOnly(_)) {
            self.status.mode = if config.hints_only { Mode::HintsOnly } else { Mode::Placing };
        }
        self.status.config =
            ConfigStatus { files: config.files.clone(), interval: config.interval, error: None };
        self.config = config;
        Ok(())
    }

    /// Whether the daemon can write to its state folder.
    fn has_state(&self) -> bool {
        !matches!(self.status.mode, Mode::ObserveOnly(_))
    }

    /// Runs one window after another until a signal ends the daemon.
    fn follow(&mut self) -> Result<()> {
        loop {
            let length = self.reconcile.window(self.config.interval);
            self.observer.set_window(self.budget.window(self.config.window_and_budget().0, length));
            let started = Instant::now();
            let Self { observer, waiter, beat, root, reconcile, .. } = self;
            let seen = observer.next(root, length, |time| {
                waiter.pass(time, beat.pulse(), &mut || beat.beat(), &|event| {
                    reconcile.matters(root, event)
                });
            });
            let WaitResult { stop, reload, events } = self.waiter.take();
            if stop {
                return Ok(());
            }
            if reload {
                self.reload()?;
            }
            let notes = self.listeners.check(self.config.metrics.address());
            notes.into_iter().for_each(|note| self.note(note));
            self.recover();
            let now = self.kernel.now();
            for event in &events {
                self.controller.note_event(now, event);
            }
            self.status.totals.events += events.len() as u64;
            if reload || events.iter().any(|event| self.reconcile.matters(&self.root, event)) {
                self.observer.invalidate();
            }
            let is_usable =
                !self.reconcile.discards_window(&self.root, &events, now, self.config.interval)
                    && !reload;
            match seen {
                Ok(observation) => {
                    self.sums.add_drops(&observation);
                    self.look_at_namespaces(&observation);
                    self.learn_cost(&observation, started.elapsed());
                    if is_usable {
                        self.decide(&observation, started.elapsed());
                    }
                    self.observer.give_back(observation);
                }
                Err(_) if !is_usable => {}
                // A device disappeared while it was read: observe again.
                Err(error) => {
                    self.note(format!("cannot observe: {}", in_words(&error.into())));
                    self.observer = Observer::start_light(&self.root, self.config.counting())?;
                }
            }
        }
    }

    /// Restores what an earlier writer has left, if the writer and its guard were both killed.
    fn recover(&mut self) {
        if self.unguarded.take_if(|look_at| self.kernel.now() >= *look_at).is_none() {
            return;
        }
        match write::recover(&self.kernel, &self.dir) {
            Ok(recovered) => {
                self.unguarded = recovered.look_at;
                if let Some(words) = recovered.words {
                    self.observer.invalidate();
                    self.note(words);
                }
            }
            Err(error) => self.note(in_words(&error)),
        }
    }

    /// Reads a share of the other network namespaces.
    fn look_at_namespaces(&mut self, observation: &Observation) {
        let (_, limit) = self.config.window_and_budget();
        let (root, length) = (&self.root, self.config.interval);
        if let Some((status, ledger)) =
            self.namespaces.look(root, &observation.after, limit, length)
        {
            self.sums.add_elsewhere(&ledger);
            self.status.namespaces = Some(status);
        }
    }

    /// Chooses the length of the next window by the cost of this cycle.
    fn learn_cost(&mut self, observation: &Observation, length: Duration) {
        let attribution = &observation.attribution;
        let (longest, limit) = self.config.window_and_budget();
        let cycle = Cycle {
            length,
            cpus: observation.after.topology.online.len(),
            own: self_cost().cpu.saturating_sub(self.status.own.cpu),
            programs: attribution.cost,
            attached: attribution.elapsed,
        };
        self.budget.learn(limit, &cycle);
        let cost = attribution.cost.map_or(Duration::ZERO, |cost| Duration::from_nanos(cost.ns));
        self.status.counting = CountingStatus {
            window: self.budget.window(longest, self.config.interval),
            budget: limit,
            share: cycle.share(),
            programs: self.status.counting.programs + cost,
            measured: attribution.cost.is_some_and(|cost| cost.measured),
        };
    }

    /// Handles one window: decides, writes, publishes.
    fn decide(&mut self, observation: &Observation, window: Duration) {
        let goal = self.config.goal(&observation.after.netdevs, &self.costs);
        self.refresh_outcomes(&goal);
        if self.controller.policy().goal != goal {
            self.controller.set_goal(goal);
        }
        self.reconcile.remember_netdevs(&observation.after.netdevs);
        let now = self.kernel.now();
        let Self { controller, outcomes, .. } = self;
        let decision = controller.tick(now, observation, &|analysis| outcomes.find(analysis));
        for entry in &decision.log {
            self.decided(entry.clone());
        }
        self.write(&decision, now);
        let Decision { plan, writes, .. } = &decision;
        self.published.take(&plan.placements, &writes.changes, &observation.after);
        if let Some(hints) = &mut self.hints {
            match hints.publish(&self.published.hints(), observation.after.topology.nr_cpu_ids) {
                Ok(files) => self.status.totals.hints += files as u64,
                Err(error) => self.note(format!("cannot publish hints: {error}")),
            }
        }
        self.update_status(observation, decision);
        self.sums.add_read(&self.status.locality, window.as_secs_f64());
        self.publish(window);
    }

    /// Reads the measured outcomes again if files came or went, and plans of this goal follow
    /// outcomes.
    fn refresh_outcomes(&mut self, goal: &Goal) {
        if !self.config.follows_outcomes(goal) {
            if self.outcomes.clear() {
                self.controller.outcomes_changed();
            }
            return;
        }
        if let Some(notes) = self.outcomes.refresh(&self.args.outcomes, &self.root) {
            self.controller.outcomes_changed();
            notes.into_iter().for_each(|note| self.note(note));
        }
    }

    /// Writes the decided changes and reports the results to the controller.
    fn write(&mut self, decision: &Decision, now: Duration) {
        let reverts = decision.revert.iter().cloned();
        let changes: Vec<Change> = reverts.chain(decision.writes.changes.iter().cloned()).collect();
        if changes.is_empty() || self.status.mode != Mode::Placing {
            return;
        }
        let batch = write::write(&self.kernel, &self.dir, changes);
        // Settings are read once a minute. Without this, their old values would look like the
        // writes of another program.
        self.observer.invalidate();
        let done = |outcome: &WriteResult| matches!(outcome, WriteResult::InEffect(_));
        self.status.totals.changes +=
            batch.results.iter().filter(|(_, outcome)| done(outcome)).count() as u64;
        match batch.stopped {
            Some(Stopped::NoPermission(why)) => {
                self.note(format!("only observing from now on: {why}"));
                self.status.mode = Mode::ObserveOnly(why);
            }
            Some(Stopped::NotNow(why)) => self.note(format!("not written now: {why}")),
            None => {}
        }
        self.controller.wrote(now, &batch.results);
    }

    /// Records a decision in the log and the totals, and sends it to systemd's journal or prints
    /// it.
    fn decided(&mut self, mut entry: LogEntry) {
        if self.status.mode != Mode::Placing {
            entry.kind = entry.kind.without_writes();
        }
        if self.journald.as_ref().is_none_or(|journald| journald.send(&entry).is_err()) {
            eprint_line(views::status::decision_line(&entry));
        }
        let totals = &mut self.status.totals;
        match entry.kind {
            LogKind::Revert => totals.reverts += 1,
            LogKind::Reapply => totals.reapplied += 1,
            LogKind::Refused => totals.refused += 1,
            LogKind::Yield => totals.yielded += 1,
            _ => {}
        }
        if self.log.len() == LOG {
            self.log.pop_front();
        }
        self.log.push_back(entry);
    }

    /// Prints and keeps one of the daemon's own notes. Skips a note that equals the last one.
    fn note(&mut self, note: String) {
        if self.status.notes.last() != Some(&note) {
            eprint_line(&note);
            self.status.notes.push(note);
            let excess = self.status.notes.len().saturating_sub(20);
            self.status.notes.drain(..excess);
        }
    }

    /// Updates the status with a window.
    fn update_status(&mut self, observation: &Observation, decision: Decision) {
        let Decision { plan, state, conflicts, held, verifications, locality, .. } = decision;
        let status = &mut self.status;
        let Plan { changes, refusals, advice, placements, measured, unused_outcome, .. } = plan;
        status.unused_outcome = unused_outcome;
        status.measured = measured;
        let attribution = &observation.attribution;
        status.windows += 1;
        status.attribution = AttributionStatus {
            source: attribution.source,
            refused: attribution
                .hooks
                .iter()
                .filter(|hook| hook.refused.is_some())
                .cloned()
                .collect(),
        };
        status.locality = locality;
        (status.placements, status.advice) = (placements, advice);
        (status.state, status.conflicts, status.held, status.refusals) =
            (state, conflicts, held, refusals);
        status.pending = changes;
        if let Some(result) = verifications.into_iter().next_back() {
            status.verification = Some(result);
        }
    }

    /// Publishes the status for readers of the socket, the metrics and systemd.
    fn publish(&mut self, window: Duration) {
        let status = &mut self.status;
        status.at = self.kernel.now();
        status.own = self_cost();
        status.log = self.log.iter().cloned().collect();
        self.listeners.put(status.clone(), self.sums.clone(), window);
        let changes = plural(status.totals.changes as usize, "write");
        tell_systemd(&[NotifyState::Status(&format!("{:?}, {changes}", status.state))]);
    }

    /// Reads the configuration again. If it cannot be applied, nothing changes.
    fn reload(&mut self) -> Result<()> {
        let counting = self.config.counting();
        if let Err(error) = self.args.load().and_then(|config| self.configure(config)) {
            let error = in_words(&error);
            eprint_line(format_args!("configuration not reloaded, so the old one stays: {error}"));
            self.status.config.error = Some(error);
            self.status.totals.bad_reloads += 1;
            self.publish(Duration::ZERO);
            return Ok(());
        }
        let mut notes = Vec::new();
        self.costs = self.args.costs(&self.root, &mut notes);
        notes.into_iter().for_each(|note| self.note(note));
        self.controller.reconfigure(self.config.policy());
        self.published.review();
        if counting != self.config.counting() {
            self.observer = Observer::start_light(&self.root, self.config.counting())?;
        }
        self.status.totals.reloads += 1;
        eprint_line("configuration reloaded");
        self.publish(Duration::ZERO);
        Ok(())
    }

    /// Keeps or restores the settings, according to the configuration.
    fn end(self) -> Exit {
        tell_systemd(&[NotifyState::Stopping]);
        if !self.config.restore_on_exit || self.status.mode != Mode::Placing {
            return Exit::Done;
        }
        match undo(
            &self.kernel,
            &self.dir,
            UndoScope::Daemons,
            false,
            RestoredBy::Daemon,
            &mut |_, _| {},
        ) {
            Ok(undone) => {
                let knobs: usize = undone.iter().map(|it| it.knobs.len()).sum();
                eprint_line(format_args!("{} restored", plural(knobs, "knob")));
                let complete = undone.iter().all(|it| it.is_complete());
                if complete { Exit::Done } else { Exit::RestoreIncomplete }
            }
            Err(error) => {
                eprint_line(format_args!("not restored: {error}; run `netsilo undo`"));
                Exit::RestoreIncomplete
            }
        }
    }
}
