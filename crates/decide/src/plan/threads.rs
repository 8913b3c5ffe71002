//! Kernel threads that work for no rx queue of a netdev: moved apart where they fill a CPU.

use std::collections::{BTreeMap, BTreeSet};

use netsilo_model::change::Change;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::net_threads::NetThreadWork;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::words::plural;

use crate::place::{FULL, IDLE};
use crate::plan::contents::Plan;

/// A thread stays unless another CPU is idler than its own by more than this share.
const STAYS: f64 = 0.05;

/// A thread that takes less than this share of a CPU fills none.
const LEAST: f64 = 0.01;

/// The plan that moves threads off full CPUs onto those of the pool that have room. `busy` is how
/// busy each CPU will be with what the plan places.
pub(super) fn apart(
    analysis: &Analysis<'_>,
    pool: &CpuSet,
    mut busy: BTreeMap<CpuId, f64>,
) -> Plan {
    let with = |is_so: fn(f64) -> bool| -> CpuSet {
        busy.iter().filter(|(_, busy)| is_so(**busy)).map(|(cpu, _)| *cpu).collect()
    };
    let (full, room) = (with(|busy| busy >= 1.0 - FULL), with(|busy| busy <= 1.0 - IDLE));
    let room = room.and(pool);
    let mut part = Plan::default();
    for cpu in full.iter() {
        let unknown = movable(analysis, cpu).iter().filter(|it| !it.is_all_here()).count();
        if unknown > 0 && !room.is_empty() {
            let reason = "it is full, and their times here are not known: netsilo plan --fix \
                          softirq-one-cpu moves them by their number";
            part.leave(&format!("{} on cpu {cpu}", plural(unknown, "kernel thread")), reason);
        }
        part.changes.extend(off(analysis, cpu, &room, &mut busy, None));
    }
    part
}

/// The changes that move threads off a full CPU, the one that ran most first. A thread whose time
/// here is not known counts as `assumed`; if that is `None`, no thread moves then.
pub(crate) fn off(
    analysis: &Analysis<'_>,
    cpu: CpuId,
    room: &CpuSet,
    busy: &mut BTreeMap<CpuId, f64>,
    assumed: Option<f64>,
) -> Vec<Change> {
    let known = |it: &NetThreadWork| if it.is_all_here() { it.ran() } else { None };
    let times = movable(analysis, cpu).into_iter().map(|it| Some((it, known(it).or(assumed)?)));
    let Some(mut times) = times.collect::<Option<Vec<_>>>() else { return Vec::new() };
    times.retain(|(_, time)| *time >= LEAST);
    let all: f64 = times.iter().map(|(_, time)| time).sum();
    let Some(own) = busy.get_mut(&cpu) else { return Vec::new() };
    *own = (*own - all).max(0.0);
    let mut changes = Vec::new();
    for (thread, time) in times {
        let load = |it: &CpuId| busy.get(it).map_or(1.0, |busy| *busy);
        let idlest = room.iter().min_by(|a, b| load(a).total_cmp(&load(b)));
        let to = idlest.filter(|to| load(to) + STAYS < load(&cpu)).unwrap_or(cpu);
        *busy.entry(to).or_default() += time;
        let how =
            thread.ran().map_or("not recorded".to_owned(), |it| format!("{:.0}%", it * 100.0));
        let reason =
            format!("cpu {cpu} would be full, and cpu {to} has room; time of the thread: {how}");
        changes.extend(thread.moved_to(to, reason).filter(|_| to != cpu));
    }
    changes
}

/// The threads that always run on a CPU, can be moved, and poll no rx queue that is placed.
pub(crate) fn movable<'a>(analysis: &'a Analysis<'_>, cpu: CpuId) -> Vec<&'a NetThreadWork> {
    let queues = analysis.silos.queues.iter().filter(|silo| silo.queue.is_some());
    let placed: BTreeSet<u32> = queues.filter_map(|it| Some(it.kthread.as_ref()?.pid)).collect();
    let here = |it: &&NetThreadWork| it.movable && it.cpu == Some(cpu) && !it.roams;
    let threads = analysis.net_threads.iter().filter(here);
    threads.filter(|it| !placed.contains(&it.pid)).collect()
}
