//! Whether netsilo became slower: two builds of it, side by side. `make bench-guard` runs it.
//!
//! `guard OLD NEW`: folders with the programs `netsilo`, `daemon_cycle` and `cost` of two commits.
//! Each round runs the old build twice and the new one once, in random order: the second run of the
//! old one shows what the machine's noise alone does (A/A). Counts by valgrind are the same in each
//! run. The limits are in `guard.toml`, with the goals.

#![allow(
    missing_docs,
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark"
)]

#[path = "../../sys/tests/trees/big_host.rs"]
mod big_host;
#[path = "guard/counted.rs"]
mod counted;
#[path = "../../decide/benches/synthetic/counted.rs"]
mod synthetic;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use big_host::BigHost;
use netsilo_sys::bundle::{Addresses, Capture};
use netsilo_sys::files::root::Root;
use netsilo_trial::stats::{Estimate, median, signed_rank};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde::Deserialize;

/// Rounds, unless an argument says how many. Intervals need six.
const ROUNDS: usize = 8;
/// Probability that an interval does not contain the true value.
const DOUBT: f64 = 0.05;
const HOST: BigHost = BigHost { cpus: 512, irqs: 4000, netdevs: 4, queues: 64 };
const WINDOW: Duration = Duration::from_secs(10);
/// How long `show` observes this machine.
const INTERVAL_MS: f64 = 10.0;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Limits {
    between_commits: BTreeMap<String, f64>,
    goals: BTreeMap<String, f64>,
}

/// One figure of one run, by its name and unit.
type Figures = BTreeMap<String, f64>;

fn main() -> ExitCode {
    let words: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let (numbers, folders): (Vec<_>, Vec<_>) =
        words.into_iter().partition(|word| word.parse::<usize>().is_ok());
    let [old, new] = &folders[..] else { panic!("guard: usage: guard OLD NEW [ROUNDS]") };
    let rounds = numbers.first().map_or(ROUNDS, |number| number.parse().unwrap());
    let [old, new] = [old, new].map(PathBuf::from);
    let limits: Limits = toml::from_str(include_str!("guard.toml")).unwrap();
    let host = Host::new();
    let counts = host.counts(&old, &new, &limits);
    println!();
    let times = times(&host, &old, &new, rounds, &limits);
    if counts && times { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The large host: as files, and as a bundle.
struct Host {
    dir: tempfile::TempDir,
    bundle: String,
}

impl Host {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("host");
        HOST.write(&tree).unwrap();
        let mut capture = Capture::start().unwrap();
        let mut sample = |uptime: u64| {
            fs::write(tree.join("proc/uptime"), format!("{uptime} 0\n")).unwrap();
            netsilo_sys::snapshot(&capture.sample(&Root::at(&tree).unwrap()).unwrap()).unwrap()
        };
        sample(1000);
        HOST.pass(&tree, WINDOW.as_secs()).unwrap();
        let after = sample(1000 + WINDOW.as_secs());
        capture.window(&synthetic::attribution(&after, WINDOW));
        let bundle = dir.path().join("host.tar.zst");
        capture.write(&bundle, &after.machine.release, Addresses::Keep).unwrap();
        let bundle = bundle.to_str().unwrap().to_owned();
        Self { dir, bundle }
    }

    /// Compares what commands about the host take, counted; whether all is within the limits.
    fn counts(&self, old: &Path, new: &Path, limits: &Limits) -> bool {
        println!("| counted by valgrind | | old | new | new/old | |");
        println!("|---|---|---|---|---|---|");
        let mut within = true;
        for verb in ["show", "check", "plan"] {
            let [before, now] = [old, new].map(|build| {
                counted::counted(&build.join("netsilo"), &[verb, "--from", &self.bundle])
            });
            for ((what, before), (_, now)) in before.each().into_iter().zip(now.each()) {
                let ratio = now as f64 / before as f64;
                let verdict = verdict(ratio, limits.between_commits[what], &mut within);
                println!("| {verb} | {what} | {before} | {now} | {ratio:.3} | {verdict} |");
            }
        }
        within
    }
}

fn verdict(least: f64, limit: f64, within: &mut bool) -> &'static str {
    let exceeds = least > limit;
    *within &= !exceeds;
    if exceeds { "TOO MUCH" } else { "" }
}

