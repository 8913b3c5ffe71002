//! Writes to the kernel with a journal: apply, verify, undo, and the guard, which undoes
//! automatically.
//!
//! Uses [`files`](crate::files) and [`ethtool`](crate::ethtool). The old value of each knob is in
//! the journal before the new one is written, and undo restores only values that are still
//! netsilo's own. `netsilo-decide` decides what to write, and why.

pub mod apply;
pub mod attached;
pub mod bounded;
pub mod compact;
pub mod guard;
pub mod journal;
pub mod kernel;
pub mod knob;
pub(crate) mod lock;
pub mod queues;
pub mod receiving;
pub mod record;
mod scheduler;
pub mod undo;
pub mod verify;
