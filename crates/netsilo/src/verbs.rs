//! The verbs: one file each, with its arguments and a `run` that reads, decides, and shows or
//! writes.
//!
//! May use `tell`, `args`, `views`, `temporary_changes`, and the daemon's configuration. Code that
//! two verbs share belongs in one of these modules.

pub(crate) mod ab;
pub(crate) mod apply;
pub(crate) mod calibrate;
pub mod capture;
pub(crate) mod check;
pub(crate) mod confirm;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod export;
pub mod guard;
pub(crate) mod isolate;
pub(crate) mod keep;
pub(crate) mod pin;
pub(crate) mod plan;
pub(crate) mod predict;
pub(crate) mod rss;
pub(crate) mod show;
pub(crate) mod status;
pub(crate) mod undo;
