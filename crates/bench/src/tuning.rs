//! What the settings of an experiment may change: netdevs and CPUs, from the command line.

use std::cmp::Reverse;

use anyhow::{Context as _, Result, ensure};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::Topology;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::Netdev;

use crate::definition::Cpus;

/// Arguments that select what the settings may change.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TuningArgs {
    /// Change only these netdevs [default: all that are up and have queues with interrupts]
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub(crate) netdev: Vec<String>,
    /// Use only these CPUs for interrupts and RPS (list or mask) [default: all but isolated and
    /// nohz_full]
    #[arg(long, value_name = "CPUS", value_parser = netsilo::args::parse::some_cpus)]
    pub(crate) cpus: Option<CpuSet>,
    /// Write even if another program (irqbalance) writes the same knobs
    #[arg(long)]
    pub(crate) even_if_owned: bool,
}

impl TuningArgs {
    /// Returns the selected netdevs.
    pub(crate) fn netdevs<'a>(
        &'a self,
        snapshot: &'a Snapshot,
    ) -> impl Iterator<Item = &'a Netdev> {
        let with_irqs =
            |netdev: &Netdev| netdev.up && netdev.rx_queues.iter().any(|rx| rx.irq.is_some());
        snapshot.netdevs.iter().filter(move |netdev| {
            if self.netdev.is_empty() {
                with_irqs(netdev)
            } else {
                self.netdev.contains(&netdev.name)
            }
        })
    }

    /// Returns the CPUs for which a word of a definition stands on this machine.
    pub(crate) fn cpus(
        &self,
        word: &Cpus,
        topology: &Topology,
        reader: Option<CpuId>,
    ) -> Result<CpuSet> {
        let pool = || self.cpus.clone().unwrap_or_else(|| topology.housekeeping());
        let one = |cpu: Option<CpuId>| cpu.map(CpuSet::from_cpu).context("no cpu is available");
        match word {
            Cpus::All => Ok(pool()),
            Cpus::First => one(pool().lowest()),
            Cpus::Last => one(pool().highest()),
            Cpus::Farthest => {
                let reader = reader.context(
                    "no reader is known, so no cpu is farthest from it: add the key reader",
                )?;
                let distance = |cpu: &CpuId| (topology.distance(*cpu, reader), Reverse(*cpu));
                one(pool().iter().max_by_key(distance))
            }
            Cpus::These(cpus) => Ok(cpus.clone()),
        }
    }

    /// Returns the CPU that a definition names as the reader.
    pub(crate) fn reader(&self, word: &Cpus, topology: &Topology) -> Result<CpuId> {
        let cpu = self.cpus(word, topology, None)?.lowest().context("no cpu is available")?;
        let online = &topology.online;
        ensure!(online.contains(cpu), "cpu {cpu} is not online; online are {online}");
        Ok(cpu)
    }
}
