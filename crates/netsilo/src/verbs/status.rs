//! `netsilo status`: the daemon's status, read from its socket.

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use netsilo_sys::files::trust;
use netsilo_sys::transaction::journal::STATE_DIR;

use crate::tell::exit::{Exit, ExitError};
use crate::tell::out;
use crate::tell::status::{SOCKET, Status};
use crate::views;

/// Maximum time to wait for the daemon's answer.
const PATIENCE: Duration = Duration::from_secs(5);

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
    let status = read(&args.state_dir)?;
    if args.json {
        out::json(&status)?;
    } else {
        out::text(&views::status::render(&status));
    }
    Ok(Exit::Printed)
}

/// Reads the status of the daemon with this state folder.
pub(crate) fn read(dir: &Path) -> Result<Status> {
    serde_json::from_slice(ask(dir)?.as_bytes())
        .context("the daemon's answer has the format of another version of netsilo")
}

fn ask(dir: &Path) -> Result<String> {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    // a folder that others can change may not belong to the daemon
    trust::check(dir)?;
    let path = dir.join(SOCKET);
    let mut stream = match UnixStream::connect(&path) {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), NotFound | ConnectionRefused) => {
            let words = format!(
                "the daemon is not running (no answer at {}); start it with `netsilo run`",
                path.display()
            );
            return Err(ExitError(Exit::NotRunning, words).into());
        }
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Err(ExitError(
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
