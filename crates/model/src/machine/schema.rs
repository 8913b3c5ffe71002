//! The number of a document's format, and the netsilo that wrote the document.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The version of this netsilo.
pub const NETSILO: &str = env!("CARGO_PKG_VERSION");

/// What a document says of its format. It is read before the rest, which may have any form in
/// another format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// The number; `None` in what a person wrote.
    #[serde(alias = "version")]
    pub schema: Option<u32>,
    /// The version of the netsilo that wrote it; `None` in what a person wrote, and in older
    /// documents of some formats.
    pub netsilo: Option<String>,
}

/// This netsilo cannot read the format of a document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct UnknownSchema {
    found: u32,
    written_by: Option<String>,
    newest: u32,
}

impl Stamp {
    /// Fails unless this netsilo, which knows the format's numbers 1 to `newest`, reads the
    /// document.
    pub fn check(&self, newest: u32) -> Result<(), UnknownSchema> {
        let found = self.schema.unwrap_or(newest);
        if (1..=newest).contains(&found) {
            return Ok(());
        }
        let written_by = self.netsilo.clone().filter(|it| is_version(it));
        Err(UnknownSchema { found, written_by, newest })
    }
}

/// Whether a text, which may come from a stranger, looks like a version.
fn is_version(text: &str) -> bool {
    let is_ours = |it: u8| it.is_ascii_alphanumeric() || b".+-".contains(&it);
    (1..=32).contains(&text.len()) && text.bytes().all(is_ours)
}

impl fmt::Display for UnknownSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { found, written_by, newest } = self;
        match written_by {
            _ if found < newest => write!(f, "schema {found}, which no netsilo wrote"),
            Some(version) => write!(
                f,
                "schema {found}, written by netsilo {version}; this is {NETSILO}, which reads up \
                 to {newest}: use netsilo {version} or newer"
            ),
            None => write!(
                f,
                "schema {found}; this is netsilo {NETSILO}, which reads up to {newest}: use a \
                 newer netsilo"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(document: &str) -> Option<String> {
        let stamp: Stamp = serde_json::from_str(document).unwrap();
        stamp.check(3).err().map(|it| it.to_string())
    }

    #[test]
    fn a_newer_schema_is_refused_with_the_version_that_reads_it() {
        let this = NETSILO;
        assert_eq!(
            refused(r#"{"schema": 9, "netsilo": "0.4.0", "x": []}"#).unwrap(),
            format!(
                "schema 9, written by netsilo 0.4.0; this is {this}, which reads up to 3: use \
                 netsilo 0.4.0 or newer"
            )
        );
        let unknown =
            format!("schema 9; this is netsilo {this}, which reads up to 3: use a newer netsilo");
        assert_eq!(refused(r#"{"version": 9}"#).unwrap(), unknown);
        assert_eq!(refused(r#"{"schema": 9, "netsilo": "\u001b[31m"}"#).unwrap(), unknown);
    }

    #[test]
    fn known_schemas_are_read_and_a_person_need_not_number_what_they_write() {
        for known in [r#"{"schema": 1}"#, r#"{"schema": 3, "netsilo": "9"}"#, "{}"] {
            assert_eq!(refused(known), None, "{known}");
        }
        assert_eq!(refused(r#"{"schema": 0}"#).unwrap(), "schema 0, which no netsilo wrote");
    }
}
