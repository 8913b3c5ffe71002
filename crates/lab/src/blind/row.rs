//! One load: predictions, and what was measured, as a file.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::snapshot::host::Snapshot;
use netsilo_predict::interval::Draws;
use netsilo_predict::live::forecast::forecast;
use netsilo_predict::live::proposal::Proposal;
use netsilo_predict::live::work::Work;
use netsilo_predict::parameters::Table;
use netsilo_stats::{Estimate, median};
use serde::{Deserialize, Serialize};

use crate::blind::draw::{RandomLoad, VethSetting};
use crate::wire::{NETDEV, cpus_of};

/// Draws of the parameters for each interval.
const DRAWS: usize = 200;

/// A load with its settings; the first is the present one.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    pub(super) load: RandomLoad,
    pub(super) settings: Vec<PredictedSetting>,
    /// Absent until all of it was measured.
    pub(super) measured: Option<Measured>,
}

/// A setting with its prediction.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PredictedSetting {
    pub(super) setting: VethSetting,
    /// Relative change of the load that fits, against the present setting.
    pub(super) gain: Estimate,
    /// What is full first.
    pub(super) limit: String,
}

/// What was measured, by setting and round.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Measured {
    /// Transactions or bytes per second.
    pub(super) rates: Vec<Vec<f64>>,
}

impl Measured {
    pub(super) fn new(settings: usize) -> Self {
        Self { rates: vec![Vec::new(); settings] }
    }
}

impl Row {
    /// Predicts each setting from what netsilo saw under the first one.
    pub(super) fn predicted(
        load: RandomLoad,
        settings: &[VethSetting],
        bundle: &Path,
    ) -> Result<Self> {
        let observation = netsilo_sys::bundle::open(bundle)?;
        let costs = Costs::default();
        let analysis = Analysis::new(&observation, &costs);
        let work = Work::new(&analysis).context("cannot predict")?;
        let proposals: Vec<Proposal> =
            settings[1..].iter().map(|it| proposal(*it, &observation.after)).collect();
        let table = Table::built_in().map_err(anyhow::Error::msg)?;
        let forecast = forecast(&work, 1.0, &proposals, &Draws::new(&table, DRAWS, 1));
        let predicted =
            settings.iter().zip(&forecast.settings).map(|(setting, expected)| PredictedSetting {
                setting: *setting,
                gain: expected.gain.unwrap_or(Estimate { value: 0.0, low: 0.0, high: 0.0 }),
                limit: expected.limit.to_string(),
            });
        Ok(Self { load, settings: predicted.collect(), measured: None })
    }

    pub(super) fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {path:?}"))?;
        serde_json::from_str(&text).with_context(|| format!("{path:?} is not as written"))
    }

    /// Writes it, down to the disk.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        write_json(self, path)
    }

    /// The median rates by setting.
    pub(super) fn rates(&self) -> Vec<f64> {
        let rates = self.measured.iter().flat_map(|it| &it.rates);
        rates.map(|rates| median(rates).unwrap_or(f64::NAN)).collect()
    }
}

/// Writes it as JSON, down to the disk.
pub(super) fn write_json(row: &impl Serialize, path: &Path) -> Result<()> {
    let write = || -> Result<()> {
        let mut file = File::create(path)?;
        file.write_all(serde_json::to_string_pretty(row)?.as_bytes())?;
        Ok(file.sync_all()?)
    };
    write().with_context(|| format!("cannot write {path:?}"))
}

/// The machine with a setting.
fn proposal(setting: VethSetting, before: &Snapshot) -> Proposal {
    let mut proposal = Proposal::new(setting.name(), before, &[]);
    let netdevs = proposal.after.netdevs.iter_mut();
    for netdev in netdevs.filter(|netdev| netdev.name == NETDEV) {
        for thread in netdev.napis.iter_mut().filter_map(|napi| napi.thread.as_mut()) {
            thread.cpus = CpuSet::from_cpu(CpuId(setting.poll));
        }
        for queue in &mut netdev.rx_queues {
            queue.rps_cpus = Some(cpus_of(setting.rps));
        }
    }
    proposal
}
