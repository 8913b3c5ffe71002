//! Forecasts of recorded placements, checked against what these measured: how wide the interval of
//! a forecast for an observed machine has to be.

use anyhow::Result;
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::silo::Silo;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::snapshot::host::Snapshot;
use netsilo_predict::live::claim::{Claim, is_near_full};
use netsilo_predict::live::forecast::{Expected, forecast};
use netsilo_predict::live::proposal::Proposal;
use netsilo_predict::live::work::Work;
use netsilo_trial::stats::Estimate;

use crate::experiment::record::{LoadRecord, Start};
use crate::outcome::outcomes::{RecordedOutcomes, position};

/// The change of the rate that was expected of a placement, and the one that it measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Checked {
    /// Expected, with a 90 % interval.
    pub(super) expected: Estimate,
    /// What is claimed of it.
    pub(super) claim: Claim,
    /// Measured, the median.
    pub(super) measured: f64,
}

impl Checked {
    /// Whether the interval holds what was measured.
    pub(super) fn is_held(&self) -> bool {
        self.expected.contains(self.measured)
    }
}

impl RecordedOutcomes {
    /// The forecast of each placement from each start in which the machine had another one and
    /// something was full, with the number of its load. Where nothing is full, the load that fits
    /// does not show in the rate.
    pub(super) fn forecasts(&self) -> Result<Vec<(usize, Checked)>> {
        let mut all = Vec::new();
        for (number, load) in self.recorded.loads.iter().enumerate() {
            for start in &load.starts {
                for (placement, expected, claim) in self.seen_from(load, start) {
                    let measured = load.rate(placement) / load.rate(start.placement) - 1.0;
                    all.push((number, Checked { expected, claim, measured }));
                }
            }
        }
        Ok(all)
    }

    /// The expected change by each other placement; none if nothing is full.
    fn seen_from(&self, load: &LoadRecord, start: &Start) -> Vec<(usize, Estimate, Claim)> {
        let costs = Costs::default();
        let analysis = Analysis::new(self.observation(start), &costs);
        let Ok(work) = Work::new(&analysis) else { return Vec::new() };
        let others: Vec<usize> = load.placements().filter(|it| *it != start.placement).collect();
        let proposal = |placement: &usize| {
            let mut proposal = Proposal::new("other", analysis.after(), &[]);
            for silo in &analysis.silos.queues {
                if let Some(cpu) = cpu_of(load, *placement, silo) {
                    put(&mut proposal.after, silo, cpu);
                }
            }
            proposal
        };
        let proposals: Vec<Proposal> = others.iter().map(proposal).collect();
        let settings = forecast(&work, 1.0, &proposals).settings;
        let Some((now, settings)) = settings.split_first() else { return Vec::new() };
        let of = |(other, it): (usize, &Expected)| Some((other, it.gain?, it.claim?));
        let is_full = is_near_full(now.fits.value);
        others.into_iter().zip(settings).filter(|_| is_full).filter_map(of).collect()
    }
}

/// The CPU of a queue in a recorded placement.
fn cpu_of(load: &LoadRecord, placement: usize, silo: &Silo) -> Option<CpuId> {
    let cpus = &load.settings[placement].cpus;
    cpus.get(position(&silo.subject(), &load.netdevs, cpus.len())?)?.parse().ok().map(CpuId)
}

/// Places a queue's NAPI kthread, or else its interrupt.
fn put(settings: &mut Snapshot, silo: &Silo, cpu: CpuId) {
    let cpus = CpuSet::from_cpu(cpu);
    if let Some(napi) = silo.napi.as_ref().filter(|_| silo.kthread.is_some()) {
        let netdevs = settings.netdevs.iter_mut().filter(|netdev| silo.netdev.is(netdev));
        for its in netdevs.flat_map(|netdev| &mut netdev.napis).filter(|it| it.id == napi.to) {
            its.thread.iter_mut().for_each(|thread| thread.cpus = cpus.clone());
        }
    } else if let Some(irq) = &silo.irq {
        settings.irqs.entry(irq.to).and_modify(|state| state.requested = Some(cpus));
    }
}
