//! What `ab` measures: the output of a command, or the live workload.

use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fmt, thread};

use anyhow::{Context as _, Result, bail};
use netsilo_model::snapshot::runqueue::MIN_WAITS;
use netsilo_sys::bpf::tracer;
use netsilo_sys::files::root::Root;
use netsilo_sys::observe::{CountingMode, Observer};
use netsilo_trial::comparison::{Better, Scale};
use netsilo_trial::workload::{NotMeasured, WorkloadMeasure};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::args::look::{STOP_CHECK_INTERVAL, wait_unless_stopped};

/// Maximum duration of a command. After it, a guard restores the setting.
pub(crate) const LONGEST_COMMAND: Duration = Duration::from_secs(24 * 3600);

/// The source of the measured numbers.
#[derive(Debug)]
pub(super) enum Measurement {
    /// A command: the last number that it prints.
    Command(Vec<String>),
    /// The live workload.
    Workload {
        /// What is measured.
        measure: WorkloadMeasure,
        /// Length of each measurement.
        window: Duration,
    },
}

/// Error of a window that yields no number.
#[derive(Debug)]
pub(crate) struct NoValue {
    measure: WorkloadMeasure,
    window: Duration,
    why: NotMeasured,
}

impl NoValue {
    /// Whether the reason is that nothing was received.
    pub(super) fn because_nothing_was_received(&self) -> bool {
        self.why == NotMeasured::NothingReceived
    }
}

impl std::error::Error for NoValue {}

impl fmt::Display for NoValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { measure, window, why } = self;
        write!(f, "no {measure} in {}: {why}", humantime::format_duration(*window))?;
        match *why {
            NotMeasured::TooFewWaits(waits) => match long_enough(*window, waits) {
                Some(longer) => {
                    write!(f, "; measure longer (--each {})", humantime::format_duration(longer))
                }
                None => write!(f, "; these threads hardly ever wait"),
            },
            _ => Ok(()),
        }
    }
}

/// Estimates how long a window must be to contain enough waits, from the rate in this one. Returns
/// `None` above 60 s, because enough pairs would then take hours.
fn long_enough(window: Duration, waits: u64) -> Option<Duration> {
    let seconds = (window.as_secs_f64() * 1.5 * MIN_WAITS as f64 / waits as f64).ceil();
    (seconds <= 60.0).then(|| Duration::from_secs(seconds as u64))
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command(words) => f.write_str(&words.join(" ")),
            Self::Workload { measure, window } => {
                write!(f, "{measure} in {}", humantime::format_duration(*window))
            }
        }
    }
}

impl Measurement {
    pub(crate) fn scale(&self) -> Scale {
        match self {
            Self::Command(_) => Scale::Ratio,
            Self::Workload { measure, .. } => measure.scale(),
        }
    }

    /// Unit of the numbers; `None` for a command, because its unit is unknown.
    pub(super) fn unit(&self) -> Option<&'static str> {
        matches!(self, Self::Workload { measure, .. } if measure.is_time()).then_some("ns")
    }

    pub(crate) fn better(&self, lower: bool) -> Better {
        match self {
            Self::Command(_) => direction(lower),
            Self::Workload { measure, .. } => measure.better(),
        }
    }

    /// Maximum time of one measurement.
    pub(super) fn longest(&self) -> Duration {
        match self {
            Self::Command(_) => LONGEST_COMMAND,
            Self::Workload { window, .. } => *window,
        }
    }

    /// Measures once. Returns `None` if `stop` was set meanwhile.
    pub(super) fn value(&mut self, stop: &AtomicBool) -> Result<Option<f64>> {
        match self {
            Self::Command(words) => command(words, stop),
            Self::Workload { measure, window } => {
                let root = Root::live();
                let runqueue = *measure == WorkloadMeasure::RunqueueLatency;
                let options = tracer::Options { runqueue, ..tracer::Options::default() };
                let mut observer = Observer::start_with(&root, CountingMode::Continuous, options)?;
                let observation =
                    observer.next(&root, *window, |time| wait_unless_stopped(time, stop))?;
                if stop.load(Ordering::Relaxed) {
                    return Ok(None);
                }
                let nothing = |why| NoValue { measure: *measure, window: *window, why };
                Ok(Some(measure.compute(&observation).map_err(nothing)?))
            }
        }
    }
}

