//! `netsilo-bench experiment`: arguments, start, consent and resume.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use netsilo::args::look::wait_with_progress;
use netsilo::args::state_dir::StateDir;
use netsilo::runs::{as_found, machine, same_machine, writes};
use netsilo::tell::consent::{self, confirmed_by_user};
use netsilo::tell::exit::{Exit, ExitError};
use netsilo::tell::out;
use netsilo::tell::words::plural;
use netsilo::verbs::capture;
use netsilo_model::machine::schema::NETSILO;
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::bpf::tracer;
use netsilo_sys::bundle::Addresses;
use netsilo_sys::files::root::Root;
use netsilo_sys::observe::{CountingMode, Observer};
use netsilo_trial::experiment::{Experiment, Load, MACHINE, MachineSummary, SCHEMA, Setting};

use crate::commands::commands;
use crate::definition::{self, Definition, Role};
use crate::folder::{RunOptions, Sender, create_run, open_run};
use crate::load_args::{TimeArgs, address};
use crate::runner::{self, Runner};
use crate::settings::settings;
use crate::setup::Setup;
use crate::tuning::TuningArgs;

/// Default number of rounds. With fewer there is no exact 95% interval.
const ROUNDS: u32 = 6;

/// Arguments of `netsilo-bench experiment`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A published experiment (matrix, silo, stream, rps-guest, forward), or the file of another
    /// one (docs/bench.md)
    #[arg(value_name = "NAME|FILE", required_unless_present = "resume")]
    definition: Option<String>,
    /// Print the definition, to be changed and used as a file
    #[arg(long, conflicts_with = "resume")]
    print: bool,
    /// Machine where netsilo-bench serve runs: it generates the load, or answers it if this-machine
    /// = "sends". Give it twice for two senders; for a machine that forwards: first the sender,
    /// then the receiver
    #[arg(long, value_name = "HOST[:PORT]", required_unless_present_any = ["resume", "print"])]
    peer: Vec<String>,
    /// Folder to write the run to [default: name and time]
    #[arg(short, long, value_name = "DIR", conflicts_with = "resume")]
    output: Option<PathBuf>,
    /// Resume the run in this folder with its recorded options; run only the missing trials
    #[arg(long, value_name = "DIR", conflicts_with = "definition")]
    resume: Option<PathBuf>,
    /// With --resume: run the commands of a folder that belongs to others
    #[arg(long, requires = "resume", conflicts_with_all = ["definition", "output"])]
    trust: bool,
    /// Number of trials of each setting under each load; below 6 there is no exact 95% interval
    #[arg(
        long,
        value_name = "N",
        default_value_t = ROUNDS,
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    rounds: u32,
    #[command(flatten)]
    times: TimeArgs,
    /// Idle time before each trial
    #[arg(
        long,
        value_name = "TIME",
        default_value = "2s",
        value_parser = netsilo::args::parse::duration
    )]
    pause: Duration,
    /// Seed of the random order of trials [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Measure interrupt times with eBPF; this costs a little CPU time
    #[arg(long)]
    bpf: bool,
    /// Do not map which CPUs process and read the load; saves one short trial per setting and load
    #[arg(long)]
    no_map: bool,
    #[command(flatten)]
    tuning: TuningArgs,
    /// Start without asking first
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    state: StateDir,
}

/// Runs or resumes an experiment.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let definition = args.definition.as_deref().map(definition::text).transpose()?;
    match (&args.resume, &definition) {
        (Some(dir), _) => args.go_on(dir, &Signals::await_them()?),
        (None, Some((_, text))) if args.print => {
            out::text(text);
            Ok(Exit::Printed)
        }
        (None, Some((name, text))) => {
            let definition = Definition::parse(name, text)?;
            args.start(name, &definition, &Signals::await_them()?)
        }
        (None, None) => Err(ExitError(Exit::Usage, "name an experiment".into()).into()),
    }
}

/// The effect of signals: they end the program while a question is open, and stop the run
/// otherwise.
struct Signals {
    stop: Arc<AtomicBool>,
    asking: Arc<AtomicBool>,
}

