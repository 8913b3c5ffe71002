//! `make bench-peers`: netsilo compared with what users run instead, in one guest.
//!
//! Each setting is a state of the guest's knobs. Either a rule defines the state, or a program
//! finds it by observing the workload. In the second case the state is recorded, and each round
//! sets it again.

mod observed;
mod results;
mod rules;
mod setting;
mod table;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use netsilo_lab::{Kernel, Nic, NicModel, Spec, Threads};

use crate::experiment::record::{LoadRecord, RoundResult, SettingRecord};
use crate::experiment::run::records;
use crate::experiment::study::{Options, Scene, Study, Usual};
use crate::experiment::tables::print;
use crate::guests::{Guest, Guests, SERVER_CPUS};
use crate::knobs::Knobs;
use crate::peers::results::Results;
use crate::peers::setting::{PeerSetting, State};
use crate::say::{progress, say};
use crate::workload::{Kind, Workload, while_busy};

const USUAL: Usual = Usual { rounds: 6, seconds: 1.0 };

/// Arguments of the comparison.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Peers {
    #[command(flatten)]
    options: Options,
    /// Measure only these settings
    #[arg(long = "setting", value_name = "NAME", value_enum)]
    settings: Vec<PeerSetting>,
    /// Let netsilo tune compare all candidates for seven minutes, instead of three algorithms for
    /// three minutes
    #[arg(long)]
    search_all: bool,
    /// Kernel to boot
    #[arg(long, value_enum, default_value_t = Kernel::V6_1)]
    kernel: Kernel,
    /// How the emulator runs the CPUs. If they run one at a time, a queue away from its reader is
    /// polled late, and in batches that no real machine has
    #[arg(long, value_enum, default_value_t = Threads::Multi)]
    threads: Threads,
}

/// The guests in which netsilo is compared.
struct Compared<'a> {
    args: &'a Peers,
    guests: Guests,
    attempt: Attempt,
}

/// What earlier guests have shown about one load.
#[derive(Default)]
struct Attempt {
    load: String,
    /// The setting that is being placed.
    placing: Option<PeerSetting>,
    /// Settings that failed, with the reason.
    without: Vec<(PeerSetting, String)>,
}

/// A workload in a guest.
struct PeersScene<'a> {
    args: &'a Peers,
    guest: Guest<'a>,
    workload: Workload<'a>,
    attempt: &'a mut Attempt,
}

/// Measures all workloads, or reads earlier measurements, and prints a table for each.
pub(crate) fn run(args: &Peers) -> Result<()> {
    let temporary = tempfile::tempdir()?;
    let study = Compared::new(args);
    for (_, recorded) in records(&args.options, USUAL, vec![Box::new(study)], &temporary)? {
        let show = |load: &LoadRecord| Ok(table::show(&Results::new(load)?));
        let tables: Vec<String> = recorded.loads.iter().map(show).collect::<Result<_>>()?;
        let title = format!("{}; seed {}", recorded.about, recorded.seed);
        print(&format!("{title}\n{}", tables.join("\n")), &recorded)?;
    }
    say("Counts do not depend on the speed of emulated CPUs; rates compare only within a table.")
}

impl<'a> Compared<'a> {
    fn new(args: &'a Peers) -> Self {
        let Peers { options, kernel, threads, .. } = args;
        // Forwarding needs another NIC.
        let nics = if options.wants(Kind::Forward.name()) { 2 } else { 1 };
        let nics = vec![Nic::from(NicModel::VirtioNet); nics];
        let spec = Spec { threads: *threads, nics, ..Spec::new(*kernel, NicModel::VirtioNet) };
        Self { args, guests: Guests::new(spec), attempt: Attempt::default() }
    }
}

impl Study for Compared<'_> {
    fn folder(&self) -> &'static str {
        "peers"
    }

    fn loads(&self) -> Vec<String> {
        Kind::value_variants().iter().map(|kind| kind.name().to_owned()).collect()
    }

    fn machine(&mut self) -> Result<String> {
        Ok(self.guests.lab()?.title().to_owned())
    }

    fn start(&mut self, load: &str) -> Result<Box<dyn Scene + '_>> {
        if self.attempt.load != load {
            self.attempt = Attempt { load: load.to_owned(), ..Attempt::default() };
        }
        let kind = Kind::from_str(load, false).map_err(anyhow::Error::msg)?;
        let Self { args, guests, attempt } = self;
        let (guest, workload) = guests.start(kind, &SERVER_CPUS)?;
        Ok(Box::new(PeersScene { args, guest, workload, attempt }))
    }

    /// The setting that was being placed may be the reason. The others continue without it.
    fn restart(&mut self, why: &str) -> bool {
        self.guests.end();
        let Attempt { placing, without, .. } = &mut self.attempt;
        without.extend(placing.take().map(|setting| (setting, why.to_owned())));
        true
    }
}

