//! The knobs of a running kernel: finds them, reads them, writes them, and explains refusals in
//! plain words.
//!
//! A knob is found by its identity (action names, device path, start time), never by its number
//! alone. Nothing here depends on one knob: the table in `core` has the facts, and the only cases
//! here are transports.

mod access;
mod error;
mod find;
mod refusal;
mod text;

pub use access::{Reading, is_as_good, may_write, read, read_settled, write, write_back};
pub use error::{Hint, KnobError};
pub(crate) use find::CGROUPS;
pub use refusal::Doing;
pub use text::{parse, settles_as};
