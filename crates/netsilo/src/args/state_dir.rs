//! The journal's folder and the kernel that a verb works on.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use netsilo_model::change::shell_word;
use netsilo_sys::files::root::Root;
use netsilo_sys::read::process::THIS_PROGRAM;
use netsilo_sys::transaction::journal::{self, STATE_DIR};
use netsilo_sys::transaction::kernel::Live;

/// The journal's folder and the kernel that a verb works on.
#[derive(Debug, Clone, clap::Args)]
pub struct StateDir {
    /// Folder of the journal; it must not survive a reboot, because the settings do not
    #[arg(long, value_name = "DIR", default_value = STATE_DIR)]
    state_dir: PathBuf,
    /// Directory that stands for the running kernel, for tests
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

impl StateDir {
    /// Returns the root of the kernel's files.
    pub fn root(&self) -> Result<Root> {
        Ok(if self.root == Path::new("/") { Root::live() } else { Root::at(&self.root)? })
    }

    /// Returns the kernel whose settings are read and written.
    pub fn kernel(&self) -> Result<Live> {
        Ok(Live::new(self.root()?))
    }

    /// Returns the folder of the journal as an absolute path.
    pub fn absolute(&self) -> Result<PathBuf> {
        std::path::absolute(&self.state_dir)
            .context("cannot make the path of the state folder absolute")
    }

    /// Returns the folder of the journal.
    pub fn path(&self) -> &Path {
        &self.state_dir
    }
    /// A command line of netsilo that works on the same folder.
    pub(crate) fn command(&self, verb: &str) -> String {
        let command = journal::command(&self.state_dir, verb);
        if self.root == Path::new("/") {
            return command;
        }
        format!("{command} --root {}", shell_word(&self.root.to_string_lossy()))
    }

    /// The command that runs this same executable as the guard of a transaction, even if the file
    /// was replaced. `dir` is the absolute path of the journal's folder.
    pub(crate) fn guard_command(&self, dir: &Path, transaction: u64) -> Command {
        let mut command = Command::new(THIS_PROGRAM);
        command.arg("guard").arg(transaction.to_string());
        command.arg("--state-dir").arg(dir).arg("--root").arg(&self.root);
        command
    }
}
