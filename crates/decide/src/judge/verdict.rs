//! Verdicts: the effect of each remedy on the receive work of each netdev (helps, hurts, no clear
//! change, unknown), with reasons.
//!
//! A verdict compares the bottlenecks ([`bottleneck`]) now and after the remedy has moved and added
//! work. Unmeasured quantities are assumed in three scenarios, from the worst to the best that fits
//! the measurements ([`work`]). A remedy helps if it helps in the worst one, and hurts if it cannot
//! help in the best one. `docs/verdicts.md` has the formulas and sources.

mod bottleneck;
mod effect;
mod interrupts;
mod packet_steering;
mod poll;
mod proposals;
mod queues;
mod remedy_verdict;
mod rps_in_effect;
mod software;
mod work;

pub(in crate::judge) use interrupts::selects_a_mode;
pub(crate) use proposals::{FLOW_ENTRIES, Proposal, proposals};
pub use proposals::{arfs, rfs, rps_onto, unsteerable};
pub use remedy_verdict::{Outcome, RemedyName, RemedyVerdict};
pub(crate) use software::below;

#[cfg(test)]
mod tests;
