//! Measures placements of NICs' queues in a guest of two sockets.
//!
//! Counts hold anywhere. Rates compare only with each other, as the CPUs are emulated.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use netsilo_lab::Lab;
use netsilo_model::cost::assumed::Assumed;

use crate::built;
use crate::experiment::record::{Load, Measured, Setting, Start};
use crate::experiment::{Scene, Study};
use crate::locality::Shares;
use crate::outcome::outcomes::choice;
use crate::outcome::shapes::Shape;
use crate::outcome::vectors::{Vectors, in_words};
use crate::say::progress;
use crate::workload::{Workload, while_busy};

/// Entries of the flow table of RFS, and of each queue of the first NIC: as `scaling.rst` suggests.
const RFS: &str = "echo 32768 >/proc/sys/net/core/rps_sock_flow_entries; \
                   for it in /sys/class/net/eth*/queues/rx-*/rps_flow_cnt; do echo 8192 >$it; done";
const NO_RFS: &str = "echo 0 >/proc/sys/net/core/rps_sock_flow_entries; \
                      for it in /sys/class/net/eth*/queues/rx-*/rps_flow_cnt; do echo 0 >$it; done";

/// A guest, from its first load on.
pub(super) struct Guests {
    shape: Shape,
    looks: u16,
    guest: Option<Guest>,
}

/// A booted guest.
struct Guest {
    lab: Lab,
    shape: Shape,
    vectors: Vectors,
    netsilo: String,
}

/// A load in a guest, with its servers running.
struct GuestScene<'a> {
    guest: &'a Guest,
    looks: u16,
    workload: Workload<'a>,
}

/// Where RPS steers, beside the first placement.
#[derive(Debug, Clone, Copy)]
enum Steering {
    Off,
    Rps,
    Rfs,
}

impl Guests {
    pub(super) fn new(shape: Shape, looks: u16) -> Self {
        Self { shape, looks, guest: None }
    }

    fn guest(&mut self) -> Result<&Guest> {
        let booted = match self.guest.take() {
            Some(guest) => guest,
            None => Guest::boot(self.shape.clone())?,
        };
        Ok(self.guest.insert(booted))
    }
}

impl Study for Guests {
    fn folder(&self) -> &'static str {
        self.shape.folder
    }

    fn loads(&self) -> Vec<String> {
        self.shape.kinds.iter().map(|kind| kind.name().to_owned()).collect()
    }

    fn machine(&mut self) -> Result<String> {
        let guest = self.guest()?;
        Ok(format!("{}; servers on CPUs {:?}", guest.lab.title(), guest.shape.servers))
    }

    fn start(&mut self, load: &str) -> Result<Box<dyn Scene + '_>> {
        let looks = self.looks;
        let kind = self.shape.kinds.iter().find(|kind| kind.name() == load);
        let kind = *kind.context("unknown load")?;
        let guest = self.guest()?;
        let workload = Workload::start(kind, &guest.lab, guest.servers())?;
        Ok(Box::new(GuestScene { guest, looks, workload }))
    }

    fn restart(&mut self, _why: &str) -> bool {
        self.guest = None;
        true
    }
}

impl Scene for GuestScene<'_> {
    /// Asks the default from each start; all placements that it chooses are measured too.
    fn plan(&mut self, folder: &Path) -> Result<Load> {
        let Self { guest, looks, workload } = self;
        let name = workload.kind().name();
        let mut settings: Vec<Setting> = (guest.shape.placements.iter())
            .map(|(name, cpus)| Setting::new(name, &in_words(cpus)))
            .collect();
        let (starts, choices) = guest.ask(workload, *looks, folder)?;
        progress(&format!("{name}: asked from each start"));
        let measured = |cpus: &Vec<String>| settings.iter().any(|setting| setting.cpus == *cpus);
        let new: Vec<_> = choices.into_iter().filter(|cpus| !measured(cpus)).collect();
        settings.extend(new.iter().map(|cpus| Setting::new("chosen", cpus)));
        if guest.reads() {
            settings.push(Setting::new("RPS onto all", &[]));
            settings.push(Setting::new("RPS and RFS", &[]));
        }
        for setting in settings.iter_mut().filter(|_| guest.reads()) {
            guest.set(setting)?;
            if let Some(shares) = while_busy(&[&*workload], || guest.shares())? {
                shares.record(setting);
            }
        }
        progress(&format!("{name}: bytes by distance observed"));
        Ok(Load {
            name: name.to_owned(),
            unit: "transaction".to_owned(),
            netdevs: guest.netdevs(),
            settings,
            starts,
            ..Load::default()
        })
    }

    fn apply(&mut self, setting: &Setting) -> Result<()> {
        self.guest.set(setting)
    }

    fn measure(&mut self, seconds: f64) -> Result<Measured> {
        Ok(self.workload.measure(seconds.ceil() as u32)?.per_transaction())
    }
}

