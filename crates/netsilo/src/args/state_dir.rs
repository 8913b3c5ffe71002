//! The journal's folder and the kernel that a verb works on.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use netsilo_sys::files::root::Root;
use netsilo_sys::transaction::journal::STATE_DIR;
use netsilo_sys::transaction::kernel::Live;

/// The journal's folder and the kernel that a verb works on.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct StateDir {
    /// Folder of the journal; it must not outlive a boot, as the settings do not
    #[arg(long, value_name = "DIR", default_value = STATE_DIR)]
    state_dir: PathBuf,
    /// Directory that stands for the running kernel, for tests
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

impl StateDir {
    /// Returns the root of the kernel's files.
    pub(crate) fn root(&self) -> Result<Root> {
        Ok(if self.root == Path::new("/") { Root::live() } else { Root::at(&self.root)? })
    }

    /// Returns the kernel whose settings are read and written.
    pub(crate) fn kernel(&self) -> Result<Live> {
        Ok(Live::new(self.root()?))
    }

    /// Returns the path of the directory that stands for the running kernel.
    pub(crate) fn root_path(&self) -> &Path {
        &self.root
    }

    /// Returns the folder of the journal as an absolute path.
    pub(crate) fn absolute(&self) -> Result<PathBuf> {
        std::path::absolute(&self.state_dir)
            .context("cannot make the path of the state folder absolute")
    }

    /// Returns the folder of the journal.
    pub(crate) fn path(&self) -> &Path {
        &self.state_dir
    }
}
