//! Runs the trials of an experiment one after another. Whatever happens, the machine is left as it
//! was found.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use netsilo::args::costs::costs_for;
use netsilo::args::look::wait_unless_stopped;
use netsilo::args::state_dir::StateDir;
use netsilo::runs::{RecordsFile, refused};
use netsilo::tell::exit::{Exit, ExitError};
use netsilo::tell::out;
use netsilo::tell::words::plural;
use netsilo::temporary_changes::TemporaryChanges;
use netsilo_load as load;
use netsilo_load::{Bind, LoadError, Options, Order, Server, StartCounters, Tick};
use netsilo_model::derive::rates::rates;
use netsilo_model::derive::silos::silos;
use netsilo_model::derive::stages::Stages;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::bpf::tracer;
use netsilo_sys::files::root::Root;
use netsilo_sys::observe::{CountingMode, Observer};
use netsilo_trial::experiment::Sampled;
use netsilo_trial::experiment::{Experiment, Failed, Load, Record, Setting, SiloMap, Step, Trial};
use netsilo_trial::traffic::{EndMachine, Figures, LoadResult, Spec};

use crate::drop_rule::drop_early;
use crate::expectation::expect;
use crate::folder::RunOptions;
use crate::view;

/// A run ends after this many consecutive trials without a result.
const FAILURES: usize = 5;

/// Estimated time of a trial in addition to pause, warm-up and measured time.
const OVERHEAD: Duration = Duration::from_secs(2);

/// Maximum measured time of a short trial that only observes.
const LOOK: Duration = Duration::from_secs(2);

/// Measured time of a trial that samples stages. At 499 samples per second, a stage that uses a
/// tenth of a CPU gets 500 samples.
const SAMPLE: Duration = Duration::from_secs(10);

/// How long to wait for an unreachable sender after a change. A driver that resets its device takes
/// the link down.
const AWAY: Duration = Duration::from_secs(60);

/// How much longer than planned a trial may take.
const MARGIN: Duration = Duration::from_secs(60);

/// The data that all trials of a run share.
pub(crate) struct Runner<'a> {
    pub(crate) experiment: &'a Experiment,
    pub(crate) options: &'a RunOptions,
    pub(crate) state: &'a StateDir,
    pub(crate) stop: &'a AtomicBool,
}

/// Estimates how long this many trials take.
pub(crate) fn time_of(experiment: &Experiment, trials: usize) -> Duration {
    let each = experiment.loads.iter().map(|load| time_of_one(experiment, load)).sum::<Duration>();
    let each = each / experiment.loads.len().max(1) as u32;
    Duration::from_secs((each * trials as u32).as_secs())
}

fn time_of_one(experiment: &Experiment, load: &Load) -> Duration {
    experiment.pause + load.spec.warm_up + load.spec.duration + OVERHEAD
}

/// Maximum time that a setting is in effect for one trial of a load. Its netdev may be unreachable
/// for a while, and two short trials may observe before it. After this time a guard restores the
/// setting.
fn longest(load: &Load) -> Duration {
    AWAY + SAMPLE + 2 * (LOOK + load.spec.warm_up + load.spec.duration) + MARGIN
}

/// Observes the machine under a short load, with nothing changed.
pub(crate) fn observe(options: &RunOptions, load: &Load, stop: &AtomicBool) -> Result<Observation> {
    while_serving(options, stop, |targets| targets.observe(load))
}

/// Measures the share of this machine's CPU time that a short load uses, with nothing changed.
pub(crate) fn busy(options: &RunOptions, load: &Load, stop: &AtomicBool) -> Result<f64> {
    let (runs, between) = while_serving(options, stop, |targets| {
        targets.make(load, &shortened(load, LOOK), &mut |_| {})
    })?;
    let side = between
        .as_ref()
        .or_else(|| runs.first().map(|run| &run.server.side))
        .context("nothing was measured")?;
    let busy = side.busy_cpus().context("no cpu time was counted")?;
    Ok(busy / side.rates.cpus.len().max(1) as f64)
}

/// Checks in a short trial, with nothing changed, that all packets of a load are dropped early
/// here.
pub(crate) fn is_dropped(options: &RunOptions, load: &Load, stop: &AtomicBool) -> Result<()> {
    let (runs, _) = while_serving(options, stop, |targets| {
        targets.make(load, &shortened(load, LOOK), &mut |_| {})
    })?;
    none_arrived(&runs)
}

