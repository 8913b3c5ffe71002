//! ROOMDOC

pub(crate) mod ab;
pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod plan;
pub(crate) mod rss;
pub(crate) mod show;
pub(crate) mod stages;
pub(crate) mod status;
pub(crate) mod units;
pub(crate) mod verdict;
pub(crate) mod why;