impl Signals {
    fn await_them() -> Result<Self> {
        let (stop, asking) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        for signal in
            [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
        {
            // while the question is open nothing is written or needs to be restored
            signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&asking))
                .context("cannot await signals")?;
            signal_hook::flag::register(signal, Arc::clone(&stop))
                .context("cannot await signals")?;
        }
        Ok(Self { stop, asking })
    }
}

/// The senders and receivers of the loads, depending on what this machine does.
fn senders(role: Role, peers: &[String], most: u32) -> Result<Vec<Sender>> {
    let agent = |peer: &String| Sender { agent: Some(peer.clone()), against: None };
    let against = |peer: &String| Sender { agent: None, against: Some(peer.clone()) };
    let between = |from: &String, to: &String| Sender {
        agent: Some(from.clone()),
        against: Some(to.clone()),
    };
    match (role, peers) {
        (Role::Receives, peers) => Ok(peers.iter().map(agent).collect()),
        (Role::Sends, peers) => Ok(peers.iter().map(against).collect()),
        (Role::Forwards, [sender, receiver]) => {
            let both = [between(sender, receiver), between(receiver, sender)];
            Ok(both.into_iter().take(most as usize).collect())
        }
        (Role::Forwards, _) => {
            let why = "this machine forwards: give --peer twice, first the sender, then the \
                       receiver";
            Err(ExitError(Exit::Usage, why.into()).into())
        }
    }
}

impl Args {
    /// Starts a run.
    fn start(&self, name: &str, definition: &Definition, signals: &Signals) -> Result<Exit> {
        let loads = definition.loads(&self.times);
        let most = loads.iter().map(|load| load.senders).max().unwrap_or(1);
        let senders = senders(definition.this_machine, &self.peer, most)?;
        let (bpf, maps, work_usecs) = (self.bpf, !self.no_map, definition.work_usecs);
        let options = RunOptions { senders, bpf, maps, work_usecs, pinned: None };
        // this is first, because a missing server must be reported before a long planning step
        let here = this_address(&options)?;
        let root = Root::live();
        let mut observer =
            Observer::start_with(&root, CountingMode::Continuous, tracer::Options::default())?;
        let observation =
            observer.next(&root, netsilo::args::look::INTERVAL, wait_with_progress)?;
        drop(observer);
        let (tuning, state, stop) = (&self.tuning, &self.state, &*signals.stop);
        let mut setup = Setup { observation, options, tuning, state, stop };
        let (settings, loads) = define(definition, loads, &mut setup)?;
        let Setup { observation, options, .. } = setup;
        let counted = tuning.netdevs(&observation.after).map(|netdev| netdev.name.clone());
        let counted = if options.forwards() { counted.collect() } else { Vec::new() };
        let experiment = Experiment {
            schema: SCHEMA,
            kind: name.to_owned(),
            netsilo: NETSILO.to_owned(),
            command: std::env::args().collect(),
            started_s: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |time| time.as_secs()),
            settings,
            loads,
            rounds: self.rounds,
            pause: self.pause,
            seed: self.seed.unwrap_or_else(|| fastrand::u64(..)),
            machine: MachineSummary { counted, ..machine(&observation)? },
        };
        experiment.check().map_err(|why| ExitError(Exit::Usage, why))?;
        if experiment.settings.iter().all(|setting| setting.changes.is_empty()) {
            let message = "no setting changes anything here: there is nothing to compare \
                           (name a netdev with --netdev?)";
            return Err(ExitError(Exit::Refused, message.into()).into());
        }
        let steps = experiment.steps();
        self.agree(&experiment, steps.len(), &signals.asking)?;
        let dir = self.output.clone().unwrap_or_else(|| default_folder(name));
        let commands = commands(&experiment, &options, here)?;
        let folder = create_run(&dir, &experiment, &options, &commands)?;
        capture::save(
            &dir.join(MACHINE),
            netsilo::args::look::INTERVAL,
            CountingMode::Continuous,
            Addresses::Replace,
        )?;
        Runner { experiment: &experiment, options: &options, state, stop }.run(folder, steps, &[])
    }

    /// Resumes a run.
    fn go_on(&self, dir: &Path, signals: &Signals) -> Result<Exit> {
        let (folder, experiment, options, records) = open_run(dir, self.trust)?;
        let root = Root::live();
        let seen = netsilo_sys::snapshot_here(&root).context("cannot read this machine")?;
        let now = machine(&Observation { after: seen, ..Observation::default() })?;
        same_machine(&experiment.machine, &now)?;
        as_found(&self.state, &experiment.settings)?;
        let left = experiment.remaining_steps(&records);
        if left.is_empty() {
            out::text(&format!("no trial is missing in {}\n", dir.display()));
            return Ok(Exit::Done);
        }
        self.agree(&experiment, left.len(), &signals.asking)?;
        let (state, stop) = (&self.state, &*signals.stop);
        Runner { experiment: &experiment, options: &options, state, stop }
            .run(folder, left, &records)
    }

    /// Shows what will be done, and asks.
    fn agree(&self, experiment: &Experiment, trials: usize, asking: &AtomicBool) -> Result<()> {
        out::text(&shown(experiment));
        consent::refuse(
            &writes(&experiment.settings, self.tuning.even_if_owned),
            &self.state.root()?,
        )?;
        let time = runner::time_of(experiment, trials);
        let question =
            format!("run {}, about {}", plural(trials, "trial"), humantime::format_duration(time));
        asking.store(true, Ordering::Relaxed);
        let agreed = self.yes || confirmed_by_user(&question)?;
        asking.store(false, Ordering::Relaxed);
        if !agreed {
            return Err(ExitError(Exit::Refused, "nothing was written".into()).into());
        }
        Ok(())
    }
}

