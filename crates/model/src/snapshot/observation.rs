//! FILEDOC

use serde::{Deserialize, Serialize};

use crate::snapshot::attribution::Attribution;
use crate::snapshot::host::Snapshot;

/// Two snapshots and what eBPF saw between them: the input of everything that is concluded.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// The first snapshot.
    pub before: Snapshot,
    /// The second, later one; decisions are made on its settings.
    pub after: Snapshot,
    /// Who polled, who consumed, between the two.
    pub attribution: Attribution,
}