fn none_arrived(runs: &[LoadResult]) -> Result<()> {
    let arrived: u64 = runs.iter().map(|run| run.server.totals.datagrams_received).sum();
    ensure!(
        arrived == 0,
        "{arrived} datagrams were not dropped. Possible causes: their source address is not that \
         of the sender's netsilo-bench serve; something (XDP, a flowtable) forwards them before \
         netfilter; this is a bridge, and the kernel lacks nf_tables for bridges"
    );
    Ok(())
}

/// Shortens a load to at most `most` of measured time.
fn shortened(load: &Load, most: Duration) -> Spec {
    let (warm_up, duration) = (load.spec.warm_up.min(LOOK / 4), load.spec.duration.min(most));
    Spec { warm_up, duration, ..load.spec.clone() }
}

/// Addresses to which the loads are sent, in the order of the senders.
struct LoadTargets<'a> {
    options: &'a RunOptions,
    stop: &'a AtomicBool,
    to: Vec<SocketAddr>,
}

/// Runs `work` while this machine answers loads.
fn while_serving<T>(
    options: &RunOptions,
    stop: &AtomicBool,
    work: impl FnOnce(&LoadTargets<'_>) -> Result<T>,
) -> Result<T> {
    let mut servers: Vec<(IpAddr, Server)> = Vec::new();
    let mut to = Vec::new();
    for sender in &options.senders {
        if let Some(other) = &sender.against {
            to.push(crate::load_args::address(other)?);
            continue;
        }
        let Some(agent) = &sender.agent else { continue };
        let here = load::address_towards(crate::load_args::address(agent)?)?;
        if !servers.iter().any(|(address, _)| *address == here) {
            let address = SocketAddr::new(here, 0);
            let bind = Bind {
                address,
                work_usecs: options.work_usecs,
                workers: crate::load_args::cpus(),
                pinned: options.pinned.into_iter().collect(),
                memory: load::MEMORY,
            };
            servers.push((here, Server::bind(bind)?));
        }
        let server = servers.iter().find(|(address, _)| *address == here).context("no server")?;
        to.push(server.1.address().context("cannot read the server's listening address")?);
    }
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&over);
        for (_, server) in &servers {
            // the client reports the events of this server
            scope.spawn(|| server.serve(&over, &|_| {}));
        }
        work(&LoadTargets { options, stop, to })
    })
}

