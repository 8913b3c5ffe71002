//! ROOMDOC

pub(crate) mod look;
