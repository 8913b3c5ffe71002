//! [`NetThreadWork`]: what each kernel thread that receives or sends did, and how to place it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::change::{Change, knobs};
use crate::derive::rates::Rates;
use crate::derive::thread_share::ThreadShare;
use crate::machine::cpuset::{CpuId, CpuSet};
use crate::machine::ids::Irq;
use crate::snapshot::host::Snapshot;
use crate::snapshot::net_thread::{NetThread, NetThreadKind, cpu_of, crypt_netdev, irq_of};
use crate::snapshot::netdev::Netdev;
use crate::snapshot::observation::Observation;
use crate::snapshot::thread_time::ThreadTime;

/// From this share of a CPU's time in the system, some thread there ran.
const BUSY: f64 = 0.5;

/// A kernel thread that does the work of receiving or sending packets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NetThreadWork {
    /// Process id.
    pub pid: u32,
    /// Name.
    pub comm: String,
    /// Start time in clock ticks after boot.
    pub start_time: u64,
    /// What it does.
    pub kind: NetThreadKind,
    /// The netdevs for which it works; empty if it is not one of this network namespace: a driver's
    /// own netdev, for example, which sysfs does not list.
    pub netdevs: Vec<String>,
    /// The interrupt whose handler it runs: the thread follows the interrupt.
    pub irq: Option<Irq>,
    /// The CPU where it runs: to which it is bound, else where it ran last; `None` if not known.
    pub cpu: Option<CpuId>,
    /// Whether it may run elsewhere too, and ran elsewhere before.
    pub roams: bool,
    /// The CPUs on which it may run; `None` if not read.
    pub cpus: Option<CpuSet>,
    /// Whether it can be placed by these CPUs.
    pub movable: bool,
    /// The time that it ran and waited; `None` if not recorded.
    pub time: Option<ThreadShare>,
}

impl NetThreadWork {
    /// What it does, in words.
    pub fn does(&self) -> String {
        let of = match self.netdevs.as_slice() {
            [] => "a netdev that is not known".to_owned(),
            netdevs => netdevs.join(", "),
        };
        match (self.kind, self.irq) {
            (NetThreadKind::Irq, Some(irq)) => format!("handles irq {irq} of {of}"),
            (NetThreadKind::Irq, None) => format!("handles an interrupt of {of}"),
            (NetThreadKind::Napi, _) => format!("polls {of}"),
            (NetThreadKind::Mt76, _) => "works for a Wi-Fi driver".to_owned(),
            (NetThreadKind::Ksoftirqd, _) => "runs softirqs that were left over".to_owned(),
            (NetThreadKind::BacklogNapi, _) => "processes the cpu's backlog".to_owned(),
            (NetThreadKind::WireguardCrypt, _) => format!("encrypts for {of}, and other work"),
        }
    }

    /// How it can be placed, in words.
    pub fn placed_by(&self) -> String {
        match (self.kind, self.irq) {
            (_, Some(irq)) => format!("place irq {irq}: the thread follows it"),
            _ if self.movable => "its affinity: netsilo plan --fix softirq-one-cpu".to_owned(),
            (NetThreadKind::BacklogNapi, _) => "bound to its cpu: move RPS".to_owned(),
            _ => "bound to its cpu: move queues or RPS".to_owned(),
        }
    }

    /// Whether all the time that it ran is work for packets on its CPU: a worker does other work
    /// too, and a thread that is not bound may have run elsewhere.
    pub fn is_all_here(&self) -> bool {
        let is_bound = self.cpus.as_ref().and_then(CpuSet::single).is_some();
        self.time.is_some()
            && self.kind != NetThreadKind::WireguardCrypt
            && (is_bound || cpu_of(&self.comm).is_some())
    }

    /// The share of a CPU's time that it took; `None` if not recorded.
    pub fn ran(&self) -> Option<f64> {
        self.time.map(|time| time.ran)
    }

    /// The change that lets it run only on one CPU; `None` if that is so, or impossible.
    pub fn moved_to(&self, cpu: CpuId, reason: String) -> Option<Change> {
        let (pid, comm, start_time) = (self.pid, self.comm.clone(), self.start_time);
        let (old, new) = (self.cpus.clone()?, CpuSet::from_cpu(cpu));
        let knob = knobs::NapiThread { pid, comm, start_time };
        (self.movable && old != new).then(|| Change::new(knob, old, new, reason))
    }
}