/// Sets its flag when dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl LoadTargets<'_> {
    /// Waits until all senders can be reached. Fails after [`AWAY`].
    fn reach(&self) -> Result<(), LoadError> {
        let until = Instant::now() + AWAY;
        for sender in &self.options.senders {
            let Some(Ok(agent)) = sender
                .agent
                .as_ref()
                .or(sender.against.as_ref())
                .map(|it| crate::load_args::address(it))
            else {
                continue;
            };
            while let Err(error) = load::address_towards(agent) {
                if Instant::now() > until || self.stop.load(Ordering::Relaxed) {
                    return Err(error);
                }
                wait_unless_stopped(Duration::from_millis(200), self.stop);
            }
        }
        Ok(())
    }

    fn ask(
        &self,
        sender: usize,
        spec: &Spec,
        watch: &mut dyn FnMut(Tick) -> ControlFlow<()>,
    ) -> Result<LoadResult, LoadError> {
        let n = sender % self.to.len().max(1);
        let (Some(sender), Some(to)) = (self.options.senders.get(n), self.to.get(n)) else {
            return Err(LoadError::Refused("no sender is given".into()));
        };
        let options = Options { bpf: self.options.bpf };
        let Some(agent) = &sender.agent else { return load::run(spec, *to, options, watch) };
        let agent = crate::load_args::address(agent)
            .map_err(|error| LoadError::Refused(error.to_string()))?;
        let against = sender.against.as_ref().map(|_| to.ip());
        let order =
            Order { spec: spec.clone(), to: against, port: to.port(), bpf: self.options.bpf };
        load::request_load(agent, &order, watch)
    }

    /// Runs a load from all its senders at once. The second value is this machine's measurement, if
    /// it is neither client nor server.
    fn make(
        &self,
        load: &Load,
        spec: &Spec,
        watch: &mut dyn FnMut(Tick),
    ) -> Result<(Vec<LoadResult>, Option<EndMachine>)> {
        let _dropped = drop_early(self.options, load)?;
        let failed = AtomicBool::new(false);
        let go_on = || {
            let over = self.stop.load(Ordering::Relaxed) || failed.load(Ordering::Relaxed);
            if over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let ask = |sender: usize, watch: &mut dyn FnMut(Tick)| {
            let made = self.ask(sender, spec, &mut |tick| {
                watch(tick);
                go_on()
            });
            if made.is_err() {
                failed.store(true, Ordering::Relaxed);
            }
            made
        };
        let is_between = self.options.senders.iter().any(|sender| sender.against.is_some());
        let (mut before, mut between) = (None, None);
        let made = thread::scope(|scope| {
            let ask = &ask;
            let others: Vec<_> = (1..load.senders as usize)
                .map(|sender| scope.spawn(move || ask(sender, &mut |_| {})))
                .collect();
            let first = ask(0, &mut |tick| {
                if is_between && tick.counted == Some(Duration::ZERO) {
                    before = Some(StartCounters::take(&Root::live(), self.options.bpf));
                } else if tick.counted.is_some_and(|counted| counted >= spec.duration) {
                    between = before.take().map(|before| before.and_then(StartCounters::end));
                }
                watch(tick);
            });
            let mut all = vec![first];
            all.extend(others.into_iter().map(|other| {
                other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }));
            all
        });
        // report the original failure, not the cancellations that it caused
        let (runs, errors): (Vec<_>, Vec<_>) = made.into_iter().partition(Result::is_ok);
        let mut errors: Vec<LoadError> = errors.into_iter().filter_map(Result::err).collect();
        let original = errors.iter().position(|error| !matches!(error, LoadError::Interrupted));
        match (!errors.is_empty()).then(|| errors.swap_remove(original.unwrap_or(0))) {
            Some(error) => Err(error.into()),
            None => Ok((runs.into_iter().filter_map(Result::ok).collect(), between.transpose()?)),
        }
    }

    /// Observes this machine under a short load that does not count.
    fn observe(&self, load: &Load) -> Result<Observation> {
        let root = Root::live();
        let mut observer =
            Observer::start_with(&root, CountingMode::Continuous, tracer::Options::default())?;
        self.make(load, &shortened(load, LOOK), &mut |_| {})?;
        Ok(observer.next(&root, Duration::ZERO, |_| {})?)
    }

    /// Samples the stages in which receive work spends its time under a load, and counts the
    /// packets that these netdevs receive. Per-packet eBPF programs are off meanwhile, because they
    /// would add to the sampled time.
    fn sample(&self, load: &Load, netdevs: &[String]) -> Result<Option<Sampled>> {
        let root = Root::live();
        let options = tracer::Options {
            containers: false,
            forwarding: false,
            stages: true,
            ..tracer::Options::default()
        };
        let mut observer = Observer::start_with(&root, CountingMode::Continuous, options)?;
        self.make(load, &shortened(load, SAMPLE), &mut |_| {})?;
        let Observation { before, after, attribution } =
            observer.next(&root, Duration::ZERO, |_| {})?;
        let count = |snapshot: &Snapshot, name: &String| {
            snapshot
                .netdevs
                .iter()
                .find(|netdev| netdev.name == *name)?
                .statistics
                .get("rx_packets")
                .copied()
        };
        let received = |name: &String| count(&after, name)?.checked_sub(count(&before, name)?);
        let softirq: u64 =
            attribution.cpu_time.values().map(|time| time.net_rx_ns + time.net_tx_ns).sum();
        Ok(attribution.stages.map(|samples| Sampled {
            stages: Stages::from_samples(&samples, attribution.elapsed.as_secs_f64()),
            received: netdevs.iter().map(received).sum(),
            softirq: (!attribution.cpu_time.is_empty()).then(|| Duration::from_nanos(softirq)),
        }))
    }
}

