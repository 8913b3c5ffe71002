//! A run's folder: what was to be tried, how it is made, and a line for each result, written when
//! it comes.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use netsilo_model::machine::cpuset::CpuId;
use netsilo_trial::experiment::{COMMANDS, EXPERIMENT, Experiment, RECORDS, Record};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The file that says how the run is made: a [`How`].
const HOW: &str = "how.json";

/// What it takes, beside the experiment itself, to go on with a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct How {
    /// Who makes the load; a load of two senders takes the first two, or one twice.
    pub(super) senders: Vec<Sender>,
    /// Measure the true interrupt times with eBPF.
    pub(super) bpf: bool,
    /// Look who processes and who reads, once under each setting and load.
    pub(super) maps: bool,
    /// CPU time that this machine's server burns for each request.
    pub(super) work_usecs: u64,
    /// The CPU that its workers are tied to.
    pub(super) pinned: Option<CpuId>,
}

/// A machine that makes a load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sender {
    /// Where its `bench serve` listens; this machine itself where it is `None`.
    pub(super) agent: Option<String>,
    /// Whom it loads; this machine where it is `None`.
    pub(super) against: Option<String>,
}

/// What is in a folder, as it was written.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) experiment: Experiment,
    pub(crate) records: Vec<Record>,
    /// The number of a last line that is torn: what it was to say never happened.
    pub(crate) torn: Option<usize>,
    /// How long the lines before it are, in bytes.
    whole: usize,
}

/// Reads one.
pub(crate) fn read(folder: &Path) -> Result<Found> {
    let path = folder.join(EXPERIMENT);
    let experiment: Experiment = take(&path)?;
    experiment.check().map_err(|why| anyhow!("{}: {why}", path.display()))?;
    let path = folder.join(RECORDS);
    let text = bytes(&path, "nothing was measured yet")?;
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let (mut records, mut number) = (Vec::new(), 1);
    for line in text[..whole].split_inclusive(|byte| *byte == b'\n') {
        match serde_json::from_slice(line) {
            Ok(record) => records.push(record),
            Err(_) if line.trim_ascii().is_empty() => {}
            Err(error) => {
                // each line is a text of its own, with a line 1
                let why = error.to_string();
                let why = why
                    .strip_suffix(&format!(" at line 1 column {}", error.column()))
                    .unwrap_or(&why);
                bail!("{}:{number}:{}: no record: {why}", path.display(), error.column());
            }
        }
        number += 1;
    }
    let torn = (whole < text.len()).then_some(number);
    Ok(Found { experiment, records, torn, whole })
}

/// A folder that is written to.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    records: File,
}

impl Folder {
    /// Makes a new one.
    pub(super) fn create(
        path: &Path,
        experiment: &Experiment,
        how: &How,
        commands: &str,
    ) -> Result<Self> {
        let taken = format!(
            "{}: write to another folder (-o), or go on with this run by --resume",
            path.display()
        );
        ensure!(!path.join(EXPERIMENT).exists(), "a run is in {taken}");
        fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))?;
        put(&path.join(COMMANDS), commands.as_bytes())?;
        put(&path.join(HOW), &json(how)?)?;
        // the last one: a folder with it has all that is needed
        put(&path.join(EXPERIMENT), &json(experiment)?)?;
        Self::append_to(path)
    }

    /// Opens one to go on with.
    pub(super) fn open(path: &Path) -> Result<(Self, Experiment, How, Vec<Record>)> {
        let Found { experiment, records, whole, .. } = read(path)?;
        let how = take(&path.join(HOW))?;
        let folder = Self::append_to(path)?;
        folder.records.set_len(whole as u64).context("cutting off a torn record")?;
        Ok((folder, experiment, how, records))
    }

    fn append_to(path: &Path) -> Result<Self> {
        let file = path.join(RECORDS);
        let records = OpenOptions::new().create(true).append(true).open(&file);
        let records = records.with_context(|| format!("cannot write {}", file.display()))?;
        if rustix::fs::flock(&records, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .is_err()
        {
            bail!("another netsilo writes to {} now", path.display());
        }
        Ok(Self { path: path.to_owned(), records })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a line.
    pub(super) fn append(&mut self, record: &Record) -> Result<()> {
        let mut line = serde_json::to_vec(record).context("rendering a record")?;
        line.push(b'\n');
        let written = self.records.write_all(&line).and_then(|()| self.records.sync_data());
        written.with_context(|| format!("cannot write {}", self.path.join(RECORDS).display()))
    }
}

fn json(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(value).context("rendering json")?;
    text.push(b'\n');
    Ok(text)
}

fn put(path: &Path, text: &[u8]) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn take<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = bytes(path, "name the folder that netsilo bench matrix wrote")?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}

fn bytes(path: &Path, unless_there: &str) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => {
            anyhow!("{} is not there: {unless_there}", path.display())
        }
        _ => anyhow!(error).context(format!("cannot read {}", path.display())),
    })
}
