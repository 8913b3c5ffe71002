//! The folder of a run: its definition, its options, and one line per result, written when the
//! result arrives.

use std::path::Path;

use anyhow::{Result, anyhow};
use netsilo::runs::{
    Lines, RecordsFile, create, read_document, read_json, read_records, refuse_foreign, write_file,
    write_json,
};
use netsilo_model::machine::cpuset::CpuId;
use netsilo_trial::experiment::{COMMANDS, EXPERIMENT, Experiment, Record, SCHEMA};
use serde::{Deserialize, Serialize};

/// File with the options of a run: a [`RunOptions`].
const OPTIONS: &str = "how.json";

/// The options that are needed to resume a run, in addition to the experiment itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunOptions {
    /// Senders of the loads. A load with two senders uses the first two, or the only one twice.
    pub(crate) senders: Vec<Sender>,
    /// Whether eBPF measures interrupt times.
    pub(crate) bpf: bool,
    /// Whether to map which CPUs process and read, once per setting and load.
    pub(crate) maps: bool,
    /// CPU time that this machine's server burns per request, in microseconds.
    pub(crate) work_usecs: u64,
    /// The CPU to which the server's workers are pinned.
    pub(crate) pinned: Option<CpuId>,
}

impl RunOptions {
    /// Whether this machine is between the ends of the loads.
    pub(crate) fn forwards(&self) -> bool {
        self.senders.iter().any(|sender| sender.agent.is_some() && sender.against.is_some())
    }
}

/// A machine that generates a load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sender {
    /// Address of its `netsilo-bench serve`; `None` for this machine.
    pub(crate) agent: Option<String>,
    /// Address of the receiver; `None` for this machine.
    pub(crate) against: Option<String>,
}

/// Contents of a run's folder.
#[derive(Debug)]
pub(crate) struct RunFolder {
    pub(crate) experiment: Experiment,
    pub(crate) records: Vec<Record>,
    /// Line number of an incomplete last line. That line is ignored.
    pub(crate) torn: Option<usize>,
    /// Length of the complete lines, in bytes.
    whole: usize,
}

/// Reads a run's folder. An incomplete last line of the records is not an error.
pub(crate) fn read(folder: &Path) -> Result<RunFolder> {
    let path = folder.join(EXPERIMENT);
    let experiment: Experiment = read_document(&path, SCHEMA)?;
    experiment.check().map_err(|why| anyhow!("{}: {why}", path.display()))?;
    let Lines { records, torn, whole } = read_records(folder)?;
    Ok(RunFolder { experiment, records, torn, whole })
}

/// Creates the folder of an experiment.
pub(crate) fn create_run(
    path: &Path,
    experiment: &Experiment,
    options: &RunOptions,
    commands: &str,
) -> Result<RecordsFile> {
    create(path, EXPERIMENT)?;
    write_file(&path.join(COMMANDS), commands.as_bytes())?;
    write_json(&path.join(OPTIONS), options)?;
    // written last, so that a folder with this file is complete
    write_json(&path.join(EXPERIMENT), experiment)?;
    RecordsFile::append_to(path)
}

/// Opens a folder to resume its run. Removes an incomplete last record.
///
/// Its commands will run and its changes will be written. So it must belong to the user, unless
/// trusted.
pub(crate) fn open_run(
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
