//! What all experiments have in common: how one is asked for, begun, agreed to and gone on with.

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
use netsilo_trial::experiment::{Experiment, Kind, Load, MACHINE, Machine, Setting};
use netsilo_trial::traffic::{InstancesAs, Spec, Test};

use crate::args::look::pass_time;
use crate::bench::folder::{Folder, How, Sender};
use crate::bench::runner::{self, Runner};
use crate::bench::settings::Hardware;
use crate::tell::exit::{Exit, Stop};
use crate::tell::out;
use crate::verbs::apply::{Place, agreed, count, refuse_owned};
use crate::verbs::capture;

/// Below this many rounds there is no exact interval at 95 %.
const ROUNDS: u32 = 6;

/// Arguments of every experiment whose loads come from elsewhere and end or begin here.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct With {
    /// The machine at the other end, where netsilo bench serve runs; twice for two
    #[arg(long, value_name = "HOST[:PORT]", required_unless_present = "resume")]
    with: Vec<String>,
    #[command(flatten)]
    pub(super) common: Common,
    #[command(flatten)]
    pub(super) hardware: Hardware,
}

impl With {
    /// Makes the experiment, or goes on with one; each of the others loads this machine.
    pub(super) fn run(
        &self,
        kind: Kind,
        define: impl FnOnce(&mut Made<'_>) -> Result<Defined>,
    ) -> Result<Exit> {
        self.common.run(kind, self.hardware.even_if_owned(), self.senders(), define)
    }

    /// Each of them loads this machine.
    pub(super) fn senders(&self) -> Vec<Sender> {
        self.with.iter().map(|agent| Sender { agent: Some(agent.clone()), against: None }).collect()
    }
}

/// Arguments of every experiment.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Common {
    /// Folder that the run is written to [default: its kind and the time]
    #[arg(short, long, value_name = "DIR", conflicts_with = "resume")]
    output: Option<PathBuf>,
    /// Go on with the run in this folder: what has no result yet is made, all as was said then
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
    /// How often each setting meets each load; below 6 no interval of 95% is exact
    #[arg(long, value_name = "N", default_value_t = ROUNDS, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// How long each trial counts
    #[arg(short, long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// How long each trial runs before anything counts
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    warm_up: Duration,
    /// How long the machine rests before each trial
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = humantime::parse_duration)]
    pause: Duration,
    /// Where the random numbers begin that put the trials in order [default: the clock]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Measure the true interrupt times with eBPF: it costs a little
    #[arg(long)]
    bpf: bool,
    /// Do not look who processes and who reads, which takes a short trial more for each setting and
    /// load
    #[arg(long)]
    no_map: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    pub(super) place: Place,
}

/// What an experiment comes to on this machine.
pub(super) struct Defined {
    pub(super) settings: Vec<Setting>,
    pub(super) loads: Vec<Load>,
}

/// What an experiment is defined from.
pub(super) struct Made<'a> {
    /// The machine, as it was found.
    pub(super) seen: Observation,
    /// How the run is made.
    pub(super) how: How,
    /// The netdevs of a machine between whose received packets are counted.
    pub(super) counted: Vec<String>,
    pub(super) place: &'a Place,
    pub(super) stop: &'a AtomicBool,
}

impl Made<'_> {
    /// The machine under a load, as it was found otherwise.
    pub(super) fn under(&self, load: &Load) -> Result<Observation> {
        out::note(&format!("looking at {} with nothing set", load.name));
        runner::observe(&self.how, load, self.stop)
    }

    /// Which share of this machine's CPU time a load takes.
    pub(super) fn busy(&self, load: &Load) -> Result<f64> {
        runner::busy(&self.how, load, self.stop)
    }
}