impl Guest {
    fn boot(shape: Shape) -> Result<Self> {
        let spec = shape.spec();
        let lab = Lab::boot(&spec)?;
        let vectors = Vectors::read(&lab, shape.netdevs, shape.cpus)?;
        let queues: usize = spec.nics.iter().map(|nic| nic.queues as usize).sum();
        ensure!(vectors.queues() == queues, "not {queues} rx queues: {vectors:?}");
        let netsilo = built::netsilo()?.display().to_string();
        Ok(Self { lab, shape, vectors, netsilo })
    }

    /// Saves a bundle of each start under this load; returns the default's choices too, those with
    /// other assumptions among them.
    fn ask(
        &self,
        workload: &Workload<'_>,
        looks: u16,
        folder: &Path,
    ) -> Result<(Vec<Start>, BTreeSet<Vec<String>>)> {
        let capture = format!(
            "{} capture --interval 2s --output /tmp/start.tar.zst >&2 && cat /tmp/start.tar.zst && \
             rm /tmp/start.tar.zst",
            self.netsilo
        );
        let netdevs = self.netdevs();
        let (mut starts, mut choices) = (Vec::new(), BTreeSet::new());
        for (placement, (_, cpus)) in
            self.shape.placements.iter().enumerate().take(self.shape.starts)
        {
            let present = in_words(cpus);
            self.vectors.place(&self.lab, &present)?;
            for look in 0..looks {
                let bundle = format!("{}-from-{placement}-{look}.tar.zst", workload.kind().name());
                let output = while_busy(&[workload], || self.lab.run(&capture)?.ok())?;
                let file = folder.join(&bundle);
                std::fs::write(&file, output.stdout).with_context(|| format!("{file:?}"))?;
                let observation = netsilo_sys::bundle::open(file)?;
                let others = Assumed::half_and_double().flat_map(|(_, both)| both);
                let asked = others.chain([Assumed::default()]);
                choices
                    .extend(asked.map(|assumed| choice(&observation, &netdevs, &present, assumed)));
                starts.push(Start { placement, bundle });
            }
        }
        Ok((starts, choices))
    }

    fn netdevs(&self) -> Vec<String> {
        self.shape.netdevs.iter().map(|it| (*it).to_owned()).collect()
    }

    fn shares(&self) -> Result<Option<Shares>> {
        Shares::read(&self.lab, &self.netsilo)
    }

    /// The CPUs of the servers; a server behind the guest has none.
    fn servers(&self) -> &[u32] {
        if self.reads() { self.shape.servers } else { &[0] }
    }

    /// Whether the guest reads the data.
    fn reads(&self) -> bool {
        !self.shape.servers.is_empty()
    }

    /// Makes a setting; one that is no placement goes with the first placement.
    fn set(&self, setting: &Setting) -> Result<()> {
        let steering = match setting.name.as_str() {
            _ if setting.is_placement() => Steering::Off,
            "RPS onto all" => Steering::Rps,
            _ => Steering::Rfs,
        };
        let first = || in_words(&self.shape.placements[0].1);
        let cpus = if setting.is_placement() { setting.cpus.clone() } else { first() };
        self.vectors.place(&self.lab, &cpus)?;
        let mask = match steering {
            Steering::Off => 0_u64,
            Steering::Rps | Steering::Rfs => (1 << self.shape.cpus) - 1,
        };
        let rfs = if matches!(steering, Steering::Rfs) { RFS } else { NO_RFS };
        self.lab
            .sh(&format!(
                "{rfs}; for it in /sys/class/net/eth*/queues/rx-*/rps_cpus; do \
                 echo {mask:x} >$it; done"
            ))
            .map(drop)
    }
}
