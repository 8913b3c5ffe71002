//! Progress of a load, and the callback that receives it.

use std::ops::ControlFlow;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Progress, about once a second and when counting begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tick {
    /// Time counted so far; `None` while warming up.
    pub counted: Option<Duration>,
    /// Transactions, or bytes sent, in the last second.
    pub last_second: u64,
}

/// Receives the progress of a load. Break ends the load.
pub type Watch<'a> = dyn FnMut(Tick) -> ControlFlow<()> + 'a;
