//! Processes: NAPI kthreads, programs that write the same knobs, and this program itself.

use netsilo_model::parse::pid_stat::pid_stat;
use netsilo_model::parse::{pid_status, scalar};
use netsilo_model::snapshot::netdev::NapiThread;

use crate::read::gaps::Notes;

/// The path at which this process can start its own program again, even if the file was replaced.
pub const THIS_PROGRAM: &str = "/proc/self/exe";

/// A process with its own name for itself (`comm`).
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) comm: String,
}

/// All processes. A captured tree saves only those files of a process that are read later.
pub(crate) fn processes(notes: &Notes<'_>) -> Vec<Process> {
    let root = notes.root.unrecorded();
    let Some(names) = notes.wanted(root.list("/proc")) else {
        return Vec::new();
    };
    let mut pids: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    pids.sort_unstable();
    let comm = |pid: u32| root.parse(&format!("/proc/{pid}/comm"), scalar::word).ok();
    pids.into_iter().filter_map(|pid| Some(Process { pid, comm: comm(pid)? })).collect()
}

/// Kthreads of threaded NAPI, `napi/<dev>-<id>` (`net/core/dev.c:napi_kthread_create`).
pub(crate) fn napi_threads(notes: &Notes<'_>, processes: &[Process]) -> Vec<NapiThread> {
    processes
        .iter()
        .filter(|p| p.comm.starts_with("napi/"))
        .filter_map(|p| napi_thread(notes, p))
        .collect()
}

pub(crate) fn napi_thread(notes: &Notes<'_>, process: &Process) -> Option<NapiThread> {
    let dir = format!("/proc/{}", process.pid);
    let stat = notes.get(&format!("{dir}/stat"), pid_stat)?;
    // `stat` cuts the name to 15 bytes; `comm` has the whole name since 5.17
    let comm = notes.get(&format!("{dir}/comm"), scalar::word)?;
    let cpus = notes.get(&format!("{dir}/status"), pid_status::cpus_allowed)?;
    stat.kthread.then_some(NapiThread { pid: process.pid, comm, start_time: stat.start_time, cpus })
}

/// The id of the NAPI that a kthread of this name polls, if the NAPI belongs to this netdev. The id
/// is 0 if the NAPI has none or it is unknown: before 5.17 the name is cut to 15 bytes.
pub(crate) fn napi_id(comm: &str, netdev: &str) -> Option<u32> {
    let name = comm.strip_prefix("napi/")?;
    match name.strip_prefix(netdev).and_then(|rest| rest.strip_prefix('-')) {
        Some(id) => Some(id.parse().unwrap_or(0)),
        None => (comm.len() == 15 && netdev.starts_with(name)).then_some(0),
    }
}
