//! Events, signals, hints and the cost of the daemon itself: what a daemon needs besides reading
//! and writing.
//!
//! Uses [`files`](crate::files) and [`transaction`](crate::transaction). A lock makes the daemon
//! the only instance. Its decisions are in `netsilo-decide`, its loop is in `netsilo`.

pub mod events;
pub mod hints;
pub mod instance;
pub mod self_cost;
pub mod waiter;
