//! Finds the threads and cgroups of consumers that the operator names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::parse::pid_stat::pid_stat;
use netsilo_model::parse::{cpu_lists, pid_status, scalar};
use netsilo_model::snapshot::consumer::{Cgroup, Thread};

use crate::files::error::ReadError;
use crate::files::root::Root;
use crate::transaction::knob::CGROUPS;

/// Maximum number of readings of the threads. Two consecutive ones must agree.
const LOOKS: usize = 10;

/// The consumer to pin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConsumerSelector {
    /// All processes of this name.
    Comm(String),
    /// These processes.
    Pids(Vec<u32>),
}

/// Why a consumer could not be found.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// No process has this name.
    #[error(
        "no process is called {0:?}; `ps -eo pid,comm` shows the names, \
         which the kernel cuts to 15 bytes"
    )]
    NoComm(String),
    /// No process has this pid.
    #[error("no process {0}")]
    NoPid(u32),
    /// New threads appeared in every reading.
    #[error(
        "threads come and go faster than they can be read; restrict the cgroup instead (--cgroup)"
    )]
    Restless,
    /// The cgroup does not exist.
    #[error(
        "no cgroup {path} below {CGROUPS}; `cat /proc/PID/cgroup` shows a process's own (after 0::)"
    )]
    NoCgroup {
        /// The requested path.
        path: String,
    },
    /// cgroup v2 is not mounted.
    #[error("no cgroup v2 is mounted on {CGROUPS}; restrict the threads instead (--pid, --comm)")]
    NoCgroups,
    /// The root cgroup has no `cpuset.cpus`.
    #[error("the root cgroup cannot be restricted; name a cgroup below it")]
    RootCgroup,
    /// The cgroup has no cpuset controller.
    #[error(
        "cgroup {path} has no cpuset controller; \
         switch it on with: echo +cpuset >{CGROUPS}{parent}cgroup.subtree_control"
    )]
    NoController {
        /// The cgroup.
        path: String,
        /// Its parent folder, with a slash at the end.
        parent: String,
    },
    /// A file could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// The threads of a consumer, read until two consecutive readings agree.
pub fn threads(root: &Root, who: &ConsumerSelector) -> Result<Vec<Thread>, PinError> {
    let mut before = BTreeSet::new();
    for _ in 0..LOOKS {
        let threads = look(root, who)?;
        let now: BTreeSet<(u32, u64)> =
            threads.iter().map(|thread| (thread.tid, thread.start_time)).collect();
        if now == before {
            return Ok(threads);
        }
        before = now;
    }
    Err(PinError::Restless)
}

fn look(root: &Root, who: &ConsumerSelector) -> Result<Vec<Thread>, PinError> {
    let pids = match who {
        ConsumerSelector::Comm(comm) => named(root, comm)?,
        ConsumerSelector::Pids(pids) => pids.clone(),
    };
    let mut threads = Vec::new();
    for pid in pids {
        let of_process = match root.list(&format!("/proc/{pid}/task")) {
            Ok(names) => names.iter().filter_map(|name| name.parse().ok()).collect::<Vec<u32>>(),
            Err(e) if !is_gone(&e) => return Err(e.into()),
            Err(_) if matches!(who, ConsumerSelector::Pids(_)) => return Err(PinError::NoPid(pid)),
            Err(_) => continue,
        };
        for tid in of_process {
            threads.extend(thread(root, pid, tid)?);
        }
    }
    threads.sort_unstable_by_key(|thread| (thread.pid, thread.tid));
    Ok(threads)
}

/// The CPUs to which processes are pinned. For each process, these are the CPUs of those threads
/// that may not run on all of `online`. A process that has no pinned thread, or has ended, has no
/// entry.
pub fn pinned(
    root: &Root,
    pids: impl IntoIterator<Item = u32>,
    online: &CpuSet,
) -> BTreeMap<u32, CpuSet> {
    let cpus = |pid: u32| {
        let threads = look(root, &ConsumerSelector::Pids(vec![pid])).ok()?;
        let cpus = threads.into_iter().map(|thread| thread.cpus);
        cpus.filter(|cpus| !online.is_subset(cpus)).reduce(|a, b| a.or(&b))
    };
    pids.into_iter().filter_map(|pid| Some((pid, cpus(pid)?))).collect()
}

