//! What all experiments share: arguments, start, consent and resume.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use netsilo_decide::plan::Plan;
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::bpf::tracer;
use netsilo_sys::bundle::Addresses;
use netsilo_sys::files::root::Root;
use netsilo_sys::observe::{CountingMode, Observer};
use netsilo_sys::read::machine::{is_emulated, machine_identity};
use netsilo_sys::transaction::knob;
use netsilo_trial::experiment::{Experiment, Kind, MACHINE, MachineSummary, Setting};
use netsilo_trial::traffic::{InstancesAs, Spec, Test};

use crate::args::look::wait_with_progress;
use crate::args::state_dir::StateDir;
use crate::bench::commands::commands;
use crate::bench::defined::{Definition, Setup};
use crate::bench::folder::{RunOptions, Sender, create_run, open_run};
use crate::bench::load_args::TimeArgs;
use crate::bench::runner::{self, Runner};
use crate::bench::settings::TuningArgs;
use crate::tell::consent::{self, confirmed_by_user};
use crate::tell::exit::{Exit, ExitError};
use crate::tell::out;
use crate::tell::words::plural;
use crate::verbs::capture;

/// Default number of rounds; with fewer there is no exact 95% interval.
const ROUNDS: u32 = 6;

/// Arguments of an experiment whose loads run between this machine and a peer.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct PeerArgs {
    /// Peer that generates the load, where netsilo bench serve runs; give it twice for two peers
    #[arg(long, value_name = "HOST[:PORT]", required_unless_present = "resume")]
    peer: Vec<String>,
    #[command(flatten)]
    pub(super) experiment: ExperimentArgs,
    #[command(flatten)]
    pub(super) tuning: TuningArgs,
}

impl PeerArgs {
    /// Runs or resumes the experiment; each peer sends to this machine.
    pub(super) fn run(
        &self,
        kind: Kind,
        define: impl FnOnce(&mut Setup<'_>) -> Result<Definition>,
    ) -> Result<Exit> {
        self.experiment.run(kind, self.tuning.even_if_owned(), self.senders(), define)
    }

    /// Returns one sender per peer; each sends to this machine.
    pub(super) fn senders(&self) -> Vec<Sender> {
        self.peer.iter().map(|agent| Sender { agent: Some(agent.clone()), against: None }).collect()
    }
}

/// Arguments of every experiment.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct ExperimentArgs {
    /// Folder to write the run to [default: kind and time]
    #[arg(short, long, value_name = "DIR", conflicts_with = "resume")]
    output: Option<PathBuf>,
    /// Resume the run in this folder with its recorded options; run only the missing trials
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
    /// With --resume: run the commands of a folder that belongs to others
    #[arg(long, requires = "resume")]
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
        value_parser = crate::args::parse::duration
    )]
    pause: Duration,
    /// Seed of the random order of trials [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Measure interrupt times with eBPF, which costs a little CPU time
    #[arg(long)]
    bpf: bool,
    /// Do not map which CPUs process and read the load; saves one short trial per setting and load
    #[arg(long)]
    no_map: bool,
    /// Start without asking first
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    pub(super) state: StateDir,
}