impl Runner<'_> {
    /// Runs these steps and records each result.
    pub(crate) fn run(
        &self,
        mut folder: RecordsFile,
        steps: Vec<Step>,
        records: &[Record],
    ) -> Result<Exit> {
        let longest = self.experiment.loads.iter().map(longest).max().unwrap_or_default();
        let mut temporary = TemporaryChanges::new(self.state, longest)?;
        let bar = Progress::new(self.experiment, &steps);
        let made = while_serving(self.options, self.stop, |targets| {
            self.all(targets, &mut temporary, &mut folder, &steps, records, &bar)
        });
        bar.bar.finish_and_clear();
        // a failed restore is reported before a failed measurement
        temporary.restore()?;
        let failed = made?;
        let dir = folder.folder().display();
        if self.stop.load(Ordering::Relaxed) {
            out::text(&format!(
                "interrupted; everything is restored. Resume with --resume {dir}\n"
            ));
            return Ok(Exit::Refused);
        }
        let without = if failed > 0 {
            format!(", {failed} without a result (--resume {dir})")
        } else {
            String::new()
        };
        out::text(&format!("{} in {dir}{without}\n", plural(steps.len(), "trial")));
        Ok(Exit::Done)
    }

    /// Runs all steps. Returns how many had no result.
    fn all(
        &self,
        targets: &LoadTargets<'_>,
        temporary: &mut TemporaryChanges<'_>,
        folder: &mut RecordsFile,
        steps: &[Step],
        records: &[Record],
        bar: &Progress,
    ) -> Result<usize> {
        let mut mapped: BTreeSet<(String, String)> = records.iter().filter_map(mapped).collect();
        let costs = costs_for(false)?;
        let (mut failed, mut in_a_row) = (0, 0);
        for (n, step) in steps.iter().enumerate() {
            bar.begin(n, step);
            wait_unless_stopped(self.experiment.pause, self.stop);
            let (Some(setting), Some(load)) = (self.setting(step), self.load(step)) else {
                continue;
            };
            if let Some(reference) = self.unseen_reference(load, &mut mapped) {
                let seen = targets.reach().map_err(Into::into).and_then(|()| {
                    let seen = self.map(targets, reference, load, folder)?;
                    let expected = expect(self.experiment, load, &seen, &costs);
                    folder.append(&Record::Expected(Box::new(expected)))
                });
                if let (Err(error), false) = (seen, self.stop.load(Ordering::Relaxed)) {
                    bar.note(&format!("{}: no prediction: {error}", load.name));
                }
            }
            if let Err(error) = temporary.replace(&setting.changes) {
                let why = refused(error)?;
                (failed, in_a_row) = (failed + 1, in_a_row + 1);
                folder.append(&Record::Failed(Failed { step: step.clone(), why: why.clone() }))?;
                give_up(in_a_row, &why)?;
                continue;
            }
            let look =
                self.options.maps && mapped.insert((load.name.clone(), setting.name.clone()));
            let made = targets.reach().map_err(Into::into).and_then(|()| {
                if look {
                    self.map(targets, setting, load, folder)?;
                }
                self.trial(targets, step, load, bar)
            });
            let restored = temporary.restore()?;
            let made = made.and_then(|trial| restored.only_now().map(|()| trial));
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            match made {
                Ok(trial) => {
                    in_a_row = 0;
                    bar.end(n, &trial);
                    folder.append(&Record::Trial(Box::new(trial)))?;
                }
                Err(error) => {
                    let why = error.to_string();
                    bar.note(&format!("{}, {}: {why}", step.setting, step.load));
                    (failed, in_a_row) = (failed + 1, in_a_row + 1);
                    folder
                        .append(&Record::Failed(Failed { step: step.clone(), why: why.clone() }))?;
                    give_up(in_a_row, &why)?;
                }
            }
        }
        Ok(failed)
    }

    fn setting(&self, step: &Step) -> Option<&Setting> {
        self.experiment.settings.iter().find(|setting| setting.name == step.setting)
    }

    fn load(&self, step: &Step) -> Option<&Load> {
        self.experiment.loads.iter().find(|load| load.name == step.load)
    }

    fn trial(
        &self,
        targets: &LoadTargets<'_>,
        step: &Step,
        load: &Load,
        bar: &Progress,
    ) -> Result<Trial> {
        let started_ms =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64);
        let (runs, between) = targets.make(load, &load.spec, &mut |tick| bar.tick(load, tick))?;
        if load.early_drop {
            none_arrived(&runs)?;
        }
        Ok(Trial { step: step.clone(), started_ms, runs, between })
    }

    /// Runs a short trial that only shows which CPUs process and read. On a forwarding machine,
    /// also runs one that samples stages.
    fn map(
        &self,
        targets: &LoadTargets<'_>,
        setting: &Setting,
        load: &Load,
        folder: &mut RecordsFile,
    ) -> Result<Observation> {
        let seen = targets.observe(load)?;
        let silos = silos(&seen, &rates(&seen.before, &seen.after));
        let counted = &self.experiment.machine.counted;
        let sampled = if self.options.forwards() { targets.sample(load, counted)? } else { None };
        let (load, setting) = (load.name.clone(), setting.name.clone());
        folder.append(&Record::Map(Box::new(SiloMap { load, setting, silos, sampled })))?;
        Ok(seen)
    }

    /// The first setting, if it changes nothing and was not yet mapped under this load. From then
    /// on it counts as mapped.
    fn unseen_reference(
        &self,
        load: &Load,
        mapped: &mut BTreeSet<(String, String)>,
    ) -> Option<&Setting> {
        let first = self.experiment.settings.first()?;
        let is_as_found = self.options.maps && first.changes.is_empty();
        let is_new = is_as_found && mapped.insert((load.name.clone(), first.name.clone()));
        is_new.then_some(first)
    }
}

