//! Runs all families on an analysis: the result of `netsilo check`.

use std::collections::BTreeMap;
use std::time::Duration;

use netsilo_model::derive::analysis::Analysis;
use serde::{Deserialize, Serialize};

use crate::judge::findings::bonds::Bonds;
use crate::judge::findings::finding::Finding;
use crate::judge::findings::judged::Judged;
use crate::judge::findings::{
    cloud, hardware, loss, offloads, placement, polling, remedies, rss, rss_ignored, rss_skew,
    softirq, taps, transmit, tuning, tunnels,
};
use crate::judge::ledger::Ledger;
use crate::judge::verdict::RemedyVerdict;

/// The families, in the order in which they are evaluated. Losses come after their possible causes.
const FAMILIES: &[fn(&Judged<'_>) -> Vec<Finding>] = &[
    placement::find,
    taps::find,
    softirq::find,
    rss::find,
    rss_skew::find,
    rss_ignored::find,
    tunnels::find,
    hardware::find,
    offloads::find,
    transmit::find,
    tuning::find,
    cloud::find,
    polling::find,
    loss::find,
    remedies::find,
];

/// The result of `netsilo check`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Check {
    /// The host's name.
    pub hostname: String,
    /// The kernel's release.
    pub release: String,
    /// Time between the two snapshots.
    pub interval: Duration,
    /// The findings, most severe first. Among equally severe ones, the most worthwhile come first;
    /// among equally worthwhile ones of one kind, those with the highest count.
    pub findings: Vec<Finding>,
    /// Where packets were lost between the wire and the reader.
    #[serde(default)]
    pub ledger: Ledger,
    /// The effect of each remedy on each netdev with receive traffic.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verdicts: Vec<RemedyVerdict>,
    /// Where the distances between CPUs come from, in words.
    #[serde(default)]
    pub distances: String,
}

/// Derives all findings, the loss ledger and the verdicts.
pub fn check(analysis: &Analysis<'_>) -> Check {
    let judged = Judged::new(analysis);
    let bonds = Bonds::new(analysis);
    let findings = FAMILIES.iter().flat_map(|find| find(&judged)).collect();
    let mut findings = bonds.findings(findings);
    // Kinds of equal worth stay in the order of their families.
    let mut first = BTreeMap::new();
    for (index, finding) in findings.iter().enumerate() {
        first.entry(finding.id).or_insert(index);
    }
    findings.sort_by(|a, b| {
        let kinds = || first.get(&a.id).cmp(&first.get(&b.id));
        let severities = b.severity.cmp(&a.severity);
        let worths = || b.worth().total_cmp(&a.worth());
        severities.then_with(worths).then_with(kinds).then_with(|| b.count().cmp(&a.count()))
    });
    let machine = &analysis.after().machine;
    Check {
        hostname: machine.hostname.clone(),
        release: machine.release.clone(),
        interval: analysis.rates.elapsed,
        findings,
        ledger: judged.ledger,
        verdicts: bonds.verdicts(judged.verdicts),
        distances: analysis.costs.source_in_words(),
    }
}
