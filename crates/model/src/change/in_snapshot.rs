//! A snapshot as it would be after some changes.

use crate::change::one_change::Change;
use crate::snapshot::host::Snapshot;

/// The snapshot after these changes. Counters and everything else stay. A change of a knob that the
/// snapshot does not have is ignored.
pub fn apply_to(snapshot: &Snapshot, changes: &[Change]) -> Snapshot {
    let mut after = snapshot.clone();
    apply_in(&mut after, changes);
    after
}

/// Makes a snapshot what it is after these changes.
pub fn apply_in(snapshot: &mut Snapshot, changes: &[Change]) {
    for change in changes {
        change.target.knob().set_in(snapshot, &change.new);
    }
}
