//! Two snapshots with the measurements between them.

use serde::{Deserialize, Serialize};

use crate::snapshot::attribution::Attribution;
use crate::snapshot::host::Snapshot;

/// Two snapshots and the eBPF measurements between them: the input of all analysis.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// The first snapshot.
    pub before: Snapshot,
    /// The second, later one; decisions use its settings.
    pub after: Snapshot,
    /// NAPI polls and consumers measured between the two snapshots.
    pub attribution: Attribution,
}

impl Observation {
    /// Adds the observation that began where this one ended; see [`Attribution::append`].
    pub fn append(&mut self, next: Self) {
        self.after = next.after;
        self.attribution.append(next.attribution);
    }
}
