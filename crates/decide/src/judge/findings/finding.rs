//! [`Finding`]: one observed condition, with its evidence and remedies.

use netsilo_model::snapshot::subject::Subject;
use serde::{Deserialize, Serialize};

use crate::judge::evidence::{Evidence, Gain, Measure, Remedy};
use crate::judge::findings::id::FindingId;

/// One observed condition, with its evidence and remedies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Finding {
    /// The kind of finding.
    pub id: FindingId,
    /// The severity.
    pub severity: Severity,
    /// The object it is about (`eth0`, `cpu3`, `eth0 rx-0`, `machine`).
    pub subject: Subject,
    /// The condition, in one line.
    pub title: String,
    /// The measurements that support it.
    pub evidence: Vec<Evidence>,
    /// The remedies, best first. Empty for [`Severity::Ok`].
    pub remedies: Vec<Remedy>,
}

impl Finding {
    /// The remedy that `plan --fix` writes: the first one that netsilo can write.
    pub fn writable(&self) -> Option<&Remedy> {
        self.remedies.iter().find(|remedy| !remedy.changes.is_empty())
    }

    /// The largest share of time or data that a remedy can gain. 0 if no measurement limits it.
    ///
    /// Other gains (packets, connections) have no common unit with a share.
    pub(crate) fn worth(&self) -> f64 {
        let share = |remedy: &Remedy| match remedy.gain {
            Gain::AtMost { measure: Measure::Share(share), .. } => share,
            Gain::Forecast { load_that_fits: gain, .. } => gain.value,
            _ => 0.0,
        };
        self.remedies.iter().map(share).fold(0.0, f64::max)
    }

    /// What was counted first of its evidence, such as lost packets; 0 if that is no count.
    pub(crate) fn count(&self) -> u64 {
        match self.evidence.first().map(|it| &it.measure) {
            Some(Measure::Count(count)) => *count,
            _ => 0,
        }
    }
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Checked, without a problem.
    Ok,
    /// A risk or an opportunity without a measured cost.
    Info,
    /// A problem with a measured cost.
    Warning,
    /// Packets are lost, results are wrong, or a CPU is at its limit.
    Critical,
}

impl Severity {
    /// All severities, the lowest first.
    pub const ALL: [Self; 4] = [Self::Ok, Self::Info, Self::Warning, Self::Critical];

    /// The name as it is typed and printed.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worth_is_the_largest_share_of_a_remedy() {
        let remedy = |gain| Remedy {
            what: String::new(),
            gain,
            cost: None,
            not_when: None,
            changes: Vec::new(),
            interrupts_traffic: false,
        };
        let at_most = |measure| Gain::AtMost { measure, of: String::new(), basis: String::new() };
        let finding = |gains: Vec<Gain>| Finding {
            id: FindingId::NicDrops,
            severity: Severity::Warning,
            subject: Subject::Machine,
            title: String::new(),
            evidence: Vec::new(),
            remedies: gains.into_iter().map(remedy).collect(),
        };
        let gains = vec![
            Gain::Unknown(String::new()),
            at_most(Measure::Share(0.2)),
            at_most(Measure::Share(0.5)),
            at_most(Measure::PerSecond(900.0)),
        ];
        assert_eq!(finding(gains).worth(), 0.5);
        assert_eq!(finding(Vec::new()).worth(), 0.0);
    }
}
