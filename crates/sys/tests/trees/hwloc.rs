//! Real machines' trees, from the hwloc project (`fixtures/topologies/COPYING.hwloc`).

use std::fs;
use std::path::PathBuf;

use netsilo_model::machine::topology::Topology;
use netsilo_sys::files::root::Root;
use netsilo_sys::read::topology::topology;

pub(crate) fn fixtures() -> PathBuf {
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

pub(crate) fn read(name: &str) -> Topology {
    let dir = tempfile::tempdir().unwrap();
    let packed = fs::File::open(fixtures().join(format!("{name}.tar.bz2"))).unwrap();
    let mut archive = tar::Archive::new(bzip2::read::BzDecoder::new(packed));
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().to_string_lossy().into_owned();
        // the archives have more files than needed, and creating files takes time
        if WANTED.iter().any(|part| path.contains(part)) && entry.header().entry_type().is_file() {
            entry.unpack_in(dir.path()).unwrap();
        }
    }
    let tree = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    topology(&Root::at(tree).unwrap()).unwrap()
}
