//! What a daemon needs besides reading and writing: events, signals, hints and its own cost.
//!
//! Uses [`files`](crate::files) and [`transaction`](crate::transaction), whose lock makes it the
//! only instance. The daemon's decisions are in `netsilo-decide`, its loop is in `netsilo`.

pub mod events;
pub mod hints;
pub mod instance;
pub mod self_cost;
pub mod waiter;