/// The threads of an observation, those that ran most first. Threads of interrupts that belong to
/// no netdev are left out.
pub fn net_threads(observation: &Observation, rates: &Rates) -> Vec<NetThreadWork> {
    let Observation { before, after, .. } = observation;
    let times = times(observation, rates);
    let work = |(pid, thread): (&u32, &NetThread)| {
        let kind = NetThreadKind::from_comm(&thread.comm)?;
        let netdevs = netdevs_of(after, *pid, &thread.comm);
        if kind == NetThreadKind::Irq && netdevs.is_empty() {
            return None;
        }
        let only = thread.cpus.as_ref().and_then(CpuSet::single);
        let fixed = cpu_of(&thread.comm).or(only);
        let earlier = same(before, *pid, thread).and_then(|it| it.ran_on);
        Some(NetThreadWork {
            pid: *pid,
            comm: thread.comm.clone(),
            start_time: thread.start_time,
            kind,
            netdevs,
            irq: irq_of(&thread.comm),
            cpu: fixed.or(thread.ran_on),
            roams: fixed.is_none() && earlier != thread.ran_on,
            cpus: thread.cpus.clone(),
            movable: thread.is_movable(),
            time: times.get(pid).copied(),
        })
    };
    let mut threads: Vec<NetThreadWork> = after.net_threads.iter().filter_map(work).collect();
    let ran = |it: &NetThreadWork| it.ran().unwrap_or(-1.0);
    threads.sort_by(|a, b| ran(b).total_cmp(&ran(a)));
    threads
}

/// The time of each thread. Empty if the kernel keeps no times: without `CONFIG_SCHED_INFO` the
/// file is missing, or all its numbers are 0. They were not read twice where all stand still while
/// a thread's CPU was busy in the system.
pub(crate) fn times(observation: &Observation, rates: &Rates) -> BTreeMap<u32, ThreadShare> {
    let Observation { before, after, .. } = observation;
    let both = || {
        after.net_threads.iter().filter_map(|(pid, thread)| {
            Some((*pid, same(before, *pid, thread)?.time?, thread.time?))
        })
    };
    let busy = |cpu: CpuId| rates.cpus.get(&cpu)?.shares.map(|shares| shares.sys >= BUSY);
    let is_busy = |thread: &NetThread| thread.ran_on.and_then(busy) == Some(true);
    let stand_still = both().all(|(_, old, new)| old == new);
    let none = both().all(|(.., new)| new == ThreadTime::default());
    if none || stand_still && after.net_threads.values().any(is_busy) {
        return BTreeMap::new();
    }
    let seconds = rates.elapsed.as_secs_f64();
    both()
        .filter_map(|(pid, old, new)| Some((pid, ThreadShare::between(old, new, seconds)?)))
        .collect()
}

/// The same thread in an earlier snapshot.
fn same<'a>(before: &'a Snapshot, pid: u32, thread: &NetThread) -> Option<&'a NetThread> {
    before.net_threads.get(&pid).filter(|old| old.start_time == thread.start_time)
}

/// The netdevs of the snapshot for which a thread works.
fn netdevs_of(snapshot: &Snapshot, pid: u32, comm: &str) -> Vec<String> {
    let irq = irq_of(comm);
    let is_of = |netdev: &&Netdev| {
        let rx = netdev.rx_queues.iter().map(|queue| &queue.irq);
        let queues = rx.chain(netdev.tx_queues.iter().map(|queue| &queue.irq));
        let mut irqs = queues.flatten().map(|edge| edge.to).chain(netdev.irqs.iter().copied());
        netdev.napis.iter().any(|napi| napi.thread.as_ref().is_some_and(|it| it.pid == pid))
            || irq.is_some_and(|irq| irqs.any(|it| it == irq))
            || crypt_netdev(comm) == Some(&netdev.name)
    };
    snapshot.netdevs.iter().filter(is_of).map(|netdev| netdev.name.clone()).collect()
}

