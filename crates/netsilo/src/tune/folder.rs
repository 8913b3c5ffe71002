//! The folder of a search: its plan, and one line for each window, written when the window ends.

use std::path::Path;

use anyhow::{Result, anyhow};
use netsilo_trial::race::{RACE, RACE_SCHEMA, Race, RacePlan, RaceRecord};

use crate::runs::{
    Lines, RecordsFile, create, read_document, read_records, refuse_foreign, write_json,
};

/// A search's folder, open for writing.
pub(super) struct Folder(RecordsFile);

impl Folder {
    /// Creates a folder. Fails if it already holds a search.
    pub(super) fn create(path: &Path, plan: &RacePlan) -> Result<Self> {
        create(path, RACE)?;
        let records = RecordsFile::append_to(path)?;
        write_json(&path.join(RACE), plan)?;
        Ok(Self(records))
    }

    /// Opens a folder to continue its search. Removes an incomplete last record.
    ///
    /// Its command will run and its changes will be written. So it must belong to the user, unless
    /// trusted.
    pub(super) fn open(path: &Path, trust: bool) -> Result<(Self, RacePlan, Race)> {
        if !trust {
            refuse_foreign(path, &[RACE])?;
        }
        let (plan, lines) = read(path)?;
        let race = replay(path, &plan, &lines.records)?;
        let records = RecordsFile::append_to(path)?;
        records.truncate(lines.whole)?;
        Ok((Self(records), plan, race))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.folder()
    }

    /// Appends one record and syncs it.
    pub(super) fn append(&mut self, record: &RaceRecord) -> Result<()> {
        self.0.append(record)
    }
}

/// Reads the plan and the records of a search.
fn read(path: &Path) -> Result<(RacePlan, Lines<RaceRecord>)> {
    let file = path.join(RACE);
    let plan: RacePlan = read_document(&file, RACE_SCHEMA)?;
    plan.check().map_err(|why| anyhow!("{}: {why}", file.display()))?;
    Ok((plan, read_records(path)?))
}

/// The race after these records.
fn replay(path: &Path, plan: &RacePlan, records: &[RaceRecord]) -> Result<Race> {
    Race::replay(plan, records).map_err(|why| anyhow!("{}: {why}", path.display()))
}