impl ExperimentArgs {
    /// Runs or resumes the experiment.
    pub(super) fn run(
        &self,
        kind: Kind,
        even_if_owned: bool,
        senders: Vec<Sender>,
        define: impl FnOnce(&mut Setup<'_>) -> Result<Definition>,
    ) -> Result<Exit> {
        let (stop, asking) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        for signal in
            [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
        {
            // while the question is open nothing is written or needs restoring: a signal may end
            // the program
            signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&asking))
                .context("cannot await signals")?;
            signal_hook::flag::register(signal, Arc::clone(&stop))
                .context("cannot await signals")?;
        }
        if let Some(dir) = &self.resume {
            return self.go_on(kind, dir, even_if_owned, &stop, &asking);
        }
        let options =
            RunOptions { senders, bpf: self.bpf, maps: !self.no_map, work_usecs: 0, pinned: None };
        // first of all: a missing server must be reported before a long planning step
        let mut here = None;
        for other in options
            .senders
            .iter()
            .filter_map(|sender| sender.agent.as_ref().or(sender.against.as_ref()))
        {
            here = Some(netsilo_load::address_towards(crate::bench::load_args::address(other)?)?);
        }
        let root = Root::live();
        let mut observer =
            Observer::start_with(&root, CountingMode::Continuous, tracer::Options::default())?;
        let observation = observer.next(&root, crate::args::look::INTERVAL, wait_with_progress)?;
        drop(observer);
        let mut setup = Setup {
            observation,
            options,
            counted_netdevs: Vec::new(),
            state: &self.state,
            stop: &stop,
        };
        let Definition { settings, loads } = define(&mut setup)?;
        let settings = without_twins(settings);
        let (observation, options) = (setup.observation, setup.options);
        let experiment = Experiment {
            schema: 1,
            kind,
            netsilo: env!("CARGO_PKG_VERSION").into(),
            command: std::env::args().collect(),
            started_s: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |time| time.as_secs()),
            settings,
            loads,
            rounds: self.rounds,
            pause: self.pause,
            seed: self.seed.unwrap_or_else(|| fastrand::u64(..)),
            machine: MachineSummary { counted: setup.counted_netdevs, ..machine(&observation)? },
        };
        experiment.check().map_err(|why| ExitError(Exit::Usage, why))?;
        if experiment.settings.iter().all(|setting| setting.changes.is_empty()) {
            let message = "no setting changes anything here: there is nothing to compare \
                           (name a netdev with --netdev?)";
            return Err(ExitError(Exit::Refused, message.into()).into());
        }
        self.agree(&experiment, experiment.steps().len(), even_if_owned, &asking)?;
        let dir = self.output.clone().unwrap_or_else(|| default_folder(kind));
        let commands = commands(&experiment, &options, here)?;
        let folder = create_run(&dir, &experiment, &options, &commands)?;
        capture::save(
            &dir.join(MACHINE),
            crate::args::look::INTERVAL,
            CountingMode::Continuous,
            Addresses::Replace,
        )?;
        let steps = experiment.steps();
        Runner { experiment: &experiment, options: &options, state: &self.state, stop: &stop }.run(
            folder,
            steps,
            &[],
        )
    }

    /// Resumes a run.
    fn go_on(
        &self,
        kind: Kind,
        dir: &Path,
        even_if_owned: bool,
        stop: &AtomicBool,
        asking: &AtomicBool,
    ) -> Result<Exit> {
        let (folder, experiment, options, records) = open_run(dir, self.trust)?;
        ensure!(
            experiment.kind == kind,
            "{} holds a run of bench {}",
            dir.display(),
            experiment.kind
        );
        let root = Root::live();
        let seen = netsilo_sys::snapshot(&root).context("cannot read this machine")?;
        let now = machine(&Observation { after: seen, ..Observation::default() })?;
        same_machine(&experiment.machine, &now)?;
        as_found(&self.state, &experiment.settings)?;
        let left = experiment.remaining_steps(&records);
        if left.is_empty() {
            out::text(&format!("no trial is missing in {}\n", dir.display()));
            return Ok(Exit::Done);
        }
        self.agree(&experiment, left.len(), even_if_owned, asking)?;
        Runner { experiment: &experiment, options: &options, state: &self.state, stop }
            .run(folder, left, &records)
    }

    /// Shows what will be done, and asks.
    fn agree(
        &self,
        experiment: &Experiment,
        trials: usize,
        even_if_owned: bool,
        asking: &AtomicBool,
    ) -> Result<()> {
        out::text(&shown(experiment));
        consent::refuse(&writes(&experiment.settings, even_if_owned), &self.state.root()?)?;
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

    /// Returns a load of this test with the chosen warm-up and duration.
    pub(super) fn spec(
        &self,
        test: Test,
        instances: usize,
        instances_as: Option<InstancesAs>,
    ) -> Spec {
        let spec = self.times.spec(test);
        crate::bench::load_args::with_instances(spec, instances, instances_as)
    }
}

/// What these settings write, as plans.
pub(crate) fn writes(settings: &[Setting], even_if_owned: bool) -> Vec<Plan> {
    let plan = |setting: &Setting| Plan {
        changes: setting.changes.clone(),
        even_if_owned,
        ..Plan::default()
    };
    settings.iter().map(plan).collect()
}

/// Checks that every changed value is still as it was when the run began.
pub(crate) fn as_found(state: &StateDir, settings: &[Setting]) -> Result<()> {
    let kernel = state.kernel()?;
    for change in settings.iter().flat_map(|setting| &setting.changes) {
        let now = knob::read(&kernel, &change.target)?.value;
        ensure!(
            now == change.old,
            "{} is {now} and was {} when the run began: restore it, or start a new run",
            change.target,
            change.old
        );
    }
    Ok(())
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

fn default_folder(kind: Kind) -> PathBuf {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    format!("{kind}-{}", now.replace([':', '-'], "")).into()
}

/// Describes this machine for the run's record.
pub(crate) fn machine(seen: &Observation) -> Result<MachineSummary> {
    let identity = machine_identity(&Root::live()).context("cannot identify this machine")?;
    let with_queues = seen.after.netdevs.iter().filter(|netdev| netdev.up && netdev.name != "lo");
    let netdevs = with_queues.map(|netdev| {
        let driver = netdev.driver.as_deref().unwrap_or("driver unknown");
        format!("{}: {driver}, {}", netdev.name, plural(netdev.rx_queues.len(), "rx queue"))
    });
    Ok(MachineSummary {
        hostname: identity.hostname,
        kernel: identity.kernel,
        cpus: seen.after.topology.online.len() as u32,
        netdevs: netdevs.collect(),
        counted: Vec::new(),
        times_invalid: is_emulated().then(|| "its CPUs are emulated".into()),
        model: Some(identity.cpu_model).filter(|model| !model.is_empty()),
    })
}

/// Checks that a run began on this machine.
pub(crate) fn same_machine(then: &MachineSummary, now: &MachineSummary) -> Result<()> {
    let known = |it: &MachineSummary| {
        let model = it.model.clone().unwrap_or_default();
        [("host name", it.hostname.clone()), ("kernel", it.kernel.clone()), ("CPU model", model)]
            .into_iter()
            .chain([("number of online CPUs", it.cpus.to_string())])
            .collect::<Vec<_>>()
    };
    for ((what, then), (_, now)) in known(then).into_iter().zip(known(now)) {
        ensure!(
            then == now,
            "the run began on another machine: its {what} is {then}, not {now}; start a new run"
        );
    }
    Ok(())
}

/// Describes what will be tried.
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
