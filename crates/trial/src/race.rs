//! A race between settings: which one to measure next, which ones are out, and which one won.
//!
//! Candidate 0 is the current state. In each round every remaining candidate is measured once, in
//! random order, so that drift affects all alike. Candidates are compared only by measurements of
//! the same rounds. Intervals are those of [`crate::stats::sequential`]: they are valid whenever
//! the race looks at them.
//!
//! - A candidate is dropped if the interval shows that it is worse than the current state or the
//!   leader, is as good as the leader, or cannot gain enough.
//! - A candidate that breaks a guard rail ([`rails`]) is reverted at once. The current state is
//!   measured directly after it. If that breaks the limit as well, something else was the cause,
//!   and the candidate stays, once. A candidate is also dropped if its windows in three consecutive
//!   rounds are worse than every window of the current state by more than is tolerated.
//! - The winner is the best remaining candidate whose interval shows a gain. The error rate applies
//!   to all candidates together.
//!
//! Nothing here knows a clock, a file or the kernel. The caller measures, and [`Race`] determines
//! what to measure.
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
