//! What to observe: this machine or a bundle, how long, and with which eBPF programs.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use netsilo_model::change::shell_word;
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::bpf::tracer::Options;
use netsilo_sys::bundle::Bundle;
use netsilo_sys::files::root::Root;
use netsilo_sys::observe::{CountingMode, Observer};

use crate::args::netns;
use crate::tell::out;

/// Default observation time.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// Default observation time for findings. It is long because losses and bursts are rarer than
/// packets.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum time between two checks of a stop flag.
pub const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// This machine, or a bundle or reports from another one.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct BundleArg {
    /// Read this instead of this machine: a bundle (from `netsilo capture`), a sosreport, or a
    /// folder of command outputs; given twice, the time between two reports of one host
    #[arg(long, value_name = "BUNDLE")]
    from: Vec<PathBuf>,
}

impl BundleArg {
    /// Returns the bundle's observation, or `None` for this machine.
    pub(crate) fn bundle(&self) -> Result<Option<Observation>> {
        let bundle = self.open()?;
        bundle.map(|bundle| bundle.whole().context(CANNOT_USE)).transpose()
    }

    fn open(&self) -> Result<Option<Bundle>> {
        let given = (!self.from.is_empty()).then_some(&self.from);
        let bundle = given.map(|paths| Bundle::open(paths).context(CANNOT_USE)).transpose()?;
        let caveat = bundle.as_ref().and_then(Bundle::caveat);
        caveat.into_iter().for_each(|caveat| out::note(&caveat));
        Ok(bundle)
    }
}

const CANNOT_USE: &str = "cannot use the bundle or report";

/// How this machine is observed.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct LiveArgs {
    /// Time to observe (500ms, 2s, 1m) [default: 1s; check, explain, isolate: 5s]
    #[arg(short, long, value_name = "TIME", value_parser = crate::args::parse::counting_time)]
    interval: Option<Duration>,
    /// Attach eBPF only for this long at the end of each interval. This costs less, but byte counts
    /// are lower bounds [default: the whole interval]
    #[arg(
        long,
        value_name = "TIME",
        value_parser = crate::args::parse::counting_time,
        conflicts_with = "no_bpf"
    )]
    window: Option<Duration>,
    /// Observe without eBPF: attribute TCP only, by sock_diag
    #[arg(long)]
    no_bpf: bool,
}

impl LiveArgs {
    /// Makes one observation with these eBPF programs.
    pub(crate) fn observe_with(&self, options: Options) -> Result<Observation> {
        self.each(options, |observation| Ok((observation, false)))
    }

    /// Returns the same options with a default observation time.
    pub(crate) fn with_default_interval(&self, interval: Duration) -> Self {
        Self { interval: self.interval.or(Some(interval)), ..self.clone() }
    }

    /// The time to observe.
    pub(crate) fn interval(&self) -> Duration {
        self.interval.unwrap_or(INTERVAL)
    }

    /// Makes observations until `use_it` returns false.
    fn each<T>(
        &self,
        options: Options,
        use_it: impl FnMut(Observation) -> Result<(T, bool)>,
    ) -> Result<T> {
        let root = || Ok(Root::live());
        self.each_of(options, root, || self.interval(), wait_with_progress, use_it)
    }

    /// Makes observations of varying length until `use_it` returns false. `wait` lets the time
    /// pass. Each sample is read through its own `root`.
    pub(crate) fn each_of<T>(
        &self,
        options: Options,
        mut root: impl FnMut() -> Result<Root>,
        interval: impl Fn() -> Duration,
        wait: impl Fn(Duration),
        mut use_it: impl FnMut(Observation) -> Result<(T, bool)>,
    ) -> Result<T> {
        let mut observer = Observer::start_with(&root()?, self.counting(), options)?;
        observer.read_seldom();
        loop {
            let observation = observer.next(&root()?, interval(), &wait)?;
            let (value, again) = use_it(observation)?;
            if !again {
                return Ok(value);
            }
        }
    }

    fn counting(&self) -> CountingMode {
        match self.window {
            Some(length) => CountingMode::Windows(length),
            None if self.no_bpf => CountingMode::WithoutBpf,
            None => CountingMode::Continuous,
        }
    }
}

/// What to observe: a bundle or this machine.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ObserveArgs {
    #[command(flatten)]
    from: BundleArg,
    #[command(flatten)]
    live: LiveArgs,
}

impl ObserveArgs {
    /// Whether any of these options is given.
    pub(crate) fn is_given(&self) -> bool {
        let Self { from, live: LiveArgs { interval, window, no_bpf } } = self;
        !from.from.is_empty() || interval.is_some() || window.is_some() || *no_bpf
    }

    /// These options as they are written.
    pub(crate) fn given(&self) -> String {
        let Self { from, live: LiveArgs { interval, window, no_bpf } } = self;
        let from = from.from.iter().map(|path| ("from", Some(shell_word(&path.to_string_lossy()))));
        let time = |time: &Option<Duration>| {
            time.map(|time| humantime::format_duration(time).to_string().replace(' ', ""))
        };
        let all = from.chain([("interval", time(interval)), ("window", time(window))]);
        let given = all.filter_map(|(name, value)| Some(format!(" --{name} {}", value?)));
        given.collect::<String>() + if *no_bpf { " --no-bpf" } else { "" } + &netns::given()
    }

    /// Whether a bundle is observed.
    pub(crate) fn is_bundle(&self) -> bool {
        !self.from.from.is_empty()
    }

    /// Opens the bundle, or returns `None` for this machine.
    pub(crate) fn open_bundle(&self) -> Result<Option<Bundle>> {
        self.from.open()
    }

    /// How this machine is observed.
    pub(crate) fn live(&self) -> &LiveArgs {
        &self.live
    }

    /// Makes one observation.
    pub(crate) fn observe(&self) -> Result<Observation> {
        self.observe_with(Options::default())
    }

    /// Makes one observation with these eBPF programs.
    pub(crate) fn observe_with(&self, options: Options) -> Result<Observation> {
        self.each(options, |observation| Ok((observation, false)))
    }

    /// Returns the same options with a default observation time.
    pub(crate) fn with_default_interval(&self, interval: Duration) -> Self {
        Self { live: self.live.with_default_interval(interval), ..self.clone() }
    }

    /// Makes observations until `use_it` returns false. A bundle has only one.
    pub(crate) fn each<T>(
        &self,
        options: Options,
        mut use_it: impl FnMut(Observation) -> Result<(T, bool)>,
    ) -> Result<T> {
        match self.from.bundle()? {
            Some(observation) => Ok(use_it(observation)?.0),
            None => self.live.each(options, use_it),
        }
    }
}

/// Waits. If the wait exceeds two seconds, a bar on stderr shows the time left.
pub fn wait_with_progress(length: Duration) {
    if length <= Duration::from_secs(2) {
        return sleep(length);
    }
    let bar = ProgressBar::new(length.as_millis() as u64).with_message("observing");
    bar.set_style(
        ProgressStyle::with_template("{msg} {wide_bar} {eta}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let start = Instant::now();
    while let Some(left) = length.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
        sleep(left.min(Duration::from_millis(100)));
        bar.set_position(start.elapsed().as_millis() as u64);
    }
    bar.finish_and_clear();
}

/// Waits until `time` has passed or `stop` is set.
pub fn wait_unless_stopped(time: Duration, stop: &AtomicBool) {
    let until = Instant::now() + time;
    while !stop.load(Ordering::Relaxed) {
        let Some(left) =
            until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
        else {
            return;
        };
        sleep(left.min(STOP_CHECK_INTERVAL));
    }
}
