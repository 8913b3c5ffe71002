//! [`Finding`]: one observed condition, with its evidence and remedies.

use netsilo_model::snapshot::subject::Subject;
use serde::{Deserialize, Serialize};

use crate::judge::evidence::{Evidence, Remedy};
use crate::judge::findings::id::FindingId;

/// One observed condition, with its evidence and remedies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// The remedies, the best first; empty for [`Severity::Ok`].
    pub remedies: Vec<Remedy>,
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
