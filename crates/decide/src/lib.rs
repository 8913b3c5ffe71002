//! What netsilo decides: from an observation to findings, verdicts, plans, reports and the writes
//! of the daemon.
//!
//! All of it is pure: values in, values out; no files, no clock, no environment, no randomness. The
//! input is one [`Analysis`](netsilo_model::derive::analysis::Analysis), derived once by the
//! caller; no function here derives rates or silos of an observation again. (The controller also
//! analyses observations that it only imagines, with other settings.)
//!
//! The rooms, in the order in which they may use each other: [`place`] (a CPU for each vector),
//! [`plan`] (changes that reach a goal), [`judge`] (ledger, verdicts, findings, explanations),
//! [`control`] (window after window), [`report`] (one value for all views). The crate may use
//! `model` and the statistics of `trial`. The kernel edge (`sys`), experiments and text for
//! terminals must not come in.

pub mod control;
pub mod judge;
pub mod place;
pub mod plan;
pub mod report;
