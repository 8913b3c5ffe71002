//! The folder of an experiment, read.

use std::path::Path;

use anyhow::{Context as _, Result};
use netsilo_model::parse::sanitize::visible;
use netsilo_trial::experiment::{COMMANDS, Experiment, RECORDS, Record};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::bench::folder::{self, Found};

/// What is in a folder.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) experiment: Experiment,
    pub(super) records: Vec<Record>,
    /// The exact commands, at each machine; `None` where no file has them.
    pub(super) commands: Option<String>,
    /// That its last line is torn, if it is.
    pub(super) note: Option<String>,
}

/// Reads it; control characters of names are written out.
pub(super) fn read(folder: &Path) -> Result<Folder> {
    let Found { experiment, records, torn, .. } = folder::read(folder)?;
    let path = folder.join(RECORDS);
    let note =
        torn.map(|line| format!("{}:{line}: the last line is torn, and left out", path.display()));
    let commands = std::fs::read_to_string(folder.join(COMMANDS)).ok();
    let lines = |text: String| text.lines().map(visible).collect::<Vec<_>>().join("\n");
    Ok(Folder {
        experiment: tamed(experiment)?,
        records: tamed(records)?,
        commands: commands.map(lines),
        note,
    })
}

/// The same with all its texts harmless.
fn tamed<T: Serialize + DeserializeOwned>(value: T) -> Result<T> {
    let mut value = serde_json::to_value(value).context("reading names")?;
    tame(&mut value);
    serde_json::from_value(value).context("reading names")
}

fn tame(value: &mut Value) {
    match value {
        Value::String(text) => *text = visible(text).into_owned(),
        Value::Array(values) => values.iter_mut().for_each(tame),
        Value::Object(map) => {
            let old = std::mem::take(map);
            map.extend(old.into_iter().map(|(name, mut value)| {
                tame(&mut value);
                (visible(&name).into_owned(), value)
            }));
        }
        _ => {}
    }
}
