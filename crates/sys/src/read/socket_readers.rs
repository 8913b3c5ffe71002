//! Processes that hold UDP sockets or listeners: the times of their threads, and the CPU quotas of
//! their cgroups.
//!
//! They are read before a loss is known, because only two readings show what happened in a window.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use netsilo_model::parse::cpu_bandwidth::{ancestors, cpu_max, cpu_stat, v1_path, v2_path};
use netsilo_model::parse::pid_status::voluntary_switches;
use netsilo_model::parse::scalar;
use netsilo_model::parse::schedstat::thread_time;
use netsilo_model::snapshot::socket_readers::{
    CpuQuota, SocketBuffer, SocketReader, SocketReaders, SocketThread,
};
use netsilo_model::snapshot::sockets::{LosingSocket, SocketKind};

use crate::files::error::ReadError;
use crate::files::root::Root;
use crate::read::losing_sockets::{Candidate, candidates, losing};
use crate::read::pidfd;
use crate::read::sock_owners::{self, Holders};

/// Maximum number of processes that are read of this network namespace, and of the others.
const MOST_PROCESSES: usize = 64;

/// The files of this process's network namespace. Linux 3.10 has no `/proc/thread-self`.
const NET: &str = "/proc/net";

/// Maximum number of threads that are read, of all processes together.
const MOST_THREADS: usize = 512;

/// Where cgroups are mounted: v2, or the hierarchies of v1.
const CGROUPS: &str = "/sys/fs/cgroup";

/// What was read of sockets.
pub(crate) struct Sockets {
    /// Sockets of this namespace that have dropped something.
    pub(crate) losing: Vec<LosingSocket>,
    /// Those of other namespaces, by inode number.
    pub(crate) elsewhere: BTreeMap<u32, Vec<LosingSocket>>,
    pub(crate) readers: SocketReaders,
    pub(crate) holders: Holders,
}

impl Sockets {
    /// Searches `/proc` for the holders, unless `known` has those of all losing sockets.
    /// `elsewhere`: the sockets of other namespaces.
    pub(crate) fn read(
        root: &Root,
        known: Option<&Holders>,
        elsewhere: Vec<Candidate>,
    ) -> Result<Self, ReadError> {
        let mut all = candidates(root, NET, None)?;
        all.extend(elsewhere);
        all.sort_by_key(|it| (it.netns.is_some(), Reverse((it.socket.drops, it.socket.queued))));
        let mut lost = all.iter().filter(|it| it.socket.drops > 0);
        let holders =
            match known.filter(|known| lost.all(|it| known.contains_key(&it.socket.inode))) {
                Some(known) => known.clone(),
                None => search(root, &all)?,
            };
        let of = |netns| losing(root, all.iter().filter(move |it| it.netns == netns), &holders);
        let lost = || all.iter().filter(|it| it.socket.drops > 0);
        let others: BTreeSet<u32> = lost().filter_map(|it| it.netns).collect();
        let elsewhere = others.into_iter().map(|netns| (netns, of(Some(netns)))).collect();
        let losing = of(None);
        let mut readers = readers(root, &all, &holders);
        let lost = lost().filter(|it| it.socket.inode != 0);
        readers.buffers = lost.map(|it| (it.socket.inode, buffer(it, &holders))).collect();
        Ok(Self { losing, elsewhere, readers, holders })
    }
}

fn search(root: &Root, all: &[Candidate]) -> Result<Holders, ReadError> {
    let inodes: BTreeSet<u32> =
        all.iter().map(|it| it.socket.inode).filter(|inode| *inode != 0).collect();
    if inodes.is_empty() {
        return Ok(Holders::new());
    }
    let holders = root.path("/proc").and_then(|proc| sock_owners::holders(&proc, &inodes));
    holders.map_err(|e| ReadError::from_io("/proc", e))
}

fn buffer(candidate: &Candidate, holders: &Holders) -> SocketBuffer {
    let Candidate { socket, group, .. } = candidate;
    let fds = holders.get(&socket.inode);
    let (bytes, is_set) = fds
        .and_then(BTreeMap::first_key_value)
        .filter(|_| socket.kind == SocketKind::Udp)
        .and_then(|(tgid, fd)| pidfd::Process::open(*tgid).ok()?.receive_buffer(*fd).ok())
        .unzip();
    SocketBuffer {
        bytes,
        is_set: is_set.flatten(),
        group: *group,
        holders: fds.into_iter().flat_map(BTreeMap::keys).copied().collect(),
    }
}

