//! The finding on packet filters that take most of the receive work of a busy CPU.

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::snapshot::stage_samples::ReceiveStage;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::cpu_work::CpuWork;
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;

/// From this share of the receive work on, the rules are worth a look.
const OF_THE_WORK: f64 = 0.3;

/// From this share of a CPU's time on.
const OF_THE_CPU: f64 = 0.1;

/// The CPU on which netfilter takes the most time.
pub(super) fn find(analysis: &Analysis<'_>, load: &[CpuWork<'_>]) -> Option<Finding> {
    let part = analysis.stage_share(&[ReceiveStage::Netfilter])?;
    let busiest = load.iter().max_by(|a, b| a.receiving().total_cmp(&b.receiving()))?;
    let taken = busiest.receiving() * part;
    if part < OF_THE_WORK || taken < OF_THE_CPU {
        return None;
    }
    let mut evidence: Vec<Evidence> = ReceiveStage::ALL
        .into_iter()
        .filter_map(|stage| Some((stage, analysis.stage_share(&[stage])?)))
        .filter(|(_, share)| *share > 0.0)
        .map(|(stage, share)| {
            let what = format!("{} of the receive work of all cpus", stage.label());
            Evidence::new(what, Measure::Share(share), "stack samples")
        })
        .collect();
    evidence.extend(busiest.evidence());
    let remedy = Remedy::new(
        "shorten the way through the rules: sets and maps instead of a rule for each address, \
         packets of known connections first (ct state established,related accept), a flowtable for \
         what is forwarded, notrack for what needs no connection tracking (nft list ruleset)",
        Gain::AtMost {
            measure: Measure::Share(taken),
            of: format!("cpu{}'s time", busiest.cpu),
            basis: "all time in netfilter, if its share is that of all cpus".into(),
        },
    );
    Some(Finding {
        id: FindingId::NetfilterHeavy,
        severity: if busiest.is_full() { Severity::Warning } else { Severity::Info },
        subject: busiest.subject(),
        title: format!(
            "netfilter takes {:.0}% of the receive work, about {:.0}% of its time",
            part * 100.0,
            taken * 100.0
        ),
        evidence,
        remedies: vec![remedy],
    })
}
