//! A machine that was observed: what a setting would do to the load that it had.
//!
//! The observation says what each queue's packets cost and who reads them ([`work`]). Settings are
//! those of a snapshot: [`placement`] says where each step of a packet runs under them. The
//! [`prices`] of what a setting adds or spares come from the parameters, or were measured on the
//! machine. A [`forecast`] is what was measured, plus what the model says of the new settings, less
//! what it says of the present ones: what both have in common need not be modelled.
//!
//! Under a setting that changes how packets are divided over queues there are other queues:
//! [`supposed`] is an observation of that.
//!
//! [`counts`] need no cost: they can be forecast where times mean nothing.
//!
//! A [`proposal`] also names the knobs that the model does not know.
//!
//! The load is taken as offered: it does not react to what it gets.

mod assumed;
pub mod claim;
pub(crate) mod completions;
pub mod counts;
pub(crate) mod expected;
pub mod forecast;
pub mod judge;
pub(crate) mod loads;
pub(crate) mod placement;
pub(crate) mod prices;
pub mod proposal;
pub mod received;
pub(crate) mod resplit;
pub(crate) mod supposed;
pub(crate) mod unknowns;
pub mod work;
