//! What netsilo decides: from an observation it makes findings, verdicts, plans, reports and the
//! writes of the daemon.
//!
//! Everything here is pure: values in, values out; no files, no clock, no environment, no
//! randomness. The input is one [`Analysis`](netsilo_model::derive::analysis::Analysis), which the
//! caller derives once. No function here derives rates or silos of an observation again. (The
//! controller also analyses hypothetical observations, with other settings.)
//!
//! The modules, in the order in which they may use each other: [`place`] (a CPU for each vector),
//! [`plan`] (changes that reach a goal), [`judge`] (ledger, verdicts, findings, explanations),
//! [`control`] (window after window), [`report`] (one value for all views). The crate may use
//! `model` and the statistics of `trial`. The kernel edge (`sys`), experiments and text for
//! terminals do not belong here.

pub mod control;
pub mod judge;
pub mod place;
pub mod plan;
pub mod report;
