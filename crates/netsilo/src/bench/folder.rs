//! The folder of a run: its definition, its options, and one line per result, written as the
//! result arrives.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use netsilo_model::machine::cpuset::CpuId;
use netsilo_sys::files::{output, regular, trust};
use netsilo_trial::experiment::{COMMANDS, EXPERIMENT, Experiment, RECORDS, Record};
use rustix::fs::OFlags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::args::file;
use crate::tell::out;

/// Most bytes of each file: 10,000 trials have 100 MB of records.
const MOST_BYTES: u64 = 256 << 20;

/// File with the options of a run: a [`RunOptions`].
const OPTIONS: &str = "how.json";

/// The options that resuming a run needs besides the experiment itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunOptions {
    /// Senders of the loads; a load with two senders uses the first two, or the only one twice.
    pub(super) senders: Vec<Sender>,
    /// Whether eBPF measures interrupt times.
    pub(super) bpf: bool,
    /// Whether to map which CPUs process and read, once per setting and load.
    pub(super) maps: bool,
    /// CPU time that this machine's server burns per request, in microseconds.
    pub(super) work_usecs: u64,
    /// The CPU that the server's workers are pinned to.
    pub(super) pinned: Option<CpuId>,
}

impl RunOptions {
    /// Whether this machine is between the ends of the loads.
    pub(super) fn forwards(&self) -> bool {
        self.senders.iter().any(|sender| sender.agent.is_some() && sender.against.is_some())
    }
}

/// A machine that generates a load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sender {
    /// Address of its `bench serve`; `None` for this machine.
    pub(super) agent: Option<String>,
    /// Address of the receiver; `None` for this machine.
    pub(super) against: Option<String>,
}

/// Contents of a run's folder.
#[derive(Debug)]
pub(crate) struct RunFolder {
    pub(crate) experiment: Experiment,
    pub(crate) records: Vec<Record>,
    /// Line number of an incomplete last line, which is ignored.
    pub(crate) torn: Option<usize>,
    /// Length of the complete lines, in bytes.
    whole: usize,
}

/// Reads a run's folder; an incomplete last line of the records is no error.
pub(crate) fn read(folder: &Path) -> Result<RunFolder> {
    let path = folder.join(EXPERIMENT);
    let experiment: Experiment = read_json(&path)?;
    experiment.check().map_err(|why| anyhow!("{}: {why}", path.display()))?;
    let Lines { records, torn, whole } = read_records(folder)?;
    Ok(RunFolder { experiment, records, torn, whole })
}

/// The complete lines of a file of records.
pub(crate) struct Lines<T> {
    pub(crate) records: Vec<T>,
    /// Line number of an incomplete last line, which is ignored.
    pub(crate) torn: Option<usize>,
    /// Length of the complete lines, in bytes.
    pub(crate) whole: usize,
}

/// Reads the records in a folder, one per line.
pub(crate) fn read_records<T: DeserializeOwned>(folder: &Path) -> Result<Lines<T>> {
    let path = folder.join(RECORDS);
    let text = bytes(&path, "nothing has been measured yet")?;
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let (mut records, mut number) = (Vec::new(), 1);
    for line in text[..whole].split_inclusive(|byte| *byte == b'\n') {
        match serde_json::from_slice(line) {
            Ok(record) => records.push(record),
            Err(_) if line.trim_ascii().is_empty() => {}
            Err(error) => {
                // serde_json sees one line at a time and always reports line 1
                let why = error.to_string();
                let why = why
                    .strip_suffix(&format!(" at line 1 column {}", error.column()))
                    .unwrap_or(&why);
                bail!("{}:{number}:{}: not a record: {why}", path.display(), error.column());
            }
        }
        number += 1;
    }
    let torn = (whole < text.len()).then_some(number);
    Ok(Lines { records, torn, whole })
}

