//! What the findings of a loss share: the counters that grew, the gain, the sysctls to raise.

use netsilo_model::change::{Change, Words, knobs};
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::drivers::loss_stage::LossStage;
use netsilo_model::snapshot::subject::Subject;

use crate::judge::evidence::{Evidence, Gain, Measure};
use crate::judge::ledger::Ledger;

/// Changes a sysctl. Empty if it was not read or already has the value.
pub(super) fn sysctl(analysis: &Analysis<'_>, name: &str, new: u64, reason: &str) -> Vec<Change> {
    // Other network namespaces show these of the whole machine, but do not write them.
    if name.starts_with("net.core.rmem_") && !analysis.after().is_of_first_netns() {
        return Vec::new();
    }
    analysis.change(knobs::Sysctl { name: name.to_owned() }, Words::new(&new.to_string()), reason)
}

/// The first number in a sysctl.
pub(super) fn sysctl_number(analysis: &Analysis<'_>, name: &str) -> Option<u64> {
    analysis.observation.after.net.sysctls.get(name)?.split_ascii_whitespace().next()?.parse().ok()
}

/// The counters of a subject at a stage that grew, as evidence.
pub(super) fn grown(ledger: &Ledger, place: LossStage, subject: &Subject) -> Vec<Evidence> {
    let stage = ledger.stage(place);
    let lines = stage.into_iter().flat_map(|stage| stage.grown_counters(subject));
    lines
        .map(|line| {
            let aside = line.aside.as_ref().map(|aside| format!(" ({aside})")).unwrap_or_default();
            Evidence::new(
                format!("{}{aside}", line.counter),
                Measure::Count(line.count.unwrap_or(0)),
                line.source.clone(),
            )
        })
        .collect()
}

pub(super) fn all_of(analysis: &Analysis<'_>, lost: u64, basis: &str) -> Gain {
    Gain::AtMost {
        measure: Measure::PerSecond(analysis.per_s(lost)),
        of: "packets lost".into(),
        basis: basis.into(),
    }
}
