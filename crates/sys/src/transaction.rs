//! ROOMDOC

pub mod apply;
pub mod compact;
pub mod guard;
pub mod journal;
pub mod kernel;
pub mod knob;
pub mod record;
pub mod undo;
pub mod verify;
