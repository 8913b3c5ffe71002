//! Processes: NAPI kthreads, programs that write the same knobs, and this program itself.

use std::collections::BTreeMap;

use netsilo_model::parse::pid_stat::pid_stat;
use netsilo_model::parse::schedstat::{processor, thread_time};
use netsilo_model::parse::{pid_status, scalar};
use netsilo_model::snapshot::net_thread::{NetThread, NetThreadKind};
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

/// Kernel threads that receive or send, by pid. Without times, only those that can be placed.
pub(crate) fn net_threads(
    notes: &Notes<'_>,
    processes: &[Process],
    with_times: bool,
) -> BTreeMap<u32, NetThread> {
    let thread = |process: &Process| {
        let is_read = |kind: NetThreadKind| with_times || kind.is_placed_by_affinity();
        NetThreadKind::from_comm(&process.comm).filter(|kind| is_read(*kind))?;
        Some((process.pid, net_thread(notes, process.pid, with_times)?))
    };
    processes.iter().filter_map(thread).collect()
}

fn net_thread(notes: &Notes<'_>, pid: u32, with_times: bool) -> Option<NetThread> {
    let dir = format!("/proc/{pid}");
    // `stat` cuts the name to 15 bytes; `comm` has the whole name since 5.17. A worker's name
    // changes with its work.
    let comm = notes.get(&format!("{dir}/comm"), scalar::word)?;
    let kind = NetThreadKind::from_comm(&comm)?;
    let mut thread = NetThread { comm, ..NetThread::default() };
    // There is one for each CPU, and bundles have no `stat` of them.
    if kind != NetThreadKind::Ksoftirqd {
        let both = |text: &str| Ok((pid_stat(text)?, processor(text)));
        let (stat, ran_on) = notes.get(&format!("{dir}/stat"), both).filter(|it| it.0.kthread)?;
        (thread.start_time, thread.bound, thread.ran_on) =
            (stat.start_time, stat.fixed_affinity, ran_on);
    }
    if kind.is_placed_by_affinity() {
        thread.cpus = notes.get(&format!("{dir}/status"), pid_status::cpus_allowed);
    }
    if with_times {
        let time = |text: &str| Ok(thread_time(text));
        thread.time = notes.get(&format!("{dir}/schedstat"), time).flatten();
    }
    Some(thread)
}

/// Kthreads of threaded NAPI, `napi/<dev>-<id>` (`net/core/dev.c:napi_kthread_create`).
pub(crate) fn napi_threads(threads: &BTreeMap<u32, NetThread>) -> Vec<NapiThread> {
    let of_napi = |(pid, thread): (&u32, &NetThread)| {
        let is_of_napi = NetThreadKind::from_comm(&thread.comm) == Some(NetThreadKind::Napi);
        let (comm, start_time) = (thread.comm.clone(), thread.start_time);
        let cpus = thread.cpus.clone().filter(|_| is_of_napi)?;
        Some(NapiThread { pid: *pid, comm, start_time, cpus })
    };
    threads.iter().filter_map(of_napi).collect()
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
