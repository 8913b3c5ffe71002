//! A race between settings: which one to measure next, which ones are out, and which one won.
//!
//! Candidate 0 is the current state. In each round every remaining candidate is measured once, in
//! random order, so that drift affects all alike. Candidates are compared only by measurements of
//! the same rounds.
//!
//! - After some rounds the worse half of the candidates is dropped by their estimates, until one is
//!   left. A candidate that is far behind the leader is dropped before.
//! - The last one has a final: pairs of windows with the current state. It wins if the interval of
//!   these pairs shows a gain. They did not choose the candidate, so all candidates need not share
//!   the error rate. Intervals are those of [`crate::stats::sequential`]: they are valid whenever
//!   the race looks at them.
//! - If the final shows no gain, the best of the others has one, at the rest of the error rate.
//! - A candidate that breaks a guard rail ([`rails`]) is reverted at once. The current state is
//!   measured directly after it. If that breaks the limit as well, something else was the cause,
//!   and the candidate stays, once. A candidate is also dropped if its windows in three consecutive
//!   rounds are worse than every window of the current state by more than is tolerated.
//!
//! Nothing here knows a clock, a file or the kernel. The caller measures, and [`Race`] determines
//! what to measure.
//!
//! Files, each using only those before it: `rules`, `rails`, `standing`, `record`, `lane`,
//! `contest`.

mod contest;
mod lane;
pub mod rails;
mod record;
mod rules;
mod standing;

pub use contest::{Race, Turn};
pub use record::{Counts, RACE, RACE_SCHEMA, RacePlan, RaceRecord, TurnEnd};
pub use rules::RaceRules;
pub use standing::{CountChange, OutReason, Outlook, RaceResult, Standing, Status};
