//! What counting in the kernel costs in the worst case: tiny transactions over loopback that keep
//! every CPU busy (TCP_RR, 4 instances). `make bench-attribution` runs it.
//!
//! Slices with and without the eBPF programs alternate; a coin decides which is first. The load is
//! in a separate network namespace. Arguments: the number of pairs, and parts of the names of the
//! settings to measure.

#![allow(
    missing_docs,
    clippy::panic,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark"
)]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use netsilo_sys::bpf::statistics::Statistics;
use netsilo_sys::bpf::tracer::{Options, Tracer};
use netsilo_trial::stats::{Estimate, median, signed_rank};
use rustix::thread::UnshareFlags;

/// Pairs of slices of each setting.
const PAIRS: usize = 15;
/// Probability that an interval does not contain the true value.
const DOUBT: f64 = 0.05;
/// Time from attaching or starting a program to the beginning of a slice.
const SETTLE: Duration = Duration::from_millis(100);
const SLICE: Duration = Duration::from_millis(500);
/// How long a program takes to start and to determine, after its first observations, which hooks it
/// needs.
const PROGRAM_STARTS: Duration = Duration::from_secs(3);
const PROGRAM_SLICE: Duration = Duration::from_secs(3);
/// Two cycles of the daemon. Used with the minimum number of pairs that have an interval.
const DAEMON_SLICE: Duration = Duration::from_secs(20);
const DAEMON_PAIRS: usize = 6;

/// A setting that is compared with no counting at all.
enum Setting {
    Programs(Box<Tracer>),
    /// Arguments of netsilo, and the length of a slice.
    Netsilo(String, Duration),
}

fn settings(state: &Path) -> Vec<(&'static str, Setting)> {
    let least = Options { time: false, containers: false, forwarding: false, ..Options::default() };
    let timed = Options { time: true, ..least };
    let programs = |options| {
        let mut tracer = Tracer::attach(options);
        tracer.pause();
        Setting::Programs(Box::new(tracer))
    };
    let show = |arguments: &str| Setting::Netsilo(arguments.to_owned(), PROGRAM_SLICE);
    let daemon = format!("run --hints-only --state-dir {}", state.display());
    vec![
        ("polls and reads", programs(least)),
        ("and softirq time, wakeups", programs(timed)),
        ("and containers, forwarding", programs(Options::default())),
        ("all, exact", programs(Options::exact())),
        ("show --watch", show("show --watch --json")),
        ("show --watch --exact", show("show --watch --exact --json")),
        ("the daemon", Setting::Netsilo(daemon, DAEMON_SLICE)),
    ]
}

/// A program that ends with the benchmark.
struct Running(Child);

impl Running {
    /// Starts a program that is built in the same folder as netsilo-bench.
    fn start(program: &str, arguments: &str) -> Self {
        let path = Path::new(env!("CARGO_BIN_EXE_netsilo-bench")).with_file_name(program);
        assert!(path.is_file(), "{} is not built", path.display());
        let mut command = Command::new(path);
        command.args(arguments.split(' ')).stdin(Stdio::null());
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// CPU time of all its threads.
    fn cpu(&self) -> Duration {
        let threads = fs::read_dir(format!("/proc/{}/task", self.0.id())).unwrap();
        let time = |path: std::path::PathBuf| -> Option<u64> {
            fs::read_to_string(path.join("schedstat")).ok()?.split(' ').next()?.parse().ok()
        };
        Duration::from_nanos(threads.flatten().filter_map(|thread| time(thread.path())).sum())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The load: both ends of it.
struct Load {
    server: Running,
    client: Running,
}

/// Figures of one slice.
#[derive(Clone, Copy)]
struct Slice {
    transactions_per_s: f64,
    /// CPU time of the load's processes for each transaction.
    cpu_ns: f64,
}

impl Load {
    fn start() -> Self {
        let server = Running::start("netsilo-bench", "serve --bind 127.0.0.1");
        sleep(Duration::from_secs(1));
        let client = Running::start(
            "netsilo-bench",
            "run 127.0.0.1 -t TCP_RR -n 4 --instances-as threads --duration 1h --rate-only",
        );
        sleep(Duration::from_secs(2));
        Self { server, client }
    }

    fn slice(&mut self, length: Duration) -> Slice {
        assert!(self.client.0.try_wait().unwrap().is_none(), "the load has ended");
        let cpu = |load: &Self| load.server.cpu() + load.client.cpu();
        let (before, cpu_before, start) = (segments(), cpu(self), Instant::now());
        sleep(length);
        let transactions = (segments() - before) as f64 / 2.0;
        assert!(transactions > 0.0, "no transactions");
        Slice {
            transactions_per_s: transactions / start.elapsed().as_secs_f64(),
            cpu_ns: (cpu(self) - cpu_before).as_nanos() as f64 / transactions,
        }
    }
}

/// TCP segments received in this network namespace: two for each transaction.
fn segments() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|name| name == "InSegs").unwrap();
    values.split(' ').nth(at).unwrap().parse().unwrap()
}

impl Setting {
    fn measure(&mut self, load: &mut Load) -> Slice {
        match self {
            Self::Programs(tracer) => {
                tracer.resume();
                sleep(SETTLE);
                let slice = load.slice(SLICE);
                tracer.pause();
                slice
            }
            Self::Netsilo(arguments, length) => {
                let _program = Running::start("netsilo", arguments);
                sleep(PROGRAM_STARTS);
                load.slice(*length)
            }
        }
    }