/// The processes with this name.
/// All processes.
fn pids(root: &Root) -> Result<Vec<u32>, ReadError> {
    Ok(root.list("/proc")?.iter().filter_map(|name| name.parse().ok()).collect())
}

/// The names of all processes, without those of kernel threads.
pub fn names(root: &Root) -> BTreeSet<String> {
    let has_program =
        |pid: &u32| root.read(&format!("/proc/{pid}/cmdline")).is_ok_and(|it| !it.is_empty());
    let pids = pids(root).unwrap_or_default().into_iter();
    pids.filter(has_program)
        .filter_map(|pid| root.parse(&format!("/proc/{pid}/comm"), scalar::word).ok())
        .collect()
}

fn named(root: &Root, wanted: &str) -> Result<Vec<u32>, PinError> {
    let comm = |pid: &u32| {
        root.parse(&format!("/proc/{pid}/comm"), scalar::word).is_ok_and(|comm| comm == wanted)
    };
    let pids: Vec<u32> = pids(root)?.into_iter().filter(comm).collect();
    if pids.is_empty() { Err(PinError::NoComm(wanted.to_owned())) } else { Ok(pids) }
}

/// A thread; `None` if it has ended.
fn thread(root: &Root, pid: u32, tid: u32) -> Result<Option<Thread>, ReadError> {
    let dir = format!("/proc/{pid}/task/{tid}");
    let read = || {
        let stat = root.parse(&format!("{dir}/stat"), pid_stat)?;
        let comm = root.parse(&format!("{dir}/comm"), scalar::word)?;
        let cpus = root.parse(&format!("{dir}/status"), pid_status::cpus_allowed)?;
        Ok(Thread {
            pid,
            tid,
            comm,
            start_time: stat.start_time,
            cpus,
            fixed_affinity: stat.fixed_affinity,
        })
    };
    match read() {
        Ok(thread) => Ok(Some(thread)),
        Err(e) if is_gone(&e) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Whether a process or thread ended while its files were read. The error is ENOENT, or ESRCH for
/// open files.
fn is_gone(error: &ReadError) -> bool {
    let ended = |source: &std::io::Error| {
        source.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
    };
    error.is_absent() || matches!(error, ReadError::Io { source, .. } if ended(source))
}

/// Finds a cgroup by its path. The path is relative to the root cgroup, or is a folder of the
/// cgroup mount.
pub fn cgroup(root: &Root, path: &Path) -> Result<Cgroup, PinError> {
    let path = path.to_string_lossy();
    let below = path.strip_prefix(CGROUPS).unwrap_or(&path);
    let parts: Vec<&str> =
        below.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let path = format!("/{}", parts.join("/"));
    let Some((name, above)) = parts.split_last() else { return Err(PinError::RootCgroup) };
    if parts.contains(&"..") || *name == ".." {
        return Err(PinError::NoCgroup { path });
    }
    let parent: String = std::iter::once("/".to_owned())
        .chain(above.iter().map(|part| format!("{part}/")))
        .collect();
    let read =
        |file: String| root.optional(&format!("{CGROUPS}{file}"), |text| Ok(text.to_owned()));
    if read("/cgroup.controllers".into())?.is_none() {
        return Err(PinError::NoCgroups);
    }
    let Some(controllers) = read(format!("{path}/cgroup.controllers"))? else {
        return Err(PinError::NoCgroup { path });
    };
    if !controllers.split_whitespace().any(|controller| controller == "cpuset") {
        return Err(PinError::NoController { path, parent });
    }
    let cpus = |file: String| -> Result<CpuSet, ReadError> {
        root.parse(&format!("{CGROUPS}{file}"), cpu_lists::list)
    };
    Ok(Cgroup {
        cpus: cpus(format!("{path}/cpuset.cpus"))?,
        open: cpus(format!("{parent}cpuset.cpus.effective"))?,
        path,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let root = Root::at(dir.path()).unwrap();
        (dir, root)
    }

    #[test]
    fn all_threads_of_a_process_are_found_by_its_number_and_its_name() {
        let (done, wait) = std::sync::mpsc::channel::<()>();
        // a thread sets its own name when it starts
        let (named, is_named) = std::sync::mpsc::channel();
        let sleep = move || named.send(()).is_ok() && wait.recv().is_err();
        let sleeper = std::thread::Builder::new().name("pin-sleeper".into()).spawn(sleep).unwrap();
        is_named.recv().unwrap();
        let me = std::process::id();
        // one reading: other tests of this program start and end threads concurrently
        let found = look(&Root::live(), &ConsumerSelector::Pids(vec![me])).unwrap();
        assert!(
            found.iter().any(|thread| thread.comm == "pin-sleeper" && thread.tid != me),
            "{found:?}"
        );
        assert!(
            found.iter().all(|thread| thread.pid == me
                && !thread.fixed_affinity
                && !thread.cpus.is_empty())
        );
        drop(done);
        assert!(sleeper.join().unwrap());
        let error = |who| threads(&Root::live(), &who).unwrap_err().to_string();
        assert_eq!(
            error(ConsumerSelector::Pids(vec![u32::MAX])),
            format!("no process {}", u32::MAX)
        );
        assert!(
            error(ConsumerSelector::Comm("no-such-name".into()))
                .starts_with("no process is called \"no-such-name\"; ")
        );
    }

    #[test]
    fn a_process_is_pinned_where_its_restricted_threads_are() {
        let stat = |tid: u32| format!("{tid} (web) S {} 0 0", "0 ".repeat(40));
        let status = |cpus: &str| format!("Name:\tweb\nCpus_allowed_list:\t{cpus}\n");
        let thread = |pid: u32, tid: u32, cpus: &str| {
            let dir = format!("proc/{pid}/task/{tid}");
            let file = |name: &str, text: String| (format!("{dir}/{name}"), text);
            [file("stat", stat(tid)), file("comm", "web\n".into()), file("status", status(cpus))]
        };
        let threads = [(7, 7, "0-7"), (7, 8, "2"), (7, 9, "3"), (6, 6, "0-31")];
        let files: Vec<(String, String)> =
            threads.into_iter().flat_map(|(pid, tid, cpus)| thread(pid, tid, cpus)).collect();
        let files: Vec<(&str, &str)> =
            files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        let (_dir, root) = tree(&files);
        let found = pinned(&root, [5, 6, 7], &CpuSet::first(8));
        assert_eq!(found, [(7, CpuSet::parse_list("2-3").unwrap())].into());
    }

    #[test]
    fn a_cgroup_is_found_by_either_path_and_a_missing_one_is_reported() {
        let (_dir, root) = tree(&[
            ("sys/fs/cgroup/cgroup.controllers", "cpuset cpu\n"),
            ("sys/fs/cgroup/cpuset.cpus.effective", "0-7\n"),
            ("sys/fs/cgroup/web.slice/cgroup.controllers", "cpuset\n"),
            ("sys/fs/cgroup/web.slice/cpuset.cpus", "\n"),
            ("sys/fs/cgroup/web.slice/cpuset.cpus.effective", "0-3\n"),
            ("sys/fs/cgroup/web.slice/a.service/cgroup.controllers", "\n"),
        ]);
        let found = cgroup(&root, Path::new("/web.slice")).unwrap();
        assert_eq!((found.cpus.is_empty(), found.open.to_string().as_str()), (true, "0-7"));
        assert_eq!(cgroup(&root, Path::new("/sys/fs/cgroup/web.slice/")).unwrap(), found);
        let error = |path: &str| cgroup(&root, Path::new(path)).unwrap_err().to_string();
        assert_eq!(
            error("web.slice/a.service"),
            "cgroup /web.slice/a.service has no cpuset controller; switch it on with: echo +cpuset \
             >/sys/fs/cgroup/web.slice/cgroup.subtree_control"
        );
        assert!(error("/db.slice").starts_with("no cgroup /db.slice below /sys/fs/cgroup; "));
        assert!(error("/web.slice/../web.slice").starts_with("no cgroup "));
        assert!(error("/").starts_with("the root cgroup"));
        let (_dir, bare) = tree(&[]);
        assert!(
            cgroup(&bare, Path::new("/web.slice"))
                .unwrap_err()
                .to_string()
                .starts_with("no cgroup v2 is mounted")
        );
    }
}
