//! A race between settings: which one to measure next, which ones are out, and which one won.
//!
//! Candidate 0 is the current state. In each round every candidate that is still in is measured
//! once, in random order, so that drift affects all alike; a candidate is compared only with what
//! the same rounds measured. Intervals are those of [`crate::stats::sequential`]: valid whenever
//! the race looks at them.
//!
//! - A candidate is dropped when the interval shows that it is worse than the current state or
//!   than the leader, is as good as the leader, or cannot gain enough.
//! - A candidate that breaks a guard rail ([`rails`]) is taken back at once. The current state is
//!   measured directly after it: if that is beyond the limit as well, something else was the
//!   cause, and the candidate stays, once. One whose windows of three rounds in a row are worse
//!   than any of the current state, by more than is tolerated, is out as well.
//! - The winner is the best candidate that is still in and whose interval shows a gain, all
//!   candidates together at the stated error rate.
//!
//! Nothing here knows a clock, a file or the kernel: the caller measures, and [`Race`] says what.
//!
//! Files, each using only those before it: `rules`, `rails`, `standing`, `lane`, `record`,
//! `contest`.

mod contest;
mod lane;
pub mod rails;
mod record;
mod rules;
mod standing;

pub use contest::{Race, Turn};
pub use record::{RACE, RacePlan, RaceRecord, TurnEnd};
pub use rules::RaceRules;
pub use standing::{OutReason, RaceResult, Standing, Status};
