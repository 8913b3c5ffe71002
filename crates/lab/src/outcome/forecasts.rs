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

/// The predicted and the measured change of the rate by a placement.
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
                let (is_full, seen) = self.seen_from(load, start);
                for (placement, expected, claim) in seen.into_iter().filter(|_| is_full) {
                    let measured = load.rate(placement) / load.rate(start.placement) - 1.0;
                    all.push((number, Checked { expected, claim, measured }));
                }
            }
        }
        Ok(all)
    }

    /// The regret for each load, from its worst start, of the placement with which most load fits
    /// by the forecast alone.
    pub(super) fn regrets_by_forecast(&self) -> Vec<Estimate> {
        let chosen = |load: &LoadRecord, start: &Start| {
            let (_, seen) = self.seen_from(load, start);
            let gains = seen.into_iter().map(|(placement, gain, _)| (placement, gain.value));
            let best = gains.filter(|(_, gain)| *gain > 0.0).max_by(|a, b| a.1.total_cmp(&b.1));
            best.map_or(start.placement, |(placement, _)| placement)
        };
        let worst = |load: &LoadRecord| {
            let regrets = load.starts.iter().map(|start| load.regret(chosen(load, start)));
            regrets.max_by(|a, b| a.value.total_cmp(&b.value))
        };
        self.recorded.loads.iter().filter_map(worst).collect()
    }

    /// Whether something is nearly full, and the expected change by each other placement.
    fn seen_from(&self, load: &LoadRecord, start: &Start) -> (bool, Vec<(usize, Estimate, Claim)>) {
        let costs = Costs::default();
        let analysis = Analysis::new(self.observation(start), &costs);
        let Ok(work) = Work::new(&analysis) else { return (false, Vec::new()) };
        let others: Vec<usize> = load.placements().filter(|it| *it != start.placement).collect();
        let proposal = |placement: &usize| {
            Proposal::edited("other", analysis.after(), |after| {
                for silo in &analysis.silos.queues {
                    if let Some(cpu) = cpu_of(load, *placement, silo) {
                        put(after, silo, cpu);
                    }
                }
            })
        };
        let proposals: Vec<Proposal> = others.iter().map(proposal).collect();
        let settings = forecast(&work, 1.0, &proposals).settings;
        let Some((now, settings)) = settings.split_first() else { return (false, Vec::new()) };
        let of = |(other, it): (usize, &Expected)| Some((other, it.gain?, it.claim?));
        (is_near_full(now.fits.value), others.into_iter().zip(settings).filter_map(of).collect())
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
