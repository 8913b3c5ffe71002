//! A wanted change that is held or released.

use super::hold::Hold;
use netsilo_model::change::Change;

/// A wanted change, with the reason if it is held.
pub(super) struct WantedChange<'p> {
    pub(super) change: &'p Change,
    pub(super) hold: Option<Hold>,
}
