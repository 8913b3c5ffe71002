//! The measured outcomes that the daemon follows, read again whenever some come or go.

use netsilo_decide::plan::find_outcome::FoundOutcome;
use netsilo_model::derive::analysis::Analysis;
use netsilo_sys::files::root::Root;
use netsilo_sys::outcomes::ids;

use crate::args::outcomes::{KnownOutcomes, OutcomesDir};

/// The outcomes of the folder as it was read last.
#[derive(Debug, Default)]
pub(crate) struct FollowedOutcomes {
    /// The files' names; `None` before the first reading, and while nothing is followed.
    ids: Option<Vec<String>>,
    known: Option<KnownOutcomes>,
}

impl FollowedOutcomes {
    /// Reads the folder again if files came or went; `None` if it is as before, else notes on what
    /// cannot be used.
    pub(crate) fn refresh(&mut self, dir: &OutcomesDir, root: &Root) -> Option<Vec<String>> {
        // why a folder cannot be listed is told when it is read
        let ids = Some(ids(dir.path()).unwrap_or_default());
        if self.ids == ids {
            return None;
        }
        self.ids = ids;
        let (known, notes) = match dir.known(root.clone()) {
            Ok((known, notes)) => (Some(known), notes),
            Err(error) => (None, vec![format!("no measured outcome is followed: {error:#}")]),
        };
        self.known = known;
        Some(notes)
    }

    /// Follows nothing; returns whether something was.
    pub(crate) fn clear(&mut self) -> bool {
        self.known = None;
        self.ids.take().is_some()
    }

    /// What the outcomes say of an observation.
    pub(crate) fn find(&self, analysis: &Analysis<'_>) -> FoundOutcome<'_> {
        self.known.as_ref().map_or(FoundOutcome::Nothing, |known| known.find(analysis))
    }
}
