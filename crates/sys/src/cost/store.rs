//! Stores the result of `netsilo calibrate`, and loads it as weights of the cost model on the same
//! machine only.

use std::io;
use std::path::{Path, PathBuf};

use netsilo_model::cost::calibration::{Calibration, MachineIdentity};
use netsilo_model::cost::weights::Costs;
use netsilo_model::machine::schema::NETSILO;
use serde::{Deserialize, Serialize};

use crate::files::{document, output, regular, trust};

/// Default folder of the measurement. Unlike the journal, it survives a reboot.
pub const COSTS_DIR: &str = "/var/lib/netsilo";

/// The name of the file.
const FILE: &str = "costs.json";

/// Maximum size of the file in bytes. A normal file has about 2 kB.
const MOST_BYTES: u64 = 1 << 20;

/// The newest version of the file format that this netsilo reads; the one that it writes.
const VERSION: u32 = 1;

/// The contents of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    /// The version of this format.
    #[serde(rename = "schema", alias = "version")]
    pub version: u32,
    /// Version of netsilo.
    #[serde(default)]
    pub netsilo: String,
    /// When the machine was measured (RFC 3339, UTC).
    pub when: String,
    /// The machine that was measured.
    pub machine: MachineIdentity,
    /// The measured times.
    pub measured: Calibration,
    /// The weights derived from them.
    pub costs: Costs,
}

impl Measurement {
    /// A measurement, with the weights derived from it and from the defaults.
    pub fn new(when: String, machine: MachineIdentity, measured: Calibration) -> Self {
        let costs = measured.costs(default_costs(&machine), &when, &machine);
        let netsilo = NETSILO.to_owned();
        Self { version: VERSION, netsilo, when, machine, measured, costs }
    }
}

/// The weights for this machine, with a note on where they come from.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadedCosts {
    /// The weights.
    pub costs: Costs,
    /// Why an existing file was not used, or a remark about the file.
    pub note: Option<String>,
}

/// Why a measurement could not be stored.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} {path}: {source}")]
pub struct StoreError {
    doing: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// The documented default weights, for this machine or for a virtual one.
pub fn default_costs(machine: &MachineIdentity) -> Costs {
    if machine.virtual_machine == Some(true) {
        Costs::for_virtual_machine()
    } else {
        Costs::default()
    }
}

/// The stored measurement of this machine; if there is none, the default weights.
///
/// A file of another machine, or an unreadable file, is not used; the note names it.
pub fn load(dir: &Path, machine: &MachineIdentity) -> LoadedCosts {
    let path = dir.join(FILE);
    let unused = |why: String| LoadedCosts {
        costs: default_costs(machine),
        note: Some(format!("{} is not used: {why}; run netsilo calibrate", path.display())),
    };
    let read = || {
        trust::check(&path)?;
        regular::read(&path, MOST_BYTES)
    };
    let text = match read() {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return LoadedCosts { costs: default_costs(machine), note: None };
        }
        Err(e) => return unused(e.to_string()),
    };
    let measurement: Measurement = match document::parse(&text, VERSION) {
        Ok(measurement) => measurement,
        Err(e) => return unused(e.to_string()),
    };
    match measurement.machine.differs_from(machine) {
        Some(why) => unused(format!("it was measured on another machine: {why}")),
        None => LoadedCosts { costs: measurement.costs, note: None },
    }
}

/// Stores a measurement in this folder atomically, replacing an earlier one; returns its path.
pub fn store(dir: &Path, measurement: &Measurement) -> Result<PathBuf, StoreError> {
    let path = dir.join(FILE);
    let failed = |doing| {
        let path = path.clone();
        move |source| StoreError { doing, path, source }
    };
    let made = trust::make_dir(dir, 0o755);
    made.map_err(|error| failed("create the folder of")(error.into()))?;
    let text = serde_json::to_vec_pretty(measurement).map_err(|e| failed("write")(e.into()))?;
    // The measurement is not secret.
    let text = [&text[..], b"\n"].concat();
    output::write_with_mode(&path, 0o644, &text).map_err(failed("write"))?;
    Ok(path)
}

impl StoreError {
    /// Whether the error is a lack of write permission.
    pub fn is_permission(&self) -> bool {
        matches!(
            self.source.kind(),
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
        )
    }
}

#[cfg(test)]
mod tests {
    use netsilo_model::cost::calibration::{Measured, Wakeup};
    use netsilo_model::cost::weights::CostSource;
    use netsilo_model::machine::topology::Distance;

    use super::*;

    fn measurement() -> Measurement {
        let time = |median_ns| Measured { median_ns, spread_ns: 1.0, pairs: 1, rounds: 5 };
        let wakeup = |waker| Wakeup { waker: time(waker), latency: time(9.0) };
        let measured = Calibration {
            transfer: [(Distance::Llc, time(61.0))].into(),
            wakeup: [(Distance::SameCpu, wakeup(600.0)), (Distance::Llc, wakeup(2100.0))].into(),
            interrupted: [(Distance::Llc, time(500.0))].into(),
        };
        let machine = MachineIdentity {
            hostname: "db1".into(),
            cpu_model: "Some CPU".into(),
            cpus: 8,
            kernel: "6.12.1".into(),
            virtual_machine: Some(true),
        };
        Measurement::new("2026-01-02T03:04:05Z".into(), machine, measured)
    }

    #[test]
    fn a_stored_measurement_is_loaded_on_the_same_machine() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("lib/netsilo");
        let measurement = measurement();
        let path = store(&folder, &measurement).unwrap();
        assert_eq!(
            load(&folder, &measurement.machine),
            LoadedCosts { costs: measurement.costs.clone(), note: None }
        );
        assert_eq!((measurement.costs.line_ns.llc, measurement.costs.ipi_ns.llc), (61.0, 2000.0));
        store(&folder, &measurement).unwrap();
        let names: Vec<_> =
            std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(names, [path]);
    }

    #[test]
    fn without_a_file_the_default_weights_are_used() {
        let dir = tempfile::tempdir().unwrap();
        let guest = measurement().machine;
        assert_eq!(
            load(dir.path(), &guest),
            LoadedCosts { costs: Costs::for_virtual_machine(), note: None }
        );
        let metal = MachineIdentity { virtual_machine: Some(false), ..guest };
        assert_eq!(load(dir.path(), &metal).costs, Costs::default());
    }

    #[test]
    fn a_file_of_another_machine_is_reported_and_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = store(dir.path(), &measurement()).unwrap();
        let other = MachineIdentity { hostname: "db2".into(), ..measurement().machine };
        let loaded = load(dir.path(), &other);
        assert_eq!(loaded.costs.source, CostSource::Default);
        let note = loaded.note.unwrap();
        let said = format!(
            "{} is not used: it was measured on another machine: its host name is db1, not db2; \
             run netsilo calibrate",
            path.display()
        );
        assert_eq!(note, said);
    }

    #[test]
    fn a_damaged_or_newer_file_is_reported_and_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = store(dir.path(), &measurement()).unwrap();
        let machine = measurement().machine;
        let later = r#"{"schema":9,"netsilo":"0.4.0","y":2}"#;
        for (text, words) in [("{", "EOF"), (later, "use netsilo 0.4.0 or newer; run netsilo")] {
            std::fs::write(&path, text).unwrap();
            let loaded = load(dir.path(), &machine);
            assert_eq!(loaded.costs.source, CostSource::Default);
            assert!(loaded.note.unwrap().contains(words));
        }
    }
}
