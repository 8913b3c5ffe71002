//! What the files under test import from `tell`.

#[path = "../../../crates/netsilo/src/tell/words.rs"]
pub(crate) mod words;
