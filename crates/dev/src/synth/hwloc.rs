//! Topologies of real machines, from the hwloc project (`fixtures/topologies/COPYING.hwloc`).

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use netsilo_model::machine::topology::Topology;
use netsilo_sys::files::root::Root;
use netsilo_sys::read::topology::topology;

/// The folder of the archives.
pub fn fixtures() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/topologies"))
}

/// Files that the topology reader opens.
const WANTED: &[&str] = &[
    "/system/cpu/online",
    "/system/cpu/po",
    "/system/cpu/pr",
    "/online",
    "/topology/core_",
    "/topology/package_",
    "/topology/thread_siblings",
    "/level",
    "/type",
    "/shared_cpu",
    "/cpu_capacity",
    "/cpulist",
    "/cpumap",
    "/distance",
];

/// Reads the topology of the machine whose tree is in `NAME.tar.bz2`.
///
/// # Errors
/// The archive or its tree cannot be read.
pub fn read(name: &str) -> Result<Topology> {
    let dir = tempfile::tempdir()?;
    let packed =
        fs::File::open(fixtures().join(format!("{name}.tar.bz2"))).context(name.to_owned())?;
    let mut archive = tar::Archive::new(bzip2::read::BzDecoder::new(packed));
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.to_string_lossy().into_owned();
        // the archives have more files than needed, and creating files takes time
        if WANTED.iter().any(|part| path.contains(part)) && entry.header().entry_type().is_file() {
            entry.unpack_in(dir.path())?;
        }
    }
    let tree = fs::read_dir(dir.path())?.next().context("the archive is empty")??.path();
    Ok(topology(&Root::at(tree)?)?)
}
