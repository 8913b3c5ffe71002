//! How many settings this process has written. Values that were read before the latest write may be
//! outdated.

use std::sync::atomic::{AtomicU64, Ordering};

static WRITES: AtomicU64 = AtomicU64::new(0);

/// The number of settings written so far.
pub(crate) fn count() -> u64 {
    WRITES.load(Ordering::Acquire)
}

/// Counts a setting that was just written.
pub(crate) fn add_one() {
    WRITES.fetch_add(1, Ordering::AcqRel);
}
