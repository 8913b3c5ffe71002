//! Predictions of settings from what netsilo observed under the first setting.

use std::path::Path;

use anyhow::{Context as _, Result};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_predict::live::forecast::forecast;
use netsilo_predict::live::proposal::Proposal;
use netsilo_predict::live::work::Work;
use netsilo_trial::stats::Estimate;
use serde::{Deserialize, Serialize};

use crate::experiment::record::{LoadRecord, middle};
use crate::predictions::draw::words;
use crate::veths::VethSetting;
use crate::wire::{NETDEV, cpus_of};

/// A setting with its prediction.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PredictedSetting {
    pub(super) setting: VethSetting,
    /// Relative change of the load that fits, compared with the current setting.
    pub(super) gain: Estimate,
    /// The resource that is saturated first.
    pub(super) limit: String,
}

/// A load with its settings, and the rates of each by round. The first setting is the current one.
#[derive(Debug, Clone)]
pub(super) struct PredictedLoad {
    pub(super) load: String,
    pub(super) settings: Vec<PredictedSetting>,
    pub(super) rates: Vec<Vec<f64>>,
}

impl PredictedLoad {
    pub(super) fn new(load: &LoadRecord) -> Result<Self> {
        let settings = load.settings.iter().map(|it| it.details()).collect::<Result<_>>()?;
        let rates = load.settings.iter().map(|it| it.rates.clone()).collect();
        Ok(Self { load: load.name.clone(), settings, rates })
    }

    /// The same with the predictions of the current model.
    pub(super) fn predicted_again(self, load: &LoadRecord, folder: &Path) -> Result<Self> {
        let start = load.starts.first().context("no bundle")?;
        let settings: Vec<VethSetting> =
            self.settings.iter().map(|it| it.setting.clone()).collect();
        Ok(Self { settings: predicted(&settings, &folder.join(&start.bundle))?, ..self })
    }

    /// The median rates by setting.
    pub(super) fn medians(&self) -> Vec<f64> {
        self.rates.iter().map(|rates| middle(rates)).collect()
    }
}

/// Predicts each setting from what netsilo observed under the first one.
pub(super) fn predicted(settings: &[VethSetting], bundle: &Path) -> Result<Vec<PredictedSetting>> {
    let observation = netsilo_sys::bundle::open(bundle)?;
    let costs = Costs::default();
    let analysis = Analysis::new(&observation, &costs);
    let work = Work::new(&analysis).context("cannot predict")?;
    let proposals: Vec<Proposal> =
        settings[1..].iter().map(|it| proposal(it, &observation.after)).collect();
    let forecast = forecast(&work, 1.0, &proposals);
    let predicted =
        settings.iter().zip(&forecast.settings).map(|(setting, expected)| PredictedSetting {
            setting: setting.clone(),
            gain: expected.gain.unwrap_or(Estimate { value: 0.0, low: 0.0, high: 0.0 }),
            limit: expected.limit.to_string(),
        });
    Ok(predicted.collect())
}

/// The machine with a setting.
fn proposal(setting: &VethSetting, before: &Snapshot) -> Proposal {
    Proposal::edited(words(setting), before, |after| {
        for netdev in after.netdevs.iter_mut().filter(|netdev| netdev.name == NETDEV) {
            for thread in netdev.napis.iter_mut().filter_map(|napi| napi.thread.as_mut()) {
                thread.cpus = setting.kthreads.iter().copied().map(CpuId).collect();
            }
            for queue in &mut netdev.rx_queues {
                queue.rps_cpus = Some(cpus_of(setting.rps));
            }
        }
    })
}
