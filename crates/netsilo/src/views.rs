//! Values as text: a plan, a report, findings, a status. A view formats what it is given.
//!
//! May use `tell` and `args`. A view reads nothing, decides nothing and computes no rate.

pub(crate) mod ab;
pub(crate) mod applied;
pub(crate) mod check;
pub(crate) mod difference;
pub(crate) mod disturbances;
pub(crate) mod doctor;
pub(crate) mod forecast;
pub(crate) mod ledger;
pub(crate) mod namespaces;
pub(crate) mod plan;
pub(crate) mod predict;
pub(crate) mod rss;
pub(crate) mod show;
pub(crate) mod stages;
pub(crate) mod status;
pub mod table;
pub(crate) mod transactions;
pub(crate) mod tune;
pub(crate) mod undone;
pub mod units;
pub(crate) mod verdict;
pub(crate) mod why;