    fn measure_without(&self, load: &mut Load) -> Slice {
        sleep(SETTLE);
        match self {
            Self::Programs(_) => load.slice(SLICE),
            Self::Netsilo(_, length) => load.slice(*length),
        }
    }

    fn pairs(&mut self, load: &mut Load, pairs: usize, rng: &mut fastrand::Rng) -> Vec<[Slice; 2]> {
        let pair = |_| {
            if rng.bool() {
                let without = self.measure_without(load);
                [without, self.measure(load)]
            } else {
                let with = self.measure(load);
                [self.measure_without(load), with]
            }
        };
        (0..pairs).map(pair).collect()
    }
}

fn shown(ratios: &[f64]) -> String {
    let change = |ratio: f64| (ratio.exp() - 1.0) * 100.0;
    match signed_rank::interval(ratios, DOUBT).map(|it| it.map(change)) {
        Some(Estimate { value, low, high }) => format!("{value:+.1} % ({low:+.1} .. {high:+.1})"),
        None => median(ratios).map_or_else(|| "-".into(), |it| format!("{:+.1} %", change(it))),
    }
}

fn main() {
    let words: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let (numbers, names): (Vec<_>, Vec<_>) =
        words.into_iter().partition(|word| word.parse::<usize>().is_ok());
    let pairs = numbers.first().map_or(PAIRS, |number| number.parse().unwrap());
    own_namespace();
    let state = tempfile::tempdir().unwrap();
    let mut load = Load::start();
    let mut rng = fastrand::Rng::with_seed(1);
    println!(
        "{pairs} pairs of slices (the daemon: {DAEMON_PAIRS}); medians, with intervals by signed \
         ranks (95 %)\n"
    );
    println!("| setting | transactions/s without | with | CPU time of each without | with |");
    println!("|---|---|---|---|---|");
    for (name, mut setting) in settings(state.path()) {
        if !names.is_empty() && !names.iter().any(|word| name.contains(word.as_str())) {
            continue;
        }
        let pairs = if name == "the daemon" { pairs.min(DAEMON_PAIRS) } else { pairs };
        let pairs = setting.pairs(&mut load, pairs, &mut rng);
        let rates: Vec<f64> = pairs.iter().map(|[off, _]| off.transactions_per_s).collect();
        let ratios = |value: fn(&Slice) -> f64| -> Vec<f64> {
            pairs.iter().map(|[off, on]| (value(on) / value(off)).ln()).collect()
        };
        let times: Vec<f64> = pairs.iter().map(|[off, _]| off.cpu_ns).collect();
        println!(
            "| {name} | {:.0} | {} | {:.0} ns | {} |",
            median(&rates).unwrap(),
            shown(&ratios(|slice| slice.transactions_per_s)),
            median(&times).unwrap(),
            shown(&ratios(|slice| slice.cpu_ns)),
        );
    }
    by_hook(&mut load);
}

/// Prints the cost of each program by the kernel's statistics. The statistics make each run of a
/// program more expensive.
fn by_hook(load: &mut Load) {
    let statistics = Statistics::enable().unwrap();
    let _tracer = Tracer::attach(Options::default());
    let before = statistics.runs();
    let slice = load.slice(10 * SLICE);
    let transactions = slice.transactions_per_s * (10 * SLICE).as_secs_f64();
    println!("\nby the kernel's statistics, with all programs:\n");
    println!("| program | runs for each transaction | ns each | of a transaction's CPU time |");
    println!("|---|---|---|---|");
    for runs in statistics.since(&before) {
        let share = runs.ns as f64 / transactions / slice.cpu_ns;
        println!(
            "| {} | {:.2} | {} | {:.2} % |",
            runs.name,
            runs.count as f64 / transactions,
            runs.ns / runs.count,
            share * 100.0
        );
    }
}

#[allow(unsafe_code)]
fn own_namespace() {
    // SAFETY: CLONE_NEWNET alone changes no memory, descriptor or credential; no other thread runs.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
        .unwrap_or_else(|error| panic!("needs root, for a network namespace: {error}"));
    assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
}