/// Compares CPU times and memory; whether all is within the limits.
fn times(host: &Host, old: &Path, new: &Path, rounds: usize, limits: &Limits) -> bool {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut of_rounds: Vec<[Figures; 3]> = Vec::new();
    for _ in 0..rounds {
        let mut order = [0, 1, 2];
        rng.shuffle(&mut order);
        let mut round: [Figures; 3] = Default::default();
        for arm in order {
            round[arm] = measured(host, [old, old, new][arm]);
        }
        of_rounds.push(round);
    }
    println!("| {rounds} rounds, medians | old | new | new/old (95%) | A/A | goal | |");
    println!("|---|---|---|---|---|---|---|");
    let mut within = true;
    for what in of_rounds[0][2].keys() {
        let values = |arm: usize| -> Vec<f64> {
            of_rounds.iter().filter_map(|round| round[arm].get(what).copied()).collect()
        };
        let (before, again, now) = (values(0), values(1), values(2));
        let goal = limits.goals.get(what).map_or_else(|| "-".to_owned(), f64::to_string);
        let middle = |values: &[f64]| median(values).unwrap_or(f64::NAN);
        if before.len() != rounds || now.len() != rounds {
            // a program that only one of the builds has
            println!(
                "| {what} | {:.2} | {:.2} | - | - | {goal} | |",
                middle(&before),
                middle(&now)
            );
            continue;
        }
        let ratios = |other: &[f64]| -> Vec<f64> {
            before.iter().zip(other).map(|(before, other)| (other / before).ln()).collect()
        };
        let (ratio, noise) = (ratio(&ratios(&now)), ratio(&ratios(&again)));
        let verdict = verdict(ratio.low, limits.between_commits["cpu-time"], &mut within);
        let shown = |it: Estimate| format!("{:.3} ({:.3} .. {:.3})", it.value, it.low, it.high);
        let (before, now) = (middle(&before), middle(&now));
        let (ratio, noise) = (shown(ratio), shown(noise));
        println!("| {what} | {before:.2} | {now:.2} | {ratio} | {noise} | {goal} | {verdict} |");
    }
    within
}

/// The median of ratios with its interval; without limits, if there are too few.
fn ratio(logarithms: &[f64]) -> Estimate {
    signed_rank::interval(logarithms, DOUBT).map(|it| it.map(f64::exp)).unwrap_or(Estimate {
        value: median(logarithms).map_or(f64::NAN, f64::exp),
        low: 0.0,
        high: f64::INFINITY,
    })
}

fn measured(host: &Host, build: &Path) -> Figures {
    let mut figures = Figures::new();
    for verb in ["show", "check", "plan"] {
        let (_, cpu) = run(&build.join("netsilo"), &[verb, "--from", &host.bundle]);
        figures.insert(format!("{verb} of the large host, ms of CPU"), cpu);
    }
    let started = Instant::now();
    let interval = format!("{INTERVAL_MS}ms");
    let (_, cpu) = run(&build.join("netsilo"), &["show", "--interval", &interval]);
    let wall = started.elapsed().as_secs_f64() * 1e3 - INTERVAL_MS;
    figures.insert("show here, ms of CPU".into(), cpu);
    figures.insert("show here, ms beyond its interval".into(), wall);
    let tree = host.dir.path().join("host");
    let (cycles, _) = run(&build.join("daemon_cycle"), &["cycles", tree.to_str().unwrap()]);
    let names = ["at rest, ms", "moving, ms", "", "first look, ms", "peak, MB"];
    for (name, word) in names.iter().zip(cycles.split_ascii_whitespace()) {
        let unit = if name.ends_with("MB") { 1024.0 } else { 1e6 };
        if !name.is_empty() {
            figures.insert(format!("daemon {name}"), word.parse::<f64>().unwrap() / unit);
        }
    }
    // a second of datagrams over loopback: each program, its runs and ns each
    let (programs, _) = run(&build.join("cost"), &["1", "flood"]);
    for line in programs.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        if let [program, events, each, _] = words[..]
            && events.parse().is_ok_and(|events: u64| events > 10_000)
        {
            figures.insert(format!("program {program}, ns"), each.parse().unwrap());
        }
    }
    figures
}

/// Runs a program. Returns what it prints, and its CPU time in milliseconds.
fn run(program: &Path, arguments: &[&str]) -> (String, f64) {
    let cpu = || {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
        (usage.user_time() + usage.system_time()).num_microseconds() as f64 / 1e3
    };
    let before = cpu();
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    let ended = matches!(output.status.code(), Some(0 | 11));
    assert!(ended, "{} {arguments:?}: {told}", program.display());
    (String::from_utf8(output.stdout).unwrap(), cpu() - before)
}
