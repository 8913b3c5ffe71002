//! Names of the files in an experiment's folder.

/// The file with the plan: an `Experiment`.
pub const EXPERIMENT: &str = "experiment.json";

/// The file with the results: JSON lines, each a `Record`.
pub const RECORDS: &str = "records.jsonl";

/// The file with the exact commands, for the user.
pub const COMMANDS: &str = "commands.txt";

/// The file with the initial state of the machine under test, as `netsilo capture` writes it.
pub const MACHINE: &str = "machine.tar.zst";
