//! The measured outcomes that the daemon follows. They are read again whenever files come or go.

use netsilo_decide::plan::find_outcome::FoundOutcome;
use netsilo_model::derive::analysis::Analysis;
use netsilo_sys::files::root::Root;
use netsilo_sys::outcomes::ids;

use crate::args::outcomes::{KnownOutcomes, OutcomesDir};
use crate::tell::exit::in_words;

/// The outcomes of the folder at the last read.
#[derive(Debug, Default)]
pub(crate) struct FollowedOutcomes {
    /// The names of the files; `None` before the first read, and while nothing is followed.
    ids: Option<Vec<String>>,
    known: Option<KnownOutcomes>,
}

impl FollowedOutcomes {
    /// Reads the folder again if files came or went. Returns `None` if nothing changed, else notes
    /// on what cannot be used.
    pub(crate) fn refresh(&mut self, dir: &OutcomesDir, root: &Root) -> Option<Vec<String>> {
        // if the folder cannot be listed, reading it reports why
        let ids = Some(ids(dir.path()).unwrap_or_default());
        if self.ids == ids {
            return None;
        }
        self.ids = ids;
        let (known, notes) = match dir.known(root.clone()) {
            Ok((known, notes)) => (Some(known), notes),
            Err(error) => {
                (None, vec![format!("no measured outcome is followed: {}", in_words(&error))])
            }
        };
        self.known = known;
        Some(notes)
    }

    /// Stops following outcomes. Returns whether any was followed.
    pub(crate) fn clear(&mut self) -> bool {
        self.known = None;
        self.ids.take().is_some()
    }

    /// What the outcomes show about an observation.
    pub(crate) fn find(&self, analysis: &Analysis<'_>) -> FoundOutcome<'_> {
        self.known.as_ref().map_or(FoundOutcome::Nothing, |known| known.find(analysis))
    }
}