impl Scene for PeersScene<'_> {
    /// Finds the states that the settings produce under this workload, and where data is read in
    /// them.
    fn plan(&mut self, folder: &Path) -> Result<LoadRecord> {
        let Self { args, guest, workload, attempt } = self;
        let name = workload.kind().name();
        let mut states: Vec<(Knobs, Vec<PeerSetting>)> = Vec::new();
        for setting in PeerSetting::value_variants() {
            let is_chosen = args.settings.is_empty() || args.settings.contains(setting);
            if !is_chosen || attempt.without.iter().any(|(failed, _)| failed == setting) {
                continue;
            }
            attempt.placing = Some(*setting);
            let (knobs, printed) = place(*setting, guest, workload, args.search_all)
                .with_context(|| format!("cannot place {}", setting.name()))?;
            if let Some(printed) = printed {
                let file = folder.join(format!("{name}-{}.txt", setting.name()));
                std::fs::write(&file, &printed).with_context(|| format!("{file:?}"))?;
            }
            progress(&format!("{name}: placed: {}", setting.name()));
            match states.iter_mut().find(|(known, _)| *known == knobs) {
                Some((_, settings)) => settings.push(*setting),
                None => states.push((knobs, vec![*setting])),
            }
        }
        attempt.placing = None;
        ensure!(!states.is_empty(), "no setting to measure");
        let mut settings = Vec::new();
        for (knobs, names) in states {
            let changes = knobs.differences_from(guest.booted());
            let words: Vec<&str> = names.iter().map(|setting| setting.name()).collect();
            let mut setting =
                SettingRecord::with(&words.join(" = "), &State { settings: names, changes })?;
            knobs.write(guest.lab())?;
            if let Some(shares) = guest.shares(workload)? {
                shares.record(&mut setting);
            }
            settings.push(setting);
        }
        progress(&format!("{name}: bytes by distance observed in {} states", settings.len()));
        let lost = attempt.without.iter();
        let lost = lost.map(|(setting, why)| format!("{}: {why}", setting.name())).collect();
        let (name, unit) = (name.to_owned(), "transaction".to_owned());
        Ok(LoadRecord { name, unit, settings, lost, ..LoadRecord::default() })
    }

    fn apply(&mut self, setting: &SettingRecord) -> Result<()> {
        let mut knobs = self.guest.booted().clone();
        knobs.change(&setting.details::<State>()?.changes);
        knobs.write(self.guest.lab())
    }

    fn measure(&mut self, seconds: f64) -> Result<RoundResult> {
        Ok(self.workload.measure(seconds.ceil() as u32)?.per_transaction())
    }

    fn finish(&mut self) -> Result<()> {
        self.guest.restore()
    }
}

/// Returns the state that a setting produces under a workload, and the output of the program that
/// placed it. Afterwards the guest is in its booted state.
fn place(
    setting: PeerSetting,
    guest: &Guest<'_>,
    workload: &Workload<'_>,
    search_all: bool,
) -> Result<(Knobs, Option<String>)> {
    let mut knobs = guest.booted().clone();
    if rules::apply(setting, guest.queues(), &mut knobs) {
        return Ok((knobs, None));
    }
    let (lab, netsilo) = (guest.lab(), guest.netsilo());
    let printed = while_busy(&[workload], || observed::place(setting, lab, netsilo, search_all))?;
    let placed = guest.pinned()?;
    observed::forget(lab, netsilo)?;
    guest.restore()?;
    Ok((placed, Some(printed)))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        peers: Peers,
    }

    #[test]
    fn a_fresh_guest_leaves_out_the_setting_that_was_being_placed() {
        let Line { peers } = Line::parse_from(["peers", "--load", "redis"]);
        let mut guests = Compared::new(&peers);
        assert_eq!(guests.guests.spec.nics.len(), 1, "only forwarding needs two");
        guests.attempt.placing = Some(PeerSetting::NetsiloTune);
        // The second failure was while no setting was being placed.
        assert!(guests.restart("the guest has hung") && guests.restart("no end"));
        let without = (PeerSetting::NetsiloTune, "the guest has hung".to_owned());
        assert_eq!(guests.attempt.without, [without]);
    }
}
