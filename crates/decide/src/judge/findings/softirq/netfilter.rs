//! The finding on packet filters that take a large part of the receive work of a CPU.

use netsilo_model::snapshot::stage_samples::ReceiveStage;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::cpu_work::CpuWork;
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;

/// From this share of the receive work on, the rules are worth a look.
const OF_THE_WORK: f64 = 0.25;

/// From this share of a CPU's time on.
const OF_THE_CPU: f64 = 0.05;

/// Netfilter takes a large part of a CPU's receive work, and the samples suffice to say so.
pub(super) fn find(load: &CpuWork<'_>) -> Option<Finding> {
    let share = load.stage(ReceiveStage::Netfilter)?;
    let taken = |share: f64| load.receiving() * share;
    if share.least < OF_THE_WORK || taken(share.least) < OF_THE_CPU {
        return None;
    }
    let source = format!("{} stack samples", load.samples());
    let part = |what: &str, share| Evidence::new(what, Measure::Share(share), source.clone());
    let mut evidence = vec![
        part("netfilter, of the receive work", share.likely),
        part("at least", share.least),
        part("at most", share.most),
    ];
    evidence.extend(load.evidence());
    let remedy = Remedy::new(
        "shorten the way through the rules: sets and maps instead of a rule for each address, \
         packets of known connections first (ct state established,related accept), a flowtable for \
         what is forwarded, notrack for what needs no connection tracking (nft list ruleset)",
        Gain::AtMost {
            measure: Measure::Share(taken(share.most)),
            of: format!("cpu{}'s time", load.cpu),
            basis: "all time in netfilter".into(),
        },
    );
    Some(Finding {
        id: FindingId::NetfilterHeavy,
        severity: if load.is_full() { Severity::Warning } else { Severity::Info },
        subject: load.subject(),
        title: format!(
            "netfilter takes {:.0}% to {:.0}% of its receive work, about {:.0}% of its time",
            share.least * 100.0,
            share.most * 100.0,
            taken(share.likely) * 100.0
        ),
        evidence,
        remedies: vec![remedy],
    })
}
