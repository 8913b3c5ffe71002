//! The data of one interval: the values that the pages draw.

use std::collections::BTreeMap;

use netsilo_decide::judge::findings::{Check, check};
use netsilo_decide::judge::ledger::queue_drops;
use netsilo_decide::report::Report;
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::machine::topology::Topology;
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_model::snapshot::observation::Observation;
use netsilo_model::snapshot::subject::Subject;

use crate::tell::status::Status;

/// The data of one interval.
#[derive(Debug)]
pub(crate) struct Window {
    /// What was read and counted. A plan can be made from it.
    pub(crate) observation: Observation,
    /// The report of `netsilo show`.
    pub(crate) report: Report,
    /// The findings of `netsilo check`.
    pub(crate) check: Check,
    /// Packets per second that each rx queue dropped, of the queues whose drops the driver counts.
    pub(crate) drops: BTreeMap<Subject, f64>,
    /// The daemon's status, or why there is none.
    pub(crate) daemon: Result<Status, String>,
}

impl Window {
    /// Derives the report and the findings.
    pub(crate) fn new(
        observation: Observation,
        costs: &Costs,
        daemon: Result<Status, String>,
    ) -> Self {
        let analysis = Analysis::new(&observation, costs);
        let (report, check) = (Report::of(&analysis), check(&analysis));
        let drops_of = |netdev: &Netdev| {
            let subject = |(queue, rate)| (Subject::Queue(netdev.name.clone(), queue), rate);
            queue_drops(&analysis, netdev).into_iter().map(subject).collect::<Vec<_>>()
        };
        let drops = analysis.after().netdevs.iter().flat_map(drops_of).collect();
        Self { observation, report, check, drops, daemon }
    }

    /// The machine's topology.
    pub(crate) fn topology(&self) -> &Topology {
        &self.observation.after.topology
    }
}
