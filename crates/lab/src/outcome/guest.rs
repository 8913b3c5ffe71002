//! Measures placements of NICs' queues in a guest of two sockets.
//!
//! Counts hold anywhere. Rates compare only with each other, as the CPUs are emulated.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use netsilo_lab::Lab;
use netsilo_model::cost::assumed::Assumed;

use crate::built;
use crate::locality::Shares;
use crate::outcome::args::Measure;
use crate::outcome::outcomes::choice;
use crate::outcome::recorded::{Load, Measured, Setting, Start};
use crate::outcome::shapes::Shape;
use crate::outcome::vectors::{Vectors, in_words};
use crate::say::{bar, progress};
use crate::workload::{Kind, Workload, while_busy};

/// Entries of the flow table of RFS, and of each queue of the first NIC: as `scaling.rst` suggests.
const RFS: &str = "echo 32768 >/proc/sys/net/core/rps_sock_flow_entries; \
                   for it in /sys/class/net/eth*/queues/rx-*/rps_flow_cnt; do echo 8192 >$it; done";
const NO_RFS: &str = "echo 0 >/proc/sys/net/core/rps_sock_flow_entries; \
                      for it in /sys/class/net/eth*/queues/rx-*/rps_flow_cnt; do echo 0 >$it; done";

/// A booted guest.
pub(super) struct Guest {
    lab: Lab,
    shape: Shape,
    vectors: Vectors,
    netsilo: String,
}

/// Where RPS steers, beside the first placement.
#[derive(Debug, Clone, Copy)]
enum Steering {
    Off,
    Rps,
    Rfs,
}

impl Guest {
    /// Boots it.
    pub(super) fn boot(shape: Shape) -> Result<Self> {
        let spec = shape.spec();
        let lab = Lab::boot(&spec)?;
        let vectors = Vectors::read(&lab, shape.netdevs, shape.cpus)?;
        let queues: usize = spec.nics.iter().map(|nic| nic.queues as usize).sum();
        ensure!(vectors.queues() == queues, "not {queues} rx queues: {vectors:?}");
        let netsilo = built::netsilo()?.display().to_string();
        Ok(Self { lab, shape, vectors, netsilo })
    }

    /// Its kernel, emulator and shape.
    pub(super) fn title(&self) -> &str {
        self.lab.title()
    }

    /// Asks the default from each start, then measures all placements that came up.
    pub(super) fn measure(&self, kind: Kind, args: &Measure, folder: &Path) -> Result<Load> {
        let mut settings: Vec<Setting> = (self.shape.placements.iter())
            .map(|(name, cpus)| Setting::new(name, &in_words(cpus)))
            .collect();
        let workload = Workload::start(kind, &self.lab, self.servers())?;
        let (starts, choices) = self.ask(&workload, args, folder)?;
        progress(&format!("{}: asked from each start", kind.name()));
        let measured = |cpus: &Vec<String>| settings.iter().any(|setting| setting.cpus == *cpus);
        let new: Vec<_> = choices.into_iter().filter(|cpus| !measured(cpus)).collect();
        settings.extend(new.iter().map(|cpus| Setting::new("chosen", cpus)));
        if self.reads() {
            settings.push(Setting::new("RPS onto all", &[]));
            settings.push(Setting::new("RPS and RFS", &[]));
        }
        for setting in &mut settings {
            self.set(setting)?;
            if self.reads()
                && let Some(shares) = while_busy(&[&workload], || self.shares())?
            {
                let shares = [
                    ("same_cpu", shares.same_cpu),
                    ("same_llc", shares.same_llc),
                    ("remote", shares.remote),
                ];
                let rounded = |share: f64| (share * 1e3).round() / 1e3;
                let shares =
                    shares.map(|(name, share)| (format!("bytes_{name}"), vec![rounded(share)]));
                setting.figures.extend(shares);
            }
        }
        progress(&format!("{}: bytes by distance observed", kind.name()));
        self.rounds(&workload, args, &mut settings)?;
        Ok(Load {
            name: kind.name().to_owned(),
            unit: "transaction".to_owned(),
            netdevs: self.netdevs(),
            settings,
            starts,
        })
    }

    /// Measures all settings in each round, in random order.
    fn rounds(
        &self,
        workload: &Workload<'_>,
        args: &Measure,
        settings: &mut [Setting],
    ) -> Result<()> {
        let name = workload.kind().name();
        let bar = bar(u64::from(args.rounds) * settings.len() as u64);
        for _ in 0..args.rounds {
            let mut order: Vec<usize> = (0..settings.len()).collect();
            fastrand::shuffle(&mut order);
            for at in order {
                bar.set_message(format!("{name}: {}", settings[at].label()));
                self.set(&settings[at])?;
                let measured = workload.measure(args.seconds.ceil() as u32)?;
                let transactions = measured.clients.transactions.max(1.0);
                let each = |count: u64| count as f64 / transactions;
                let spent = measured.spent;
                settings[at].push(&Measured {
                    rate: measured.clients.per_second,
                    figures: vec![
                        ("ipis", each(spent.calls + spent.reschedules)),
                        ("softirqs", each(spent.net_rx)),
                        ("switches", each(spent.switches)),
                    ],
                });
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Saves a bundle of each start under this load; returns the default's choices too, those with
    /// other assumptions among them.
    fn ask(
        &self,
        workload: &Workload<'_>,
        args: &Measure,
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
            for look in 0..args.looks {
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
