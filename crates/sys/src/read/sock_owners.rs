//! Which processes hold which sockets, and where their threads run.
//!
//! Reads `/proc/<pid>/{fd,comm,cgroup,task}`. Leaves out processes that exit meanwhile or are not
//! accessible.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{fs, io};

use netsilo_model::derive::sock_diag::{Process, Thread};
use netsilo_model::parse::schedstat;

/// The holders of each socket, by its inode. For each holder: thread group id -> one of its
/// descriptors of the socket.
pub(crate) type Holders = BTreeMap<u32, BTreeMap<u32, i32>>;

/// Finds the holders of the wanted sockets.
pub(crate) fn holders(proc: &Path, wanted: &BTreeSet<u32>) -> io::Result<Holders> {
    let mut holders = Holders::new();
    for tgid in numbered(fs::read_dir(proc)?) {
        let Ok(fds) = fs::read_dir(proc.join(tgid.to_string()).join("fd")) else { continue };
        for entry in fds.flatten() {
            let Some(fd) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let inode = fs::read_link(entry.path()).ok().and_then(|link| socket_inode(&link));
            if let Some(inode) = inode.filter(|inode| wanted.contains(inode)) {
                holders.entry(inode).or_default().entry(tgid).or_insert(fd);
            }
        }
    }
    Ok(holders)
}

fn socket_inode(link: &Path) -> Option<u32> {
    schedstat::link_inode(link.to_str()?, "socket")
}

/// The entries whose name is a number.
fn numbered(entries: fs::ReadDir) -> impl Iterator<Item = u32> {
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Name, cgroup and threads of a process; `None` if it has exited.
pub(crate) fn process(proc: &Path, tgid: u32) -> Option<Process> {
    let dir = proc.join(tgid.to_string());
    let comm = fs::read_to_string(dir.join("comm")).ok()?;
    let cgroup = fs::read_to_string(dir.join("cgroup")).ok();
    let tasks = fs::read_dir(dir.join("task")).ok()?;
    let thread = |tid: u32| Some((tid, thread(&dir.join("task").join(tid.to_string()))?));
    Some(Process {
        comm: comm.trim_end_matches('\n').to_owned(),
        cgroup: cgroup.as_deref().and_then(schedstat::cgroup_path).map(str::to_owned),
        threads: numbered(tasks).filter_map(thread).collect(),
    })
}

fn thread(dir: &Path) -> Option<Thread> {
    let cpu = schedstat::processor(&fs::read_to_string(dir.join("stat")).ok()?)?;
    let schedstat = fs::read_to_string(dir.join("schedstat")).ok();
    Some(Thread { cpu, run_ns: schedstat.as_deref().and_then(schedstat::run_ns) })
}
