//! `make bench-peers`: netsilo beside what users run instead, in one guest, in rounds of random
//! order.
//!
//! Each setting is a state of the guest's knobs. A rule gives it, or a program that observes the
//! workload; then it is recorded, and each round sets it again.

pub(crate) mod guest;
mod observed;
mod results;
mod rules;
mod setting;
mod table;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use netsilo_lab::{Accel, Kernel, Lab, Nic, NicModel, Spec, Threads};

use crate::knobs::Knobs;
use crate::locality::Shares;
use crate::peers::guest::PeersGuest;
use crate::peers::results::{PeersResults, Round, SettingResults, WorkloadResults};
use crate::peers::setting::Setting;
use crate::say::{bar, progress, say};
use crate::workload::{Kind, Workload, while_busy};

/// The CPUs of the servers: one thread of each core, two cores on each socket. They are not the
/// first threads of all cores, where most rules put the first interrupts.
pub(crate) const SERVER_CPUS: [u32; 4] = [1, 2, 5, 6];

/// Arguments of the comparison.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Peers {
    /// Rounds of each workload; each measures every setting once, in random order. With fewer than
    /// six, ratios have no interval
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Measure only these workloads
    #[arg(long = "workload", value_name = "NAME", value_enum)]
    workloads: Vec<Kind>,
    /// Measure only these settings
    #[arg(long = "setting", value_name = "NAME", value_enum)]
    settings: Vec<Setting>,
    /// Seed of the random order [default: from the clock]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Write all figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Kernel to boot
    #[arg(long, value_enum, default_value_t = Kernel::V6_1)]
    kernel: Kernel,
    /// How the emulator runs the CPUs: one at a time, a queue away from its reader is polled late
    /// and in batches that no real machine has
    #[arg(long, value_enum, default_value_t = Threads::Multi)]
    threads: Threads,
}

/// A state of the knobs, and what was measured in it.
struct State {
    /// The settings that lead to it.
    settings: Vec<Setting>,
    knobs: Knobs,
    bytes: Option<Shares>,
    rounds: Vec<Round>,
}

/// Measures all workloads and prints a table of each.
pub(crate) fn run(args: &Peers) -> Result<()> {
    let started = Instant::now();
    if let Some(file) = &args.json {
        // A path that cannot be written shows now, not after the measurements.
        write(file, "")?;
    }
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    let mut random = fastrand::Rng::with_seed(seed);
    let kinds = chosen(&args.workloads);
    // Forwarding needs another NIC.
    let nics = if kinds.contains(&Kind::Forward) { 2 } else { 1 };
    let nics = vec![Nic::from(NicModel::VirtioNet); nics];
    let spec = Spec { threads: args.threads, nics, ..Spec::new(args.kernel, NicModel::VirtioNet) };
    let lab = Lab::boot(&spec)?;
    let guest = PeersGuest::new(&lab, &spec)?;
    say(&format!("{}\n{} rounds of {} s, seed {seed}", lab.title(), args.rounds, args.seconds))?;
    let mut results = PeersResults::new(lab.title(), seed, args.rounds, args.seconds);
    for kind in kinds {
        let states = measure(args, &guest, kind, &mut random)
            .with_context(|| format!("workload {}", kind.name()))?;
        let settings = states.into_iter().map(|state| SettingResults {
            settings: state.settings,
            changes: state.knobs.beside(guest.booted()),
            bytes: state.bytes,
            rounds: state.rounds,
        });
        let of_workload = WorkloadResults::new(kind, settings.collect());
        say(&table::show(&of_workload))?;
        results.workloads.push(of_workload);
        // After each workload: a later one may fail.
        if let Some(file) = &args.json {
            write(file, &serde_json::to_string_pretty(&results)?)?;
        }
    }
    progress(&format!("done after {:.1} minutes", started.elapsed().as_secs_f64() / 60.0));
    if lab.accel() != Accel::Kvm {
        say("Emulated CPUs: counts and shares of bytes hold anywhere, rates only side by side.")?;
    }
    Ok(())
}

fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// What the user named, each once; everything if nothing was named.
fn chosen<T: ValueEnum + Copy + PartialEq>(named: &[T]) -> Vec<T> {
    let all = T::value_variants().iter().copied();
    all.filter(|value| named.is_empty() || named.contains(value)).collect()
}

/// Places each setting once, then measures all of them in each round.
fn measure(
    args: &Peers,
    guest: &PeersGuest<'_>,
    kind: Kind,
    random: &mut fastrand::Rng,
) -> Result<Vec<State>> {
    let workload = Workload::start(kind, guest.lab(), &SERVER_CPUS)?;
    let mut states = states(args, guest, &workload)?;
    ensure!(!states.is_empty(), "no setting to measure");
    let name = kind.name();
    for state in &mut states {
        state.knobs.write(guest.lab())?;
        state.bytes = while_busy(&[&workload], || guest.shares())?;
    }
    progress(&format!("{name}: bytes by distance observed in {} states", states.len()));
    let bar = bar(u64::from(args.rounds) * states.len() as u64);
    for round in 1..=args.rounds {
        let mut order: Vec<usize> = (0..states.len()).collect();
        random.shuffle(&mut order);
        for at in order {
            let state = &mut states[at];
            bar.set_message(state.settings[0].name());
            state.knobs.write(guest.lab())?;
            state.rounds.push(Round::from(&workload.measure(args.seconds)?));
            bar.inc(1);
        }
        bar.suspend(|| progress(&format!("{name}: round {round} of {}", args.rounds)));
    }
    bar.finish_and_clear();
    guest.booted().write(guest.lab())?;
    Ok(states)
}

/// The states that the settings lead to under this workload.
fn states(args: &Peers, guest: &PeersGuest<'_>, workload: &Workload<'_>) -> Result<Vec<State>> {
    let mut states: Vec<State> = Vec::new();
    for setting in chosen(&args.settings) {
        let knobs = guest
            .place(setting, workload)
            .with_context(|| format!("cannot place {}", setting.name()))?;
        progress(&format!("{}: placed: {}", workload.kind().name(), setting.name()));
        match states.iter_mut().find(|state| state.knobs == knobs) {
            Some(state) => state.settings.push(setting),
            None => states.push(State {
                settings: vec![setting],
                knobs,
                bytes: None,
                rounds: Vec::new(),
            }),
        }
    }
    Ok(states)
}
