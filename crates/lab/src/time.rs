//! How long the lab waits.

use std::time::Duration;

/// How long `run` waits for a command: ten times as long as the slowest on an idle machine.
pub const RUN_TIMEOUT: Duration = Duration::from_secs(180);

/// How long a condition may take to become true on a slow, busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// How long a process may take to end after a request.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a working guest may take to run a command that does nothing.
pub(crate) const SIGN_OF_LIFE: Duration = Duration::from_secs(20);
