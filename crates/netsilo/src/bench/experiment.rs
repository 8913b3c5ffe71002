//! What all experiments share: arguments, start, consent and resume.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use netsilo_decide::plan::Plan;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::bpf::tracer;
use netsilo_sys::bundle::Addresses;
use netsilo_sys::cost::store;
use netsilo_sys::files::root::Root;
use netsilo_sys::observe::{Counting, Observer};
use netsilo_sys::transaction::knob;
use netsilo_trial::experiment::{Experiment, Kind, Load, MACHINE, MachineSummary, Setting};
use netsilo_trial::traffic::{InstancesAs, Spec, Test};

use crate::args::look::pass_time;
use crate::bench::folder::{Folder, How, Sender};
use crate::bench::runner::{self, Runner};
use crate::bench::settings::Hardware;
use crate::tell::exit::{Exit, Stop};
use crate::tell::out;
use crate::verbs::apply::{Place, agreed, count, refuse_owned};
use crate::verbs::capture;

/// Default number of rounds; with fewer there is no exact 95% interval.
const ROUNDS: u32 = 6;

/// Arguments of an experiment whose loads run between this machine and a peer.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct With {
    /// Peer that generates the load, where netsilo bench serve runs; give it twice for two peers
    #[arg(long, value_name = "HOST[:PORT]", required_unless_present = "resume")]
    with: Vec<String>,
    #[command(flatten)]
    pub(super) common: Common,
    #[command(flatten)]
    pub(super) hardware: Hardware,
}

impl With {
    /// Runs or resumes the experiment; each peer sends to this machine.
    pub(super) fn run(
        &self,
        kind: Kind,
        define: impl FnOnce(&mut Made<'_>) -> Result<Defined>,
    ) -> Result<Exit> {
        self.common.run(kind, self.hardware.even_if_owned(), self.senders(), define)
    }

    /// Returns one sender per peer; each sends to this machine.
    pub(super) fn senders(&self) -> Vec<Sender> {
        self.with.iter().map(|agent| Sender { agent: Some(agent.clone()), against: None }).collect()
    }
}

/// Arguments of every experiment.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Common {
    /// Folder to write the run to [default: kind and time]
    #[arg(short, long, value_name = "DIR", conflicts_with = "resume")]
    output: Option<PathBuf>,
    /// Resume the run in this folder with its recorded options; run only the missing trials
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
    /// Number of trials of each setting under each load; below 6 there is no exact 95% interval
    #[arg(
        long,
        value_name = "N",
        default_value_t = ROUNDS,
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    rounds: u32,
    /// Time each trial counts
    #[arg(
        short,
        long,
        value_name = "TIME",
        default_value = "10s",
        value_parser = humantime::parse_duration
    )]
    duration: Duration,
    /// Time each trial runs before it counts
    #[arg(
        long,
        value_name = "TIME",
        default_value = "1s",
        value_parser = humantime::parse_duration
    )]
    warm_up: Duration,
    /// Idle time before each trial
    #[arg(
        long,
        value_name = "TIME",
        default_value = "2s",
        value_parser = humantime::parse_duration
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
    pub(super) place: Place,
}

/// The settings and loads of an experiment on this machine.
pub(super) struct Defined {
    pub(super) settings: Vec<Setting>,
    pub(super) loads: Vec<Load>,
}

/// What an experiment is defined from.
pub(super) struct Made<'a> {
    /// The machine before anything was written.
    pub(super) seen: Observation,
    /// How the trials are run.
    pub(super) how: How,
    /// Netdevs of a forwarding machine whose received packets are counted.
    pub(super) counted: Vec<String>,
    pub(super) place: &'a Place,
    pub(super) stop: &'a AtomicBool,
}

