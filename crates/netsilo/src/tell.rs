//! ROOMDOC

pub(crate) mod exit;
pub(crate) mod out;
