//! Documents of JSON that a netsilo of any version may have written.

use netsilo_model::machine::schema::{Stamp, UnknownSchema};
use serde::de::DeserializeOwned;

/// Why a document could not be read.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// Its format is another one.
    #[error("it has {0}")]
    Schema(#[from] UnknownSchema),
    /// It is damaged, or no such document.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Reads a document of a format with the numbers 1 to `newest`. The number is checked first,
/// because the rest may have any form in another format.
pub fn parse<T: DeserializeOwned>(text: &[u8], newest: u32) -> Result<T, DocumentError> {
    serde_json::from_slice::<Stamp>(text)?.check(newest)?;
    Ok(serde_json::from_slice(text)?)
}
