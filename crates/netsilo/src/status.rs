//! `netsilo status`: what the daemon does, as it says itself on its socket.

mod view;

pub(crate) use view::words;

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use netsilo_core::attribution::{Hook, Source};
use netsilo_core::change::Change;
use netsilo_core::controller::{Conflict, ControllerState, Held, LogEntry, TrialResult};
use netsilo_core::plan::{Advice, Placement, Refusal};
use netsilo_core::silo::Locality;
use netsilo_sys::journal::STATE_DIR;
use netsilo_sys::own::OwnCost;
use serde::{Deserialize, Serialize};

use crate::exit::{Exit, Stop};
use crate::out;

/// The schema that this version writes; it grows when a field changes its meaning or goes away.
pub(crate) const SCHEMA: u32 = 1;

/// The name of the socket in the state folder.
pub(crate) const SOCKET: &str = "status.sock";

/// How long the daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the daemon says of itself. Times are since boot (CLOCK_BOOTTIME).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) schema: u32,
    pub(crate) version: String,
    pub(crate) pid: u32,
    /// When it was started, and when this was written.
    pub(crate) started: Duration,
    pub(crate) at: Duration,
    /// Windows that were looked at.
    pub(crate) windows: u64,
    pub(crate) mode: Mode,
    pub(crate) state: ControllerState,
    pub(crate) config: ConfigStatus,
    pub(crate) attribution: AttributionStatus,
    /// How far what was read in the last window had come.
    pub(crate) locality: Locality,
    /// Where every vector should be.
    pub(crate) placements: Vec<Placement>,
    /// Wanted and not in force.
    pub(crate) pending: Vec<Change>,
    /// Of these, what is held, and why.
    pub(crate) held: Vec<Held>,
    /// Knobs that someone else has written, and that are left to them.
    pub(crate) conflicts: Vec<Conflict>,
    pub(crate) refusals: Vec<Refusal>,
    /// What would help and is not netsilo's to do.
    pub(crate) advice: Vec<Advice>,
    /// How the last writes that could be judged turned out.
    pub(crate) verification: Option<TrialResult>,
    /// The last decisions, oldest first.
    pub(crate) log: Vec<LogEntry>,
    /// What the daemon itself has to say: what it could not do, and why.
    pub(crate) notes: Vec<String>,
    pub(crate) totals: Totals,
    pub(crate) own: OwnCost,
}

/// What the daemon writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// Knobs and hints.
    Placing,
    /// Hints only, as configured.
    HintsOnly,
    /// No knob, for lack of a right.
    ObserveOnly(String),
}

/// The configuration in force.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConfigStatus {
    pub(crate) files: Vec<PathBuf>,
    pub(crate) interval: Duration,
    /// Why the newest configuration was not taken.
    pub(crate) error: Option<String>,
}

/// How consumers are found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AttributionStatus {
    pub(crate) source: Source,
    /// The hooks that are not attached, with the reason.
    pub(crate) refused: Vec<Hook>,
}

/// What was done since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Totals {
    /// Knobs written, reverts and repetitions among them.
    pub(crate) changes: u64,
    /// Changes taken back because they made it worse.
    pub(crate) reverts: u64,
    /// Changes written again after a reset had undone them.
    pub(crate) reapplied: u64,
    /// Writes that the kernel refused.
    pub(crate) refused: u64,
    /// Knobs left to someone else.
    pub(crate) yielded: u64,
    /// Announcements of the kernel.
    pub(crate) events: u64,
    /// Hint files written or removed.
    pub(crate) hints: u64,
    /// Configurations taken and refused after the start.
    pub(crate) reloads: u64,
    pub(crate) bad_reloads: u64,
}

/// Arguments of `netsilo status`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON (schema 1, docs/daemon.md)
    #[arg(short, long)]
    json: bool,
    /// The daemon's state folder
    #[arg(long, value_name = "DIR", default_value = STATE_DIR)]
    state_dir: PathBuf,
}

/// Asks the daemon, and prints.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let text = ask(&args.state_dir)?;
    let status: Status = serde_json::from_str(&text)
        .context("the daemon's answer is of another version of netsilo")?;
    if args.json {
        out::json(&status)?;
    } else {
        out::text(&view::render(&status))?;
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
                "netsilo does not run (nobody answers at {}); start it with `netsilo run`",
                path.display()
            );
            return Err(Stop(Exit::NotRunning, words).into());
        }
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Err(Stop(
                Exit::NoPermission,
                format!("may not look into {}: run as root", dir.display()),
            )
            .into());
        }
        Err(error) => {
            return Err(error).with_context(|| format!("cannot connect to {}", path.display()));
        }
    };
    stream.set_read_timeout(Some(PATIENCE)).context("setting a time limit")?;
    let mut text = String::new();
    stream.read_to_string(&mut text).with_context(|| format!("no answer at {}", path.display()))?;
    Ok(text)
}
