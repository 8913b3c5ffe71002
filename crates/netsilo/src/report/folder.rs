//! The folder of an experiment, read.

use std::fs::File;
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use netsilo_core::experiment::{COMMANDS, EXPERIMENT, Experiment, RECORDS, Record};
use netsilo_core::visible::visible;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// What is in a folder.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) experiment: Experiment,
    pub(super) records: Vec<Record>,
    /// The exact commands, at each machine; `None` where no file has them.
    pub(super) commands: Option<String>,
    /// What a reader should know of it.
    pub(super) notes: Vec<String>,
}

/// Reads it; control characters of names are written out.
pub(super) fn read(folder: &Path) -> Result<Folder> {
    let path = folder.join(EXPERIMENT);
    let text = std::fs::read_to_string(&path).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => {
            anyhow!("{} is not there: name the folder that netsilo bench matrix wrote", path.display())
        }
        _ => anyhow!(error).context(format!("cannot read {}", path.display())),
    })?;
    let experiment: Experiment = serde_json::from_str(&text).with_context(|| format!("{}", path.display()))?;
    experiment.check().map_err(|why| anyhow!("{}: {why}", path.display()))?;
    let mut notes = Vec::new();
    let records = records(&folder.join(RECORDS), &mut notes)?;
    let commands = std::fs::read_to_string(folder.join(COMMANDS)).ok();
    let lines = |text: String| text.lines().map(visible).collect::<Vec<_>>().join("\n");
    let commands = commands.map(lines);
    Ok(Folder { experiment: tamed(experiment)?, records: tamed(records)?, commands, notes })
}

fn records(path: &Path, notes: &mut Vec<String>) -> Result<Vec<Record>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("{} is not there: nothing was measured yet", path.display())
        }
        Err(error) => return Err(anyhow!(error).context(format!("cannot read {}", path.display()))),
    };
    let mut file = BufReader::new(file);
    let mut records = Vec::new();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if file.read_until(b'\n', &mut line).with_context(|| format!("cannot read {}", path.display()))? == 0 {
            break;
        }
        match serde_json::from_slice(&line) {
            Ok(record) => records.push(record),
            Err(_) if line.trim_ascii().is_empty() => {}
            Err(_) if !line.ends_with(b"\n") => {
                notes.push(format!("{}:{number}: the last line is torn, and left out", path.display()));
            }
            Err(error) => {
                // each line is a text of its own, with a line 1
                let why = error.to_string();
                let why = why.strip_suffix(&format!(" at line 1 column {}", error.column())).unwrap_or(&why);
                bail!("{}:{number}:{}: no record: {why}", path.display(), error.column());
            }
        }
    }
    Ok(records)
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
