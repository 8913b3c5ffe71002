//! ROOMDOC

pub mod annotate;
pub mod evidence;
pub mod findings;
pub mod fix;
pub mod ledger;
pub mod verdict;
pub mod why;
