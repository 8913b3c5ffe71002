//! The knobs of a running kernel. Finds, reads and writes them, and explains refusals in plain
//! words.
//!
//! A knob is found by its identity (action names, device path, start time), never by its number
//! alone. Nothing here depends on one particular knob: the table in `netsilo-model` has the facts,
//! and this module distinguishes only the ways of access.

mod access;
mod error;
mod find;
mod napis;
mod refusal;
mod text;

pub(crate) use access::{Patience, put_back, read_now, refuse_waiting, settle};
pub use access::{Reading, is_as_good, may_write, read, read_settled, write, write_back};
pub use error::{Hint, KnobError};
pub use find::NapiOf;
pub(crate) use find::{CGROUPS, napi_of, other_name, present_netdev};
pub use napis::NapisDisabled;
pub(crate) use napis::{enabled as napis_enabled, is_up};
pub use refusal::Doing;
pub use text::{parse, settles_as};
