//! The knobs of a running kernel: finds them, reads them, writes them, and explains refusals in
//! plain words.
//!
//! A knob is found by its identity (action names, device path, start time), never by its number
//! alone. Nothing here depends on one knob: the table in `core` has the facts, and the only cases
//! here are transports.

mod access;
mod error;
mod find;
mod napis;
mod refusal;
mod text;

pub use access::{Reading, is_as_good, may_write, read, read_settled, write, write_back};
pub(crate) use access::{put_back, read_now, refuse_waiting, settle};
pub use error::{Hint, KnobError};
pub use find::NapiOf;
pub(crate) use find::{CGROUPS, napi_of, present_netdev};
pub use napis::NapisDisabled;
pub(crate) use napis::{enabled as napis_enabled, is_up};
pub use refusal::Doing;
pub use text::{parse, settles_as};
