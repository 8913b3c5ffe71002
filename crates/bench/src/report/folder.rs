//! Reads the folder of an experiment for a report.

use std::path::Path;

use anyhow::{Context as _, Result};
use netsilo_model::parse::sanitize::escaped;
use netsilo_trial::experiment::{Experiment, RECORDS, Record};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::folder::{self, RunFolder};

/// Contents of a run's folder, safe to print.
#[derive(Debug)]
pub(super) struct ReportFolder {
    pub(super) experiment: Experiment,
    pub(super) records: Vec<Record>,
    /// A note if the last record is incomplete.
    pub(super) note: Option<String>,
}

/// Reads a folder. Control characters in names are escaped.
pub(super) fn read(folder: &Path) -> Result<ReportFolder> {
    let RunFolder { experiment, records, torn, .. } = folder::read(folder)?;
    let path = folder.join(RECORDS);
    let note =
        torn.map(|line| format!("{}:{line}: incomplete last line, left out", path.display()));
    Ok(ReportFolder { experiment: sanitized(experiment)?, records: sanitized(records)?, note })
}

/// Escapes control characters in all texts of a value.
pub(super) fn sanitized<T: Serialize + DeserializeOwned>(value: T) -> Result<T> {
    let mut value = serde_json::to_value(value).context("cannot convert names")?;
    sanitize(&mut value);
    serde_json::from_value(value).context("cannot convert names")
}

fn sanitize(value: &mut Value) {
    match value {
        Value::String(text) => *text = escaped(text).into_owned(),
        Value::Array(values) => values.iter_mut().for_each(sanitize),
        Value::Object(map) => {
            let old = std::mem::take(map);
            map.extend(old.into_iter().map(|(name, mut value)| {
                sanitize(&mut value);
                (escaped(&name).into_owned(), value)
            }));
        }
        _ => {}
    }
}