impl Common {
    /// Makes the experiment, or goes on with one.
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
            // while it is asked, nothing is written and nothing to be put back: the answer may be
            // to go
            signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&asking))
                .context("cannot await signals")?;
            signal_hook::flag::register(signal, Arc::clone(&stop))
                .context("cannot await signals")?;
        }
        if let Some(dir) = &self.resume {
            return self.go_on(kind, dir, even_if_owned, &stop, &asking);
        }
        let how = How { senders, bpf: self.bpf, maps: !self.no_map, work_usecs: 0, pinned: None };
        // before anything else: nobody waits for a plan to hear that there is no server
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
            version: 1,
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
            machine: Machine { counted: made.counted, ..machine(&seen)? },
        };
        experiment.check().map_err(|why| Stop(Exit::Usage, why))?;
        if experiment.settings.iter().all(|setting| setting.changes.is_empty()) {
            let message = "no setting changes anything here: there is nothing to compare (name a netdev with --netdev?)";
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

    /// Goes on with a run.
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
        let left = experiment.left(&records);
        if left.is_empty() {
            out::text(&format!("nothing is left to do in {}\n", dir.display()))?;
            return Ok(Exit::Ok);
        }
        self.agree(&experiment, left.len(), even_if_owned, asking)?;
        Runner { experiment: &experiment, how: &how, place: &self.place, stop }
            .run(folder, left, &records)
    }

    /// What the settings change must be as it was when the run began, or they would be others.
    fn as_found(&self, experiment: &Experiment) -> Result<()> {
        let kernel = self.place.kernel()?;
        for change in experiment.settings.iter().flat_map(|setting| &setting.changes) {
            let now = knob::read(&kernel, &change.target)?.value;
            ensure!(
                now == change.old,
                "{} is {now} and was {} when the run began: put it back, or begin a new run",
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
            format!("make {}, some {}", count(trials, "trial"), humantime::format_duration(time));
        asking.store(true, Ordering::Relaxed);
        let agreed = self.yes || agreed(&question)?;
        asking.store(false, Ordering::Relaxed);
        if !agreed {
            return Err(Stop(Exit::Refused, "nothing was written".into()).into());
        }
        Ok(())
    }

    /// A load of this test, so long.
    pub(super) fn spec(
        &self,
        test: Test,
        instances: usize,
        instances_as: Option<InstancesAs>,
    ) -> Spec {
        let spec = Spec { warm_up: self.warm_up, ..Spec::usual(test, self.duration) };
        crate::bench::filled(spec, instances, instances_as)
    }
}

/// Two settings that write the same here are one.
fn without_twins(settings: Vec<Setting>) -> Vec<Setting> {
    let mut all: Vec<Setting> = Vec::new();
    for setting in settings {
        match all.iter().find(|other| other.changes == setting.changes) {
            Some(other) => {
                out::note(&format!(
                    "{}: writes the same as {} here, so it is not tried",
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

/// A few words about this machine.
fn machine(seen: &Observation) -> Result<Machine> {
    let identity = store::machine(&Root::live()).context("cannot tell which machine this is")?;
    let with_queues = seen.after.netdevs.iter().filter(|netdev| netdev.up && netdev.name != "lo");
    let netdevs = with_queues.map(|netdev| {
        let driver = netdev.driver.as_deref().unwrap_or("driver not known");
        format!("{}: {driver}, {}", netdev.name, count(netdev.rx_queues.len(), "rx queue"))
    });
    Ok(Machine {
        hostname: identity.hostname,
        kernel: identity.kernel,
        cpus: seen.after.topology.online.len() as u32,
        netdevs: netdevs.collect(),
        counted: Vec::new(),
        times_mean_nothing: store::is_emulated().then(|| "its CPUs are emulated".into()),
        model: Some(identity.cpu_model).filter(|model| !model.is_empty()),
    })
}

fn same_machine(then: &Machine, now: &Machine) -> Result<()> {
    let known = |it: &Machine| {
        let model = it.model.clone().unwrap_or_default();
        [("host name", it.hostname.clone()), ("kernel", it.kernel.clone()), ("CPU model", model)]
            .into_iter()
            .chain([("number of online CPUs", it.cpus.to_string())])
            .collect::<Vec<_>>()
    };
    for ((what, then), (_, now)) in known(then).into_iter().zip(known(now)) {
        ensure!(
            then == now,
            "the run was begun on another machine: its {what} is {then}, not {now}; begin a new run"
        );
    }
    Ok(())
}

/// What will be tried, for people.
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

/// The commands that make the same by hand.
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