/// Whether some thread polls NAPIs that belong to no netdev of the snapshot.
pub(crate) fn polls_unlisted(snapshot: &Snapshot) -> bool {
    let is_unlisted = |(pid, thread): (&u32, &NetThread)| {
        NetThreadKind::from_comm(&thread.comm) == Some(NetThreadKind::Napi)
            && netdevs_of(snapshot, *pid, &thread.comm).is_empty()
    };
    snapshot.net_threads.iter().any(is_unlisted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::derive::rates::rates;
    use crate::machine::ids::NapiId;
    use crate::snapshot::netdev::{Napi, NapiThread};
    use crate::snapshot::thread_time::ThreadTime;
    use crate::synthetic::scene::{Scene, SceneNetdev, SceneQueue, SceneThread};

    /// A host with eth0 on irq 30, and these threads: name, CPUs and load.
    fn observation(threads: &[(&str, &str, f64)]) -> Observation {
        let thread = |(comm, cpus, load): &(&str, &str, f64)| SceneThread {
            comm: (*comm).to_owned(),
            cpus: CpuSet::parse_list(cpus).unwrap(),
            load: *load,
            without_time: false,
        };
        let queue = SceneQueue { irq: Some(30), packets_per_s: 100, ..SceneQueue::default() };
        let eth0 =
            SceneNetdev { name: "eth0".into(), queues: vec![queue], ..SceneNetdev::default() };
        let threads = threads.iter().map(thread).collect();
        Scene { threads, netdevs: vec![eth0], ..Scene::default() }.observation()
    }

    fn found(observation: &Observation) -> Vec<NetThreadWork> {
        net_threads(observation, &rates(&observation.before, &observation.after))
    }

    #[test]
    fn each_thread_has_its_work_its_cpu_and_how_to_move_it() {
        let host = observation(&[
            ("napi/phy0-7", "1", 0.4),
            ("irq/30-eth0", "0", 0.3),
            ("irq/9-acpi", "0", 0.2),
            ("backlog_napi/1", "1", 0.1),
            ("kworker/0:2+wg-crypt-wg0", "0", 0.05),
            ("ksoftirqd/1", "1", 0.01),
        ]);
        let row = |it: &NetThreadWork| {
            (it.does(), it.cpu.unwrap().0, it.ran().unwrap(), it.placed_by(), it.movable)
        };
        let bound = || "bound to its cpu: move queues or RPS".to_owned();
        assert_eq!(
            found(&host).iter().map(row).collect::<Vec<_>>(),
            [
                (
                    "polls a netdev that is not known".into(),
                    1,
                    0.4,
                    "its affinity: netsilo plan --fix softirq-one-cpu".into(),
                    true
                ),
                (
                    "handles irq 30 of eth0".into(),
                    0,
                    0.3,
                    "place irq 30: the thread follows it".into(),
                    false
                ),
                (
                    "processes the cpu's backlog".into(),
                    1,
                    0.1,
                    "bound to its cpu: move RPS".into(),
                    false
                ),
                (
                    "encrypts for a netdev that is not known, and other work".into(),
                    0,
                    0.05,
                    bound(),
                    false
                ),
                ("runs softirqs that were left over".into(), 1, 0.01, bound(), false),
            ],
            "no interrupt of a netdev, no row"
        );
    }

    #[test]
    fn times_that_stand_still_are_not_recorded_and_no_zeros() {
        let mut host = observation(&[("napi/phy0-7", "1", 0.4), ("napi/phy0-8", "1", 0.0)]);
        assert_eq!(
            found(&host).iter().map(NetThreadWork::ran).collect::<Vec<_>>(),
            [Some(0.4), Some(0.0)]
        );
        let time = |host: &mut Observation, run_ns| {
            let still = ThreadTime { run_ns, ..ThreadTime::default() };
            for snapshot in [&mut host.before, &mut host.after] {
                snapshot.net_threads.values_mut().for_each(|it| it.time = Some(still));
            }
        };
        let ran =
            |host: &Observation| -> Vec<_> { found(host).iter().map(NetThreadWork::ran).collect() };
        time(&mut host, 0);
        assert_eq!(ran(&host), [None, None]);
        time(&mut host, 1_000_000);
        assert_eq!(ran(&host), [Some(0.0), Some(0.0)]);
        host.after.net_threads.values_mut().for_each(|it| it.ran_on = Some(CpuId(0)));
        host.after.cpus.get_mut(&CpuId(0)).unwrap().stat.system += 9000;
        assert_eq!(ran(&host), [None, None], "somebody ran there");
        host.before.net_threads.values_mut().for_each(|it| it.start_time = 3);
        assert!(found(&host).iter().all(|it| it.time.is_none()), "other threads had the pids");
    }

    #[test]
    fn a_thread_that_may_run_elsewhere_roams_if_it_ran_elsewhere_before() {
        let mut host = observation(&[("napi/phy0-7", "0-1", 0.4), ("napi/phy0-8", "1", 0.0)]);
        host.after.net_threads.values_mut().for_each(|it| it.ran_on = Some(CpuId(1)));
        let cpus: Vec<_> = found(&host).iter().map(|it| (it.cpu, it.roams)).collect();
        assert_eq!(cpus, [(Some(CpuId(1)), true), (Some(CpuId(1)), false)]);
        let thread = &host.after.net_threads[&700];
        let (comm, start_time) = (thread.comm.clone(), thread.start_time);
        let cpus = CpuSet::from_cpu(CpuId(1));
        let thread = Some(NapiThread { pid: 700, comm, start_time, cpus });
        host.after.netdevs[0].napis = vec![Napi { id: NapiId(7), irq: None, thread }];
        assert_eq!(found(&host)[0].does(), "polls eth0");
    }
}
