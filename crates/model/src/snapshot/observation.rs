//! Two snapshots with the measurements between them.

use serde::{Deserialize, Serialize};

use crate::snapshot::attribution::Attribution;
use crate::snapshot::host::Snapshot;

/// The newest schema of an observation's JSON. It is increased when a field changes its meaning or
/// is removed.
pub const SCHEMA: u32 = 1;

/// Two snapshots and the eBPF measurements between them: the input of all analysis.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// The first snapshot.
    pub before: Snapshot,
    /// The second, later snapshot. Decisions use its settings.
    pub after: Snapshot,
    /// NAPI polls and consumers measured between the two snapshots.
    pub attribution: Attribution,
}

impl Observation {
    /// Adds the observation that began where this one ended. See [`Attribution::append`].
    pub fn append(&mut self, next: Self) {
        self.after = next.after;
        self.attribution.append(next.attribution);
    }
}

/// An observation as JSON between programs. `capture --ndjson` prints it, `plan --ndjson` reads it.
///
/// The fields of [`Observation`], with a version. They are repeated here because `serde(flatten)`
/// cannot read maps whose keys are numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ObservationDocument {
    /// The schema that the writer used.
    pub schema: u32,
    before: Snapshot,
    after: Snapshot,
    attribution: Attribution,
}

impl ObservationDocument {
    /// Adds the newest schema to an observation.
    pub fn new(observation: Observation) -> Self {
        let Observation { before, after, attribution } = observation;
        Self { schema: SCHEMA, before, after, attribution }
    }

    /// The observation.
    pub fn observation(self) -> Observation {
        let Self { before, after, attribution, .. } = self;
        Observation { before, after, attribution }
    }
}