/// Makes the settings and loads of a definition on this machine.
fn define(
    definition: &Definition,
    loads: Vec<Load>,
    setup: &mut Setup<'_>,
) -> Result<(Vec<Setting>, Vec<Load>)> {
    if let Some(word) = &definition.reader {
        let topology = &setup.observation.after.topology;
        setup.options.pinned = Some(setup.tuning.reader(word, topology)?);
    }
    // the last load is the heaviest
    let load = loads.iter().rfind(|load| !load.early_drop).context("no load is given")?;
    if definition.work_until_busy {
        setup.work_until_busy(load)?;
    }
    let settings = settings(&definition.settings, setup, load)?;
    let mut possible = Vec::new();
    for load in loads {
        if setup.is_possible(&load)? {
            possible.push(load);
        }
    }
    Ok((without_twins(settings), possible))
}

/// Connects to each peer. Returns this machine's address towards the last one.
fn this_address(options: &RunOptions) -> Result<Option<IpAddr>> {
    let mut here = None;
    for Sender { agent, against } in &options.senders {
        if let Some(other) = agent.as_ref().or(against.as_ref()) {
            here = Some(netsilo_load::address_towards(address(other)?)?);
        }
    }
    Ok(here)
}

/// Drops each setting that writes the same as an earlier one, with a note.
fn without_twins(settings: Vec<Setting>) -> Vec<Setting> {
    let mut all: Vec<Setting> = Vec::new();
    for setting in settings {
        match all.iter().find(|other| other.changes == setting.changes) {
            Some(other) => {
                out::note(&format!(
                    "{}: writes the same as {} here, so it is left out",
                    setting.name, other.name
                ));
            }
            None => all.push(setting),
        }
    }
    all
}

fn default_folder(name: &str) -> PathBuf {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    format!("{name}-{}", now.replace([':', '-'], "")).into()
}

/// Describes the settings and loads of the run.
fn shown(experiment: &Experiment) -> String {
    let mut text = format!(
        "{}: {} x {} x {}\n",
        experiment.kind,
        plural(experiment.settings.len(), "setting"),
        plural(experiment.loads.len(), "load"),
        plural(experiment.rounds as usize, "round"),
    );
    for setting in &experiment.settings {
        let _ = writeln!(text, "  {}: {}", setting.name, setting.what);
        for change in &setting.changes {
            let (old, new) = change.from_to();
            let _ = writeln!(text, "    {}: {old} -> {new}", change.target);
        }
    }
    text
}
