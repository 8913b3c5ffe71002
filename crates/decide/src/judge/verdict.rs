//! Verdicts: the effect of each remedy on the load that a machine can carry (helps, hurts, no clear
//! change, unknown), with reasons.
//!
//! A verdict is the forecast of what netsilo would write for the remedy, in words: the judge of
//! `netsilo_predict` says what the load that fits would be ([`effect`]), and from which figures on
//! something is claimed. `docs/judging.md` says what is judged how.

mod effect;
mod interrupts;
mod look;
mod packet_steering;
mod poll;
mod proposals;
mod queues;
mod remedy_verdict;
mod software;

pub(in crate::judge) use effect::percent;
pub use look::Look;
pub use netsilo_predict::live::claim::Claim;
pub(crate) use packet_steering::{FLOW_ENTRIES, fewer_targets};
pub use proposals::rps_onto;
pub(crate) use proposals::{arfs, rfs, unsteerable, verdicts};
pub use remedy_verdict::{RemedyName, RemedyVerdict};
pub(crate) use software::below;

#[cfg(test)]
mod tests;
