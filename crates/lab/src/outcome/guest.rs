//! Measures placements of NICs' queues in a guest of two sockets.
//!
//! Counts do not depend on the speed of emulated CPUs. Rates compare only with each other.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use netsilo_model::cost::assumed::Assumed;

use crate::experiment::record::{LoadRecord, RoundResult, SettingRecord, Start};
use crate::experiment::study::{Scene, Study};
use crate::guests::{Guest, Guests};
use crate::outcome::outcomes::choice;
use crate::outcome::shapes::Shape;
use crate::say::progress;
use crate::workload::Workload;

/// Settings other than placements: RPS with the first placement.
const RPS: &str = "RPS onto all";
const RPS_RFS: &str = "RPS and RFS";

/// Placements in guests of one shape.
pub(super) struct Placements {
    shape: Shape,
    looks: u16,
    guests: Guests,
}

/// A load in a guest, with its servers running.
struct GuestScene<'a> {
    shape: &'a Shape,
    looks: u16,
    guest: Guest<'a>,
    workload: Workload<'a>,
}

impl Placements {
    pub(super) fn new(shape: Shape, looks: u16) -> Self {
        Self { guests: Guests::new(shape.spec()), shape, looks }
    }
}

impl Study for Placements {
    fn folder(&self) -> &'static str {
        self.shape.folder
    }

    fn loads(&self) -> Vec<String> {
        self.shape.kinds.iter().map(|kind| kind.name().to_owned()).collect()
    }

    fn machine(&mut self) -> Result<String> {
        let title = self.guests.lab()?.title();
        Ok(format!("{title}; servers on CPUs {:?}", self.shape.servers))
    }

    fn start(&mut self, load: &str) -> Result<Box<dyn Scene + '_>> {
        let Self { shape, looks, guests } = self;
        let kind = shape.kinds.iter().find(|kind| kind.name() == load);
        // A server behind the guest has none of its CPUs.
        let servers = if shape.reads() { shape.servers } else { &[0] };
        let (guest, workload) = guests.start(*kind.context("unknown load")?, servers)?;
        Ok(Box::new(GuestScene { shape, looks: *looks, guest, workload }))
    }

    fn restart(&mut self, _why: &str) -> bool {
        self.guests.end();
        true
    }
}

impl Scene for GuestScene<'_> {
    /// Asks the default from each start; all placements that it chooses are measured too.
    fn plan(&mut self, folder: &Path) -> Result<LoadRecord> {
        let Self { shape, guest, workload, .. } = &*self;
        let name = workload.kind().name();
        let mut settings: Vec<SettingRecord> = (shape.placements.iter())
            .map(|(name, cpus)| SettingRecord::new(name, &in_words(cpus)))
            .collect();
        let (starts, choices) = self.ask(folder)?;
        progress(&format!("{name}: asked from each start"));
        let measured = |cpus: &Vec<String>| settings.iter().any(|setting| setting.cpus == *cpus);
        let new: Vec<_> = choices.into_iter().filter(|cpus| !measured(cpus)).collect();
        settings.extend(new.iter().map(|cpus| SettingRecord::new("chosen", cpus)));
        if shape.reads() {
            settings.push(SettingRecord::new(RPS, &[]));
            settings.push(SettingRecord::new(RPS_RFS, &[]));
        }
        for setting in settings.iter_mut().filter(|_| shape.reads()) {
            set(shape, guest, setting)?;
            if let Some(shares) = guest.shares(workload)? {
                shares.record(setting);
            }
        }
        progress(&format!("{name}: bytes by distance observed"));
        Ok(LoadRecord {
            name: name.to_owned(),
            unit: "transaction".to_owned(),
            netdevs: shape.netdevs(),
            settings,
            starts,
            ..LoadRecord::default()
        })
    }

    fn apply(&mut self, setting: &SettingRecord) -> Result<()> {
        set(self.shape, &self.guest, setting)
    }

    fn measure(&mut self, seconds: f64) -> Result<RoundResult> {
        Ok(self.workload.measure(seconds.ceil() as u32)?.per_transaction())
    }

    fn finish(&mut self) -> Result<()> {
        self.guest.restore()
    }
}

impl GuestScene<'_> {
    /// Saves a bundle of each start under this load; returns the default's choices too, those with
    /// other assumptions among them.
    fn ask(&self, folder: &Path) -> Result<(Vec<Start>, BTreeSet<Vec<String>>)> {
        let Self { shape, looks, guest, workload } = self;
        let netdevs = shape.netdevs();
        let (mut starts, mut choices) = (Vec::new(), BTreeSet::new());
        for (placement, (_, cpus)) in shape.placements.iter().enumerate().take(shape.starts) {
            let present = in_words(cpus);
            guest.placed(cpus).write(guest.lab())?;
            for look in 0..*looks {
                let bundle = format!("{}-from-{placement}-{look}.tar.zst", workload.kind().name());
                let observation = guest.capture(workload, 2, &folder.join(&bundle))?;
                let others = Assumed::half_and_double().flat_map(|(_, both)| both);
                let asked = others.chain([Assumed::default()]);
                choices
                    .extend(asked.map(|assumed| choice(&observation, &netdevs, &present, assumed)));
                starts.push(Start { placement, bundle });
            }
        }
        Ok((starts, choices))
    }
}

/// Makes a setting.
fn set(shape: &Shape, guest: &Guest<'_>, setting: &SettingRecord) -> Result<()> {
    let cpus = setting.cpus.iter().map(|cpu| cpu.parse().with_context(|| format!("CPU {cpu}")));
    let cpus: Vec<u32> = cpus.collect::<Result<_>>()?;
    let mut knobs =
        guest.placed(if setting.is_placement() { &cpus } else { &shape.placements[0].1 });
    let queues = guest.queues();
    if !setting.is_placement() {
        queues.rps(&mut knobs, queues.all());
    }
    if setting.name == RPS_RFS {
        queues.rfs(&mut knobs);
    }
    knobs.write(guest.lab())
}

/// CPUs as a plan prints them.
fn in_words(cpus: &[u32]) -> Vec<String> {
    cpus.iter().map(u32::to_string).collect()
}
