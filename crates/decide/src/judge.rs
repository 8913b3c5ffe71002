//! Judges an analysis: what is lost ([`ledger`]), which remedy helps ([`verdict`]), what is wrong
//! and what to do ([`findings`], [`fix`]), what to try ([`candidates`]), why a CPU is busy
//! ([`why`]), and what limits netsilo itself ([`doctor`]).
//!
//! **What lives here**: everything that says good or bad, with its [`evidence`]. It may use the
//! model crate, `place` and `plan`. A verdict makes no plan and a plan asks for no verdict;
//! [`annotate`] alone brings both together, and [`candidates`] collects the plans of both. Reading,
//! writing and formatting for a terminal must not come in, nor the controller's memory of earlier
//! windows: a judgement knows one analysis.

pub mod annotate;
pub mod candidates;
pub mod doctor;
pub mod evidence;
pub mod findings;
pub mod fix;
pub mod ledger;
mod limits;
pub mod verdict;
pub mod why;
