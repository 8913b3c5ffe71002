//! A run of trials: its folder with plan and records, the description of this machine in its
//! record, and the changes it writes. Searches and the experiments of `netsilo-bench` share it.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use netsilo_decide::plan::Plan;
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::files::root::Root;
use netsilo_sys::files::{document, output, regular, trust};
use netsilo_sys::read::machine::{is_emulated, machine_identity};
use netsilo_sys::transaction::apply::ApplyError;
use netsilo_sys::transaction::knob;
use netsilo_trial::experiment::{MachineSummary, RECORDS, Setting};
use rustix::fs::OFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::args::file;
use crate::args::state_dir::StateDir;
use crate::tell::out;
use crate::tell::words::plural;

/// Maximum size of each file in bytes. 10,000 trials have 100 MB of records.
const MOST_BYTES: u64 = 256 << 20;

/// The complete lines of a file of records.
pub struct Lines<T> {
    /// The records in order.
    pub records: Vec<T>,
    /// Line number of an incomplete last line; that line is ignored.
    pub torn: Option<usize>,
    /// Length of the complete lines, in bytes.
    pub whole: usize,
}

/// Reads the records in a folder, one per line.
pub fn read_records<T: DeserializeOwned>(folder: &Path) -> Result<Lines<T>> {
    let path = folder.join(RECORDS);
    let text = bytes(&path, "nothing has been measured yet")?;
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let (mut records, mut number) = (Vec::new(), 1);
    for line in text[..whole].split_inclusive(|byte| *byte == b'\n') {
        match serde_json::from_slice(line) {
            Ok(record) => records.push(record),
            Err(_) if line.trim_ascii().is_empty() => {}
            Err(error) => {
                // serde_json gets one line at a time and always reports line 1
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

/// Refuses files that others may have written, because the commands in them will run.
pub fn refuse_foreign(folder: &Path, files: &[&str]) -> Result<()> {
    for it in [folder.to_owned()].into_iter().chain(files.iter().map(|file| folder.join(file))) {
        let why = "others may have written the commands in it: read them first, then use --trust";
        let missing = || std::io::Error::from(rustix::io::Errno::NOENT);
        let found = trust::check(&it).context(why)?.ok_or_else(missing);
        found.with_context(|| format!("cannot read {}", it.display()))?;
    }
    Ok(())
}

/// A file of records, locked for appending.
#[derive(Debug)]
pub struct RecordsFile {
    folder: PathBuf,
    records: File,
}

impl RecordsFile {
    /// Opens or creates the records in a folder.
    pub fn append_to(folder: &Path) -> Result<Self> {
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
    pub fn truncate(&self, whole: usize) -> Result<()> {
        self.records.set_len(whole as u64).context("cannot truncate an incomplete record")
    }

    /// Returns the path of the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Appends one record and syncs it.
    pub fn append(&mut self, record: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(record).context("cannot serialize a record")?;
        line.push(b'\n');
        let written = self.records.write_all(&line).and_then(|()| self.records.sync_data());
        written.with_context(|| format!("cannot write {}", self.folder.join(RECORDS).display()))
    }
}

/// Creates a folder. Fails if it already holds the plan of a run.
pub fn create(path: &Path, plan: &str) -> Result<()> {
    let taken =
        format!("{}: choose another folder (-o), or resume this run with --resume", path.display());
    ensure!(!path.join(plan).exists(), "there already is a run in {taken}");
    fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))
}

/// Writes a value as indented JSON.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    write_file(path, out::indented(value)?.as_bytes())
}

/// Writes a text.
pub fn write_file(path: &Path, text: &[u8]) -> Result<()> {
    output::write(path, |file| file.write_all(text))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Reads a document with the schemas 1 to `newest` from a file of a run.
pub fn read_document<T: DeserializeOwned>(path: &Path, newest: u32) -> Result<T> {
    let text = bytes(path, "name the folder of a run")?;
    document::parse(&text, newest).with_context(|| path.display().to_string())
}

/// Reads a value without a schema from a file of a run.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = bytes(path, "name the folder of a run")?;
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

/// What these settings write, as plans.
pub fn writes(settings: &[Setting], even_if_owned: bool) -> Vec<Plan> {
    let plan = |setting: &Setting| Plan {
        changes: setting.changes.clone(),
        even_if_owned,
        ..Plan::default()
    };
    settings.iter().map(plan).collect()
}

/// Checks that every changed value is still the same as when the run began.
pub fn as_found(state: &StateDir, settings: &[Setting]) -> Result<()> {
    let kernel = state.kernel()?;
    for change in settings.iter().flat_map(|setting| &setting.changes) {
        let now = knob::read(&kernel, &change.target)?.value;
        ensure!(
            now == change.old,
            "{} is {now} but was {} when the run began: restore it, or start a new run",
            change.target,
            change.old
        );
    }
    Ok(())
}

/// Describes this machine for the record of the run.
pub fn machine(seen: &Observation) -> Result<MachineSummary> {
    let identity = machine_identity(&Root::live()).context("cannot identify this machine")?;
    let with_queues = seen.after.netdevs.iter().filter(|netdev| netdev.up && netdev.name != "lo");
    let netdevs = with_queues.map(|netdev| {
        let driver = netdev.driver.as_deref().unwrap_or("driver unknown");
        format!("{}: {driver}, {}", netdev.name, plural(netdev.rx_queues.len(), "rx queue"))
    });
    Ok(MachineSummary {
        hostname: identity.hostname,
        kernel: identity.kernel,
        cpus: seen.after.topology.online.len() as u32,
        netdevs: netdevs.collect(),
        counted: Vec::new(),
        times_invalid: is_emulated().then(|| "its CPUs are emulated".into()),
        model: Some(identity.cpu_model).filter(|model| !model.is_empty()),
    })
}

/// Checks that a run began on this machine.
pub fn same_machine(then: &MachineSummary, now: &MachineSummary) -> Result<()> {
    let known = |it: &MachineSummary| {
        let model = it.model.clone().unwrap_or_default();
        [("host name", it.hostname.clone()), ("kernel", it.kernel.clone()), ("CPU model", model)]
            .into_iter()
            .chain([("number of online CPUs", it.cpus.to_string())])
            .collect::<Vec<_>>()
    };
    for ((what, then), (_, now)) in known(then).into_iter().zip(known(now)) {
        ensure!(
            then == now,
            "the run began on another machine: its {what} is {then}, not {now}; start a new run"
        );
    }
    Ok(())
}

/// Returns why a setting was not applied, if everything was restored. Any other error ends the run.
pub fn refused(error: anyhow::Error) -> Result<String> {
    match error.downcast_ref() {
        Some(ApplyError::Drifted(_) | ApplyError::Restored { .. }) => Ok(error.to_string()),
        _ => Err(error),
    }
}
