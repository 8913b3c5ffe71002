//! ROOMDOC

pub(crate) mod ab;
pub(crate) mod apply;
pub(crate) mod calibrate;
pub(crate) mod capture;
pub(crate) mod check;
pub(crate) mod check_config;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod mask;
pub(crate) mod pin;
pub(crate) mod plan;
pub(crate) mod rss;
pub(crate) mod show;
pub(crate) mod status;
pub(crate) mod undo;
pub(crate) mod why;
