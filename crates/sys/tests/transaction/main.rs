//! The transaction on a fake root: every failing write, every crash, every order of events.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy lets only functions marked as tests do so"
)]

mod crash;
mod fake;
mod irqbalance;
mod laws;
mod remedies;
mod story;
mod waiting;
