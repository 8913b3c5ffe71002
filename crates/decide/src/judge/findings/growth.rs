//! What the audit's families ask of all that was seen: counters that grew, rates, shares; and how
//! their findings are made.

use netsilo_model::change::Change;

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::{Finding, FindingId, Severity};

pub(super) use netsilo_model::derive::analysis::sum;

impl Remedy {
    /// Something to do, of which nothing else is known yet.
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

/// That a family looked and found all well; `None` where it had nothing to look at.
pub(super) fn all_well(id: FindingId, title: &str, evidence: Vec<Evidence>) -> Option<Finding> {
    let looked = !evidence.is_empty();
    looked.then(|| Finding {
        id,
        severity: Severity::Ok,
        subject: "machine".into(),
        title: title.to_owned(),
        evidence,
        remedies: Vec::new(),
    })
}

/// A setting as evidence.
pub(super) fn setting(
    what: impl Into<String>,
    text: impl Into<String>,
    source: impl Into<String>,
) -> Evidence {
    Evidence::new(what, Measure::Text(text.into()), source)
}