/// Runs a command and returns the last number that it prints, or `None` if `stop` was set
/// meanwhile.
pub(crate) fn command(words: &[String], stop: &AtomicBool) -> Result<Option<f64>> {
    let [program, arguments @ ..] = words else { bail!("no command") };
    let mut command = Command::new(program);
    // its own process group, so that all processes it starts end with it
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    let mut child = command.spawn().with_context(|| format!("cannot start {program}"))?;
    let mut out = child.stdout.take().context("the command has no output")?;
    let reader = thread::spawn(move || {
        let mut output = Vec::new();
        out.read_to_end(&mut output).map(|_| String::from_utf8_lossy(&output).into_owned())
    });
    let status = loop {
        if stop.load(Ordering::Relaxed) {
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
            let _ = child.wait();
            return Ok(None);
        }
        match child.try_wait().context("cannot wait for the command")? {
            Some(status) => break status,
            None => thread::sleep(STOP_CHECK_INTERVAL),
        }
    };
    let output = reader
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        .context("cannot read the command's output")?;
    if !status.success() {
        bail!("{}: {status}", words.join(" "));
    }
    let Some(number) = last_number(&output) else {
        bail!("{} printed no number: {:?}", words.join(" "), output.trim_end());
    };
    Ok(Some(number))
}

/// Returns the last finite number among the words.
fn last_number(output: &str) -> Option<f64> {
    output
        .split_whitespace()
        .rev()
        .find_map(|word| word.parse().ok().filter(|number: &f64| number.is_finite()))
}

/// The better direction of a command's number. Only the user knows it.
fn direction(lower: bool) -> Better {
    if lower { Better::Lower } else { Better::Higher }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_that_a_command_prints_counts() {
        let value = |script: &str| {
            let words = ["sh", "-c", script].map(str::to_owned).to_vec();
            Measurement::Command(words).value(&AtomicBool::new(false))
        };
        assert_eq!(value("echo run 1; echo rate 12.5 per second").unwrap(), Some(12.5));
        assert!(
            value("echo none").unwrap_err().to_string().contains("printed no number: \"none\"")
        );
        assert!(value("echo 1; exit 3").unwrap_err().to_string().contains("exit status: 3"));
        let missing =
            Measurement::Command(vec!["/no/such/program".into()]).value(&AtomicBool::new(false));
        assert_eq!(missing.unwrap_err().to_string(), "cannot start /no/such/program");
    }

    #[test]
    fn too_few_waits_suggest_a_longer_window() {
        let message = |why| {
            let (measure, window) = (WorkloadMeasure::RunqueueLatency, Duration::from_secs(2));
            NoValue { measure, window, why }.to_string()
        };
        assert_eq!(
            message(NotMeasured::TooFewWaits(312)),
            "no runqueue-latency in 2s: threads that read sockets waited for a cpu 312 times; a \
             99th percentile needs 1000; measure longer (--each 10s)"
        );
        let hardly_ever = "1000; these threads hardly ever wait";
        assert!(message(NotMeasured::TooFewWaits(49)).ends_with(hardly_ever));
        assert!(message(NotMeasured::TooFewWaits(0)).ends_with(hardly_ever));
        let refused =
            NotMeasured::NotCounted("tp_btf/sched_switch is refused: no privilege".into());
        assert_eq!(
            message(refused),
            "no runqueue-latency in 2s: not measured: \
             tp_btf/sched_switch is refused: no privilege"
        );
    }

    #[test]
    fn a_stopped_command_is_killed_and_yields_no_number() {
        let words = ["sleep", "600"].map(str::to_owned).to_vec();
        assert_eq!(Measurement::Command(words).value(&AtomicBool::new(true)).unwrap(), None);
    }
}