impl Made<'_> {
    /// Observes the machine under a load, before anything is written.
    pub(super) fn under(&self, load: &Load) -> Result<Observation> {
        out::note(&format!("observing {} with nothing changed", load.name));
        runner::observe(&self.how, load, self.stop)
    }

    /// Returns the share of this machine's CPU time that a load uses.
    pub(super) fn busy(&self, load: &Load) -> Result<f64> {
        runner::busy(&self.how, load, self.stop)
    }
}

impl Common {
    /// Runs or resumes the experiment.
    pub(super) fn run(
        &self,
        kind: Kind,
        even_if_owned: bool,
        senders: Vec<Sender>,
        define: impl FnOnce(&mut Made<'_>) -> Result<Defined>,
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
        let how = How { senders, bpf: self.bpf, maps: !self.no_map, work_usecs: 0, pinned: None };
        // first of all: a missing server must be reported before a long planning step
        let mut here = None;
        for other in how
            .senders
            .iter()
            .filter_map(|sender| sender.agent.as_ref().or(sender.against.as_ref()))
        {
            here = Some(netsilo_load::here(crate::bench::address(other)?)?);
        }
        let root = Root::live();
        let mut observer =
            Observer::start_with(&root, Counting::Continuous, tracer::Options::default())?;
        let seen = observer.next(&root, crate::args::look::INTERVAL, pass_time)?;
        drop(observer);
        let mut made = Made { seen, how, counted: Vec::new(), place: &self.place, stop: &stop };
        let Defined { settings, loads } = define(&mut made)?;
        let settings = without_twins(settings);
        let (seen, how) = (made.seen, made.how);
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
            machine: MachineSummary { counted: made.counted, ..machine(&seen)? },
        };
        experiment.check().map_err(|why| Stop(Exit::Usage, why))?;
        if experiment.settings.iter().all(|setting| setting.changes.is_empty()) {
            let message = "no setting changes anything here: there is nothing to compare \
                           (name a netdev with --netdev?)";
            return Err(Stop(Exit::Refused, message.into()).into());
        }
        self.agree(&experiment, experiment.steps().len(), even_if_owned, &asking)?;
        let dir = self.output.clone().unwrap_or_else(|| default_folder(kind));
        let commands = commands(&experiment, &how, here)?;
        let folder = Folder::create(&dir, &experiment, &how, &commands)?;
        capture::save(
            &dir.join(MACHINE),
            crate::args::look::INTERVAL,
            Counting::Continuous,
            Addresses::Replace,
        )?;
        let steps = experiment.steps();
        Runner { experiment: &experiment, how: &how, place: &self.place, stop: &stop }.run(
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
        let (folder, experiment, how, records) = Folder::open(dir)?;
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
        self.as_found(&experiment)?;
        let left = experiment.remaining_steps(&records);
        if left.is_empty() {
            out::text(&format!("no trial is missing in {}\n", dir.display()))?;
            return Ok(Exit::Ok);
        }
        self.agree(&experiment, left.len(), even_if_owned, asking)?;
        Runner { experiment: &experiment, how: &how, place: &self.place, stop }
            .run(folder, left, &records)
    }

    /// Checks that every changed value is still as it was when the run began.
    fn as_found(&self, experiment: &Experiment) -> Result<()> {
        let kernel = self.place.kernel()?;
        for change in experiment.settings.iter().flat_map(|setting| &setting.changes) {
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

    /// Shows what will be done, and asks.
    fn agree(
        &self,
        experiment: &Experiment,
        trials: usize,
        even_if_owned: bool,
        asking: &AtomicBool,
    ) -> Result<()> {
        out::text(&shown(experiment))?;
        for setting in &experiment.settings {
            let plan = Plan { changes: setting.changes.clone(), even_if_owned, ..Plan::default() };
            refuse_owned(&plan, &self.place)?;
        }
        let time = runner::time_of(experiment, trials);
        let question =
            format!("run {}, about {}", count(trials, "trial"), humantime::format_duration(time));
        asking.store(true, Ordering::Relaxed);
        let agreed = self.yes || agreed(&question)?;
        asking.store(false, Ordering::Relaxed);
        if !agreed {
            return Err(Stop(Exit::Refused, "nothing was written".into()).into());
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
        let spec = Spec { warm_up: self.warm_up, ..Spec::default_for(test, self.duration) };
        crate::bench::filled(spec, instances, instances_as)
    }
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
fn machine(seen: &Observation) -> Result<MachineSummary> {
    let identity = store::machine(&Root::live()).context("cannot identify this machine")?;
    let with_queues = seen.after.netdevs.iter().filter(|netdev| netdev.up && netdev.name != "lo");
    let netdevs = with_queues.map(|netdev| {
        let driver = netdev.driver.as_deref().unwrap_or("driver unknown");
        format!("{}: {driver}, {}", netdev.name, count(netdev.rx_queues.len(), "rx queue"))
    });
    Ok(MachineSummary {
        hostname: identity.hostname,
        kernel: identity.kernel,
        cpus: seen.after.topology.online.len() as u32,
        netdevs: netdevs.collect(),
        counted: Vec::new(),
        times_invalid: store::is_emulated().then(|| "its CPUs are emulated".into()),
        model: Some(identity.cpu_model).filter(|model| !model.is_empty()),
    })
}

fn same_machine(then: &MachineSummary, now: &MachineSummary) -> Result<()> {
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
        count(experiment.settings.len(), "setting"),
        count(experiment.loads.len(), "load"),
        count(experiment.rounds as usize, "round"),
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

/// Returns the commands that repeat the experiment by hand.
fn commands(experiment: &Experiment, how: &How, here: Option<IpAddr>) -> Result<String> {
    let mut text = format!("# on the machine under test\n{}\n", words(&experiment.command));
    let mut seen = Vec::new();
    for Sender { agent, against } in &how.senders {
        let may_load = if agent.is_some() { against } else { &None };
        let Some(agent) = agent.as_ref().or(against.as_ref()).filter(|agent| !seen.contains(agent))
        else {
            continue;
        };
        seen.push(agent);
        let address = crate::bench::address(agent)?;
        let may_load =
            may_load.as_ref().map_or_else(String::new, |other| format!(" --may-load {other}"));
        let _ = writeln!(
            text,
            "\n# at {agent}\nnetsilo bench serve --bind {} --port {}{may_load}",
            address.ip(),
            address.port()
        );
    }
    let under_test = || here.map(|address| address.to_string());
    let to = how
        .senders
        .first()
        .and_then(|sender| sender.against.clone())
        .or_else(under_test)
        .unwrap_or_default();
    if how.senders.iter().any(|sender| sender.against.is_none()) {
        let work = if how.work_usecs > 0 {
            format!(" --work-usecs {}", how.work_usecs)
        } else {
            String::new()
        };
        let pinned = how.pinned.map_or_else(String::new, |CpuId(cpu)| format!("taskset -c {cpu} "));
        let _ = writeln!(
            text,
            "\n# each load by hand; its server\n{pinned}netsilo bench serve --bind {to}{work}"
        );
    }
    for load in &experiment.loads {
        let times = if load.senders > 1 {
            format!(", {} times at once", load.senders)
        } else {
            String::new()
        };
        let _ = writeln!(
            text,
            "\n# {}{times}\n{}",
            load.name,
            crate::bench::run_command(&load.spec, &to, how.bpf)
        );
        text += &crate::bench::early_drop::rule_by_hand(how, load)?;
    }
    Ok(text)
}

fn words(command: &[String]) -> String {
    let plain = |word: &str| {
        !word.is_empty()
            && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c))
    };
    let quoted = |word: &String| {
        if plain(word) { word.clone() } else { format!("'{}'", word.replace('\'', r"'\''")) }
    };
    command.iter().map(quoted).collect::<Vec<_>>().join(" ")
}