/// Reads the holders of these sockets, in this order.
fn readers(root: &Root, sockets: &[Candidate], holders: &Holders) -> SocketReaders {
    let mut readers = SocketReaders::default();
    let mut room = MOST_THREADS;
    for Candidate { socket, netns, .. } in sockets {
        let most = if netns.is_some() { 2 * MOST_PROCESSES } else { MOST_PROCESSES };
        let port = Some(socket.port).filter(|_| socket.kind == SocketKind::TcpListen);
        for tgid in holders.get(&socket.inode).into_iter().flat_map(BTreeMap::keys) {
            if let Some(known) = readers.processes.get_mut(tgid) {
                known.ports.extend(port);
            } else if readers.processes.len() < most
                && let Some(new) = reader(root, *tgid, &mut room, &mut readers.quotas)
            {
                let new = SocketReader { ports: port.into_iter().collect(), ..new };
                readers.processes.insert(*tgid, new);
            }
        }
    }
    readers
}

/// A process; `None` if it has exited.
fn reader(
    root: &Root,
    tgid: u32,
    room: &mut usize,
    quotas: &mut BTreeMap<String, CpuQuota>,
) -> Option<SocketReader> {
    let dir = format!("/proc/{tgid}");
    let comm = root.parse(&format!("{dir}/comm"), scalar::word).ok()?;
    let cgroups = root.read(&format!("{dir}/cgroup")).unwrap_or_default();
    let v1 = v1_path(&cgroups);
    let (hierarchy, path) =
        (if v1.is_some() { "/cpu" } else { "" }, v1.or_else(|| v2_path(&cgroups)).unwrap_or("/"));
    // `ip netns exec` hides the folder, but not from the process that started it, or the first one.
    let parent = rustix::process::getppid().map_or(1, |parent| parent.as_raw_pid());
    let seen_by = ["".to_owned(), format!("/proc/{parent}/root"), "/proc/1/root".to_owned()];
    let folders = seen_by.into_iter().map(|root| format!("{root}{CGROUPS}{hierarchy}"));
    let folder =
        folders.into_iter().find(|folder| root.exists(&format!("{folder}{path}/cpu.stat")));
    for above in ancestors(path) {
        let quota = folder.as_ref().filter(|_| !quotas.contains_key(above));
        let quota = quota.and_then(|folder| quota_of(root, &format!("{folder}{above}")));
        quotas.extend(quota.map(|quota| (above.to_owned(), quota)));
    }
    let cgroup = (path == "/" || folder.is_some()).then(|| path.to_owned());
    let tids = root.list(&format!("{dir}/task")).unwrap_or_default();
    let mut threads = BTreeMap::new();
    if tids.len() <= *room {
        *room -= tids.len();
        let thread =
            |tid: &String| Some((tid.parse().ok()?, thread(root, &format!("{dir}/task/{tid}"))?));
        threads = tids.iter().filter_map(thread).collect();
    }
    Some(SocketReader { comm, cgroup, threads, ports: BTreeSet::new() })
}

fn thread(root: &Root, dir: &str) -> Option<SocketThread> {
    let time = thread_time(&root.read(&format!("{dir}/schedstat")).ok()?)?;
    Some(SocketThread {
        time,
        sleeps: voluntary_switches(&root.read(&format!("{dir}/status")).ok()?)?,
    })
}

/// The quota of a cgroup; `None` if it has none.
fn quota_of(root: &Root, folder: &str) -> Option<CpuQuota> {
    let read = |file: &str| root.read(&format!("{folder}/{file}")).ok();
    let limits = match read("cpu.max") {
        Some(text) => cpu_max(&text),
        None => {
            let number = |file| read(file)?.trim().parse().ok();
            // -1: no quota
            number("cpu.cfs_quota_us").zip(number("cpu.cfs_period_us"))
        }
    };
    Some(cpu_stat(&read("cpu.stat")?, limits?))
}
