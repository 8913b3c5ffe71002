//! Judges an analysis: what is lost ([`ledger`]), which remedy helps ([`verdict`]), what is wrong
//! and what to do ([`findings`], [`fix`]), what to try ([`candidates`]), why a CPU is busy
//! ([`why`]), and what limits netsilo itself ([`doctor`]).
//!
//! **What lives here**: everything that judges something as good or bad, with its [`evidence`]. It
//! may use the model crate, the judge of the crate predict, `place` and `plan`. A plan uses no
//! verdict; a verdict judges what a plan would write, and [`annotate`] adds it to the plan.
//! Reading, writing, formatting for a terminal, and the controller's memory of earlier windows do
//! not belong here: a judgement knows only one analysis.

pub mod annotate;
pub mod balance;
pub mod candidates;
pub mod disturbances;
pub mod doctor;
pub mod dropped;
pub mod evidence;
pub mod findings;
pub mod fix;
pub mod ledger;
mod limits;
mod moderation;
pub mod namespaces;
pub mod verdict;
pub mod why;
