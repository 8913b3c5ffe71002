//! `netsilo status`: the daemon's status, read from its socket.

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use netsilo_decide::control::{Conflict, ControllerState, Held, LogEntry, TrialResult};
use netsilo_decide::plan::{Advice, Placement, Refusal};
use netsilo_model::change::Change;
use netsilo_model::derive::silo::Locality;
use netsilo_model::snapshot::attribution::{Hook, Source};
use netsilo_sys::daemon::self_cost::OwnCost;
use netsilo_sys::transaction::journal::STATE_DIR;
use serde::{Deserialize, Serialize};

use crate::tell::exit::{Exit, Stop};
use crate::tell::out;
use crate::views;

pub(crate) use views::status::words;

/// Schema number of the JSON; it grows when a field changes meaning or is removed.
pub(crate) const SCHEMA: u32 = 1;

/// Name of the socket in the state folder.
pub(crate) const SOCKET: &str = "status.sock";

/// Longest time to wait for the daemon's answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Status of the daemon; times are since boot (CLOCK_BOOTTIME).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) schema: u32,
    pub(crate) version: String,
    pub(crate) pid: u32,
    /// When the daemon started; `at` is when this status was made.
    pub(crate) started: Duration,
    pub(crate) at: Duration,
    /// Observation windows completed.
    pub(crate) windows: u64,
    pub(crate) mode: Mode,
    pub(crate) state: ControllerState,
    pub(crate) config: ConfigStatus,
    pub(crate) attribution: AttributionStatus,
    /// Distances between protocol work and readers in the last window.
    pub(crate) locality: Locality,
    /// The placement of every interrupt and NAPI kthread.
    pub(crate) placements: Vec<Placement>,
    /// Changes that are planned and not in force.
    pub(crate) pending: Vec<Change>,
    /// Pending changes that are held, and why.
    pub(crate) held: Vec<Held>,
    /// Knobs left alone because another program wrote them.
    pub(crate) conflicts: Vec<Conflict>,
    pub(crate) refusals: Vec<Refusal>,
    /// Advice that netsilo does not act on itself.
    pub(crate) advice: Vec<Advice>,
    /// Result of the last writes that could be verified.
    pub(crate) verification: Option<TrialResult>,
    /// The last decisions, oldest first.
    pub(crate) log: Vec<LogEntry>,
    /// Failures of the daemon itself, and their reasons.
    pub(crate) notes: Vec<String>,
    pub(crate) totals: Totals,
    pub(crate) own: OwnCost,
}

/// What the daemon writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// Knobs and hints are written.
    Placing,
    /// Only hints are written, as configured.
    HintsOnly,
    /// No knob is written because a privilege is missing.
    ObserveOnly(String),
}

/// The configuration in force.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConfigStatus {
    pub(crate) files: Vec<PathBuf>,
    pub(crate) interval: Duration,
    /// Why the newest configuration was rejected.
    pub(crate) error: Option<String>,
}

/// How consumers are found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AttributionStatus {
    pub(crate) source: Source,
    /// Hooks that are not attached, with the reason.
    pub(crate) refused: Vec<Hook>,
}

/// Counts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Totals {
    /// Knobs written, including reverts and reapplied changes.
    pub(crate) changes: u64,
    /// Changes reverted because they made it worse.
    pub(crate) reverts: u64,
    /// Changes written again after a device reset.
    pub(crate) reapplied: u64,
    /// Writes that the kernel refused.
    pub(crate) refused: u64,
    /// Times a knob was left alone because another program wrote it.
    pub(crate) yielded: u64,
    /// Kernel events.
    pub(crate) events: u64,
    /// Hint files written or removed.
    pub(crate) hints: u64,
    /// Configurations accepted after the start; `bad_reloads` are those rejected.
    pub(crate) reloads: u64,
    pub(crate) bad_reloads: u64,
}

/// Arguments of `netsilo status`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print the status as JSON (schema 1, docs/daemon.md)
    #[arg(short, long)]
    json: bool,
    /// State folder of the daemon
    #[arg(long, value_name = "DIR", default_value = STATE_DIR)]
    state_dir: PathBuf,
}

/// Reads the status from the daemon and prints it.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let text = ask(&args.state_dir)?;
    let status: Status = serde_json::from_str(&text)
        .context("the daemon's answer has the format of another version of netsilo")?;
    if args.json {
        out::json(&status)?;
    } else {
        out::text(&views::status::render(&status))?;
    }
    Ok(Exit::Ok)
}

fn ask(dir: &Path) -> Result<String> {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    let path = dir.join(SOCKET);
    let mut stream = match UnixStream::connect(&path) {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), NotFound | ConnectionRefused) => {
            let words = format!(
                "the daemon is not running (no answer at {}); start it with `netsilo run`",
                path.display()
            );
            return Err(Stop(Exit::NotRunning, words).into());
        }
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Err(Stop(
                Exit::NoPermission,
                format!("no permission to read {}: run as root", dir.display()),
            )
            .into());
        }
        Err(error) => {
            return Err(error).with_context(|| format!("cannot connect to {}", path.display()));
        }
    };
    stream.set_read_timeout(Some(PATIENCE)).context("cannot set a time limit")?;
    let mut text = String::new();
    stream.read_to_string(&mut text).with_context(|| format!("no answer at {}", path.display()))?;
    Ok(text)
}
