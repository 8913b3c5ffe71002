//! Builders that the families share: remedies, evidence of a setting, the finding that nothing is
//! wrong.

use netsilo_model::change::Change;
use netsilo_model::derive::analysis::Poller;
use netsilo_model::snapshot::subject::Subject;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::finding::{Finding, Severity};
use crate::judge::findings::id::FindingId;

pub(super) use netsilo_model::derive::analysis::sum;

impl Remedy {
    /// Creates a remedy without cost, exception or changes.
    pub(super) fn new(what: impl Into<String>, gain: Gain) -> Self {
        Self {
            what: what.into(),
            gain,
            cost: None,
            not_when: None,
            changes: Vec::new(),
            interrupts_traffic: false,
        }
    }

    pub(super) fn costs(self, cost: impl Into<String>) -> Self {
        Self { cost: Some(cost.into()), ..self }
    }

    pub(super) fn not_when(self, not_when: impl Into<String>) -> Self {
        Self { not_when: Some(not_when.into()), ..self }
    }

    pub(super) fn by(self, changes: Vec<Change>) -> Self {
        Self { changes, ..self }
    }
}

/// The finding that a family found no problem; `None` if it had nothing to check.
pub(super) fn no_problem(id: FindingId, title: &str, evidence: Vec<Evidence>) -> Option<Finding> {
    let looked = !evidence.is_empty();
    looked.then(|| Finding {
        id,
        severity: Severity::Ok,
        subject: Subject::Machine,
        title: title.to_owned(),
        evidence,
        remedies: Vec::new(),
    })
}

/// Creates an evidence from a setting.
pub(super) fn setting(
    what: impl Into<String>,
    text: impl Into<String>,
    source: impl Into<String>,
) -> Evidence {
    Evidence::new(what, Measure::Text(text.into()), source)
}

/// Creates an evidence from the softirq time of a polling CPU.
pub(super) fn softirq_time(Poller { cpu, softirq, source }: Poller) -> Evidence {
    Evidence::new(format!("time of cpu{cpu} in softirqs"), Measure::Share(softirq), source)
}
