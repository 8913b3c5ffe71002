//! `make bench-peers`: netsilo beside what users run instead, in one guest, in rounds of random
//! order.
//!
//! Each setting is a state of the guest's knobs. A rule gives it, or a program that observes the
//! workload; then it is recorded, and each round sets it again. A guest that hangs or fails ends,
//! and a fresh one goes on (`attempt`).

mod attempt;
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
use crate::peers::attempt::{Failure, Next, next, reason};
use crate::peers::guest::PeersGuest;
use crate::peers::results::{Lost, PeersResults, Round, SettingResults, WorkloadResults};
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
    /// Keep the output of each program that places, as files in this folder
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Let `netsilo-tune` race all candidates, for seven minutes, instead of three algorithms for
    /// three
    #[arg(long)]
    search_all: bool,
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
    if let Some(folder) = &args.keep {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    let mut random = fastrand::Rng::with_seed(seed);
    let kinds = chosen(&args.workloads);
    // Forwarding needs another NIC.
    let nics = if kinds.contains(&Kind::Forward) { 2 } else { 1 };
    let nics = vec![Nic::from(NicModel::VirtioNet); nics];
    let spec = Spec { threads: args.threads, nics, ..Spec::new(args.kernel, NicModel::VirtioNet) };
    let mut lab = Some(Lab::boot(&spec)?);
    let title = lab.as_ref().map(|lab| lab.title().to_owned()).unwrap_or_default();
    let emulated = lab.as_ref().is_some_and(|lab| lab.accel() != Accel::Kvm);
    say(&format!("{title}\n{} rounds of {} s, seed {seed}", args.rounds, args.seconds))?;
    let mut results = PeersResults::new(&title, seed, args.rounds, args.seconds);
    for kind in kinds {
        let of_workload = workload(args, &spec, &mut lab, kind, &mut random)?;
        say(&table::show(&of_workload))?;
        results.workloads.push(of_workload);
        // After each workload: a later one may fail.
        if let Some(file) = &args.json {
            write(file, &serde_json::to_string_pretty(&results)?)?;
        }
    }
    progress(&format!("done after {:.1} minutes", started.elapsed().as_secs_f64() / 60.0));
    let lost = results.workloads.iter().map(|it| it.lost.len()).sum::<usize>();
    if lost > 0 {
        say(&format!("LOST in {lost} places, which the tables name: the run is not complete."))?;
    }
    if emulated {
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

/// Measures a workload; where the guest hangs or fails, a fresh one takes its place in `lab`, and
/// what is lost is in the results.
fn workload(
    args: &Peers,
    spec: &Spec,
    lab: &mut Option<Lab>,
    kind: Kind,
    random: &mut fastrand::Rng,
) -> Result<WorkloadResults> {
    let mut settings = chosen(&args.settings);
    let mut lost = Vec::new();
    for guests_left in (0..attempt::GUESTS).rev() {
        let here = match lab.take() {
            Some(lab) => lab,
            None => Lab::boot(spec).context("cannot boot a fresh guest")?,
        };
        let mut measured = WorkloadRun::default();
        let ended = PeersGuest::new(&here, spec)
            .context("cannot take the guest as it has booted")
            .and_then(|guest| measure(args, &guest, (kind, &settings), random, &mut measured));
        let Err(error) = ended else {
            *lab = Some(here);
            return Ok(measured.into_results(kind, lost));
        };
        drop(here);
        let setting = measured.now;
        let failure = Failure { setting, rounds: measured.complete_rounds(), guests_left };
        let of = setting.map_or(String::new(), |setting| format!(", {}", setting.name()));
        progress(&format!("{}{of}: {error:#}", kind.name()));
        let why = reason(&error);
        match next(failure) {
            Next::Keep => {
                let (done, all) = (failure.rounds, args.rounds);
                progress("the rounds before are kept, and a fresh guest goes on with the rest");
                lost.push(Lost { setting: None, why: format!("{done} of {all} rounds: {why}") });
                measured.truncate(done);
                return Ok(measured.into_results(kind, lost));
            }
            Next::Without(setting) => {
                progress(&format!("a fresh guest goes on without {}", setting.name()));
                settings.retain(|it| *it != setting);
                lost.push(Lost { setting: Some(setting), why });
            }
            Next::Again => progress("a fresh guest begins this workload again"),
            Next::GiveUp => {
                progress("this workload is given up, and a fresh guest goes on with the rest");
                lost.push(Lost { setting: None, why: format!("all rounds: {why}") });
                break;
            }
        }
    }
    Ok(WorkloadRun::default().into_results(kind, lost))
}

/// What was measured of a workload, as far as it went.
#[derive(Default)]
struct WorkloadRun {
    states: Vec<State>,
    booted: Knobs,
    /// The setting that is placed or measured now.
    now: Option<Setting>,
}

impl WorkloadRun {
    fn complete_rounds(&self) -> usize {
        self.states.iter().map(|state| state.rounds.len()).min().unwrap_or(0)
    }

    fn truncate(&mut self, rounds: usize) {
        self.states.iter_mut().for_each(|state| state.rounds.truncate(rounds));
    }

    fn into_results(self, kind: Kind, lost: Vec<Lost>) -> WorkloadResults {
        let settings = self.states.into_iter().map(|state| SettingResults {
            settings: state.settings,
            changes: state.knobs.beside(&self.booted),
            bytes: state.bytes,
            rounds: state.rounds,
        });
        WorkloadResults::new(kind, settings.collect(), lost)
    }
}

/// Places each setting once, then measures all of them in each round.
fn measure(
    args: &Peers,
    guest: &PeersGuest<'_>,
    (kind, settings): (Kind, &[Setting]),
    random: &mut fastrand::Rng,
    measured: &mut WorkloadRun,
) -> Result<()> {
    measured.booted = guest.booted().clone();
    let workload = Workload::start(kind, guest.lab(), &SERVER_CPUS)?;
    place(guest, &workload, settings, args, measured)?;
    let WorkloadRun { states, now, .. } = measured;
    ensure!(!states.is_empty(), "no setting to measure");
    let name = kind.name();
    for state in states.iter_mut() {
        *now = Some(state.settings[0]);
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
            *now = Some(state.settings[0]);
            bar.set_message(state.settings[0].name());
            state.knobs.write(guest.lab())?;
            state.rounds.push(Round::from(&workload.measure(args.seconds)?));
            bar.inc(1);
        }
        bar.suspend(|| progress(&format!("{name}: round {round} of {}", args.rounds)));
    }
    bar.finish_and_clear();
    guest.booted().write(guest.lab())
}

/// Finds the states that the settings lead to under this workload.
fn place(
    guest: &PeersGuest<'_>,
    workload: &Workload<'_>,
    settings: &[Setting],
    args: &Peers,
    measured: &mut WorkloadRun,
) -> Result<()> {
    let WorkloadRun { states, now, .. } = measured;
    let of = workload.kind().name();
    for setting in settings {
        *now = Some(*setting);
        let (knobs, printed) = guest
            .place(*setting, workload, args.search_all)
            .with_context(|| format!("cannot place {}", setting.name()))?;
        if let Some((folder, printed)) = args.keep.as_ref().zip(printed) {
            write(&folder.join(format!("{of}-{}.txt", setting.name())), &printed)?;
        }
        progress(&format!("{of}: placed: {}", setting.name()));
        match states.iter_mut().find(|state| state.knobs == knobs) {
            Some(state) => state.settings.push(*setting),
            None => states.push(State {
                settings: vec![*setting],
                knobs,
                bytes: None,
                rounds: Vec::new(),
            }),
        }
    }
    *now = None;
    Ok(())
}