fn mapped(record: &Record) -> Option<(String, String)> {
    match record {
        Record::Map(map) => Some((map.load.clone(), map.setting.clone())),
        Record::Trial(_) | Record::Expected(_) | Record::Failed(_) => None,
    }
}

fn give_up(in_a_row: usize, why: &str) -> Result<()> {
    if in_a_row < FAILURES {
        return Ok(());
    }
    let message =
        format!("{in_a_row} consecutive trials without a result; the reason for the last: {why}");
    bail!(ExitError(Exit::Refused, message))
}

/// A bar on stderr that advances with the expected time of the trials. Without a terminal, one line
/// per trial.
struct Progress {
    bar: ProgressBar,
    /// Expected start of each trial, in milliseconds.
    begins: Vec<u64>,
    /// Pause before each trial, in milliseconds.
    lead_in: u64,
    trials: usize,
}

impl Progress {
    fn new(experiment: &Experiment, steps: &[Step]) -> Self {
        let time = |step: &Step| {
            let load = experiment.loads.iter().find(|load| load.name == step.load);
            load.map_or(0, |load| time_of_one(experiment, load).as_millis() as u64)
        };
        let mut begins = vec![0];
        for step in steps {
            begins.push(begins.last().copied().unwrap_or(0) + time(step));
        }
        let style = ProgressStyle::with_template("{prefix} {wide_bar} {eta} left  {msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(begins.last().copied().unwrap_or(0)).with_style(style);
        bar.enable_steady_tick(Duration::from_secs(1));
        Self { bar, begins, lead_in: experiment.pause.as_millis() as u64, trials: steps.len() }
    }

    fn begin(&self, n: usize, step: &Step) {
        self.bar.set_position(self.begins.get(n).copied().unwrap_or(0));
        self.bar.set_prefix(format!("{}/{}", n + 1, self.trials));
        self.bar.set_message(format!("{}, {}", step.setting, step.load));
        self.bar.tick();
    }

    fn tick(&self, load: &Load, tick: Tick) {
        let Some(counted) = tick.counted.filter(|counted| !counted.is_zero()) else { return };
        let begun = self
            .begins
            .iter()
            .rev()
            .find(|begin| **begin <= self.bar.position())
            .copied()
            .unwrap_or(0);
        let into = self.lead_in + (load.spec.warm_up + counted).as_millis() as u64;
        self.bar.set_position(begun + into);
    }

    fn end(&self, n: usize, trial: &Trial) {
        let figures: Vec<Figures> = trial.runs.iter().map(|run| run.figures()).collect();
        let Step { round, load, setting } = &trial.step;
        let what = format!(
            "{}/{} round {}, {setting}, {load}: {}",
            n + 1,
            self.trials,
            round + 1,
            view::rate(&figures)
        );
        if self.bar.is_hidden() {
            out::note(&what);
        }
    }

    fn note(&self, message: &str) {
        self.bar.suspend(|| out::note(message));
    }
}