/// Refuses files that others may have written, as the commands in them will run.
pub(crate) fn refuse_foreign(folder: &Path, files: &[&str]) -> Result<()> {
    for it in [folder.to_owned()].into_iter().chain(files.iter().map(|file| folder.join(file))) {
        let why = "others may have written the commands in it: read them, then use --trust";
        let missing = || std::io::Error::from(rustix::io::Errno::NOENT);
        let found = trust::check(&it).context(why)?.ok_or_else(missing);
        found.with_context(|| format!("cannot read {}", it.display()))?;
    }
    Ok(())
}

/// A file of records, locked for appending.
#[derive(Debug)]
pub(crate) struct RecordsFile {
    folder: PathBuf,
    records: File,
}

impl RecordsFile {
    /// Opens or creates the records in a folder.
    pub(crate) fn append_to(folder: &Path) -> Result<Self> {
        let file = folder.join(RECORDS);
        let mut append = OpenOptions::new();
        let records = regular::open_with(append.create(true).append(true), OFlags::NOFOLLOW, &file);
        let records = records.with_context(|| format!("cannot write {}", file.display()))?;
        if rustix::fs::flock(&records, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .is_err()
        {
            bail!("another netsilo is writing to {}", folder.display());
        }
        Ok(Self { folder: folder.to_owned(), records })
    }

    /// Truncates an incomplete last record.
    pub(crate) fn truncate(&self, whole: usize) -> Result<()> {
        self.records.set_len(whole as u64).context("cannot truncate an incomplete record")
    }

    /// Returns the path of the folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Appends one record and syncs it.
    pub(crate) fn append(&mut self, record: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(record).context("cannot serialize a record")?;
        line.push(b'\n');
        let written = self.records.write_all(&line).and_then(|()| self.records.sync_data());
        written.with_context(|| format!("cannot write {}", self.folder.join(RECORDS).display()))
    }
}

/// Creates a folder; an error if it already holds the plan of a run.
pub(crate) fn create(path: &Path, plan: &str) -> Result<()> {
    let taken =
        format!("{}: choose another folder (-o), or resume this run with --resume", path.display());
    ensure!(!path.join(plan).exists(), "there already is a run in {taken}");
    fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))
}

/// Creates the folder of an experiment.
pub(super) fn create_run(
    path: &Path,
    experiment: &Experiment,
    options: &RunOptions,
    commands: &str,
) -> Result<RecordsFile> {
    create(path, EXPERIMENT)?;
    write_file(&path.join(COMMANDS), commands.as_bytes())?;
    write_json(&path.join(OPTIONS), options)?;
    // written last: a folder that has this file is complete
    write_json(&path.join(EXPERIMENT), experiment)?;
    RecordsFile::append_to(path)
}

/// Opens a folder to resume its run; truncates an incomplete last record.
///
/// Its commands run and its changes are written: unless trusted, it must be the user's own.
pub(super) fn open_run(
    path: &Path,
    trust: bool,
) -> Result<(RecordsFile, Experiment, RunOptions, Vec<Record>)> {
    if !trust {
        refuse_foreign(path, &[EXPERIMENT, OPTIONS])?;
    }
    let RunFolder { experiment, records, whole, .. } = read(path)?;
    let options = read_json(&path.join(OPTIONS))?;
    let file = RecordsFile::append_to(path)?;
    file.truncate(whole)?;
    Ok((file, experiment, options, records))
}

/// Writes a value as indented JSON.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    write_file(path, out::indented(value)?.as_bytes())
}

fn write_file(path: &Path, text: &[u8]) -> Result<()> {
    output::write(path, |file| file.write_all(text))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Reads a value from a file of a run.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = bytes(path, "name a folder that netsilo bench wrote")?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}

fn bytes(path: &Path, unless_there: &str) -> Result<Vec<u8>> {
    file::read(path, MOST_BYTES).map_err(|error| {
        match error.downcast_ref::<std::io::Error>().map(std::io::Error::kind) {
            Some(ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                anyhow!("{} does not exist: {unless_there}", path.display())
            }
            _ => error,
        }
    })
}
