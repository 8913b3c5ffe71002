//! Readers of taps: which program or virtual machine takes packets, how many, on which CPUs, and
//! whether the threads that take them get a CPU.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::derive::rates::Rates;
use crate::derive::silo::heaviest;
use crate::derive::thread_share::ThreadShare;
use crate::machine::cpuset::{CpuId, CpuSet};
use crate::parse::virtual_machine::maker_of_vhost;
use crate::snapshot::attribution::{Consumption, OTHER_SOCKETS, Protocol};
use crate::snapshot::observation::Observation;
use crate::snapshot::tap_holders::{TapHolder, TapThread, TapThreadRole};

/// A process that holds taps, and what it took from them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TapReader {
    /// Thread group id.
    pub tgid: u32,
    /// The program's name.
    pub comm: String,
    /// The name of its virtual machine; `None` if it has none, or the name is not known.
    pub guest: Option<String>,
    /// The taps, by the name in the network namespace of each.
    pub netdevs: Vec<String>,
    /// Bytes of packets taken per second; `None` if that was not counted.
    pub bytes_per_s: Option<f64>,
    /// Packets taken per second; `None` if that was not counted.
    pub packets_per_s: Option<f64>,
    /// Share of the bytes by the CPU that took them.
    pub taken_on: BTreeMap<CpuId, f64>,
    /// The CPU that put most of them into the tap.
    pub sent_on: Option<CpuId>,
    /// The threads that take packets: vhost workers; without one, the only thread that ran and
    /// does not run a CPU of a virtual machine. Empty if it is not known which take them.
    pub takers: Vec<TapThreadLine>,
    /// The threads that run CPUs of the virtual machine, by number. Empty if they are not known.
    pub vcpus: Vec<TapThreadLine>,
}

/// A thread of a reader.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TapThreadLine {
    /// Its id.
    pub tid: u32,
    /// Its name.
    pub comm: String,
    /// Its process: the reader, or itself (vhost workers before 6.4).
    pub tgid: u32,
    /// When it started, in clock ticks after boot.
    pub start_time: u64,
    /// The CPU on which it ran last.
    pub cpu: CpuId,
    /// CPUs where it may run.
    pub cpus: CpuSet,
    /// How long it ran and waited; `None` if it is new.
    pub time: Option<ThreadShare>,
}

impl TapReader {
    /// `web1 (qemu-system-x86, pid 812)`.
    pub fn label(&self) -> String {
        match &self.guest {
            Some(guest) => format!("{guest} ({}, pid {})", self.comm, self.tgid),
            None => format!("{} (pid {})", self.comm, self.tgid),
        }
    }

    /// The thread that takes packets and waited for a CPU longest.
    pub fn longest_waiting(&self) -> Option<&TapThreadLine> {
        let waited = |it: &TapThreadLine| it.time.map_or(0.0, |time| time.waited);
        self.takers.iter().max_by(|a, b| waited(a).total_cmp(&waited(b)))
    }
}

/// The readers of taps, those that took most first.
pub fn tap_readers(observation: &Observation, rates: &Rates) -> Vec<TapReader> {
    let Observation { before, after, attribution } = observation;
    let none = BTreeMap::new();
    let old = before.tap_holders.as_ref().unwrap_or(&none);
    let holders = after.tap_holders.iter().flatten();
    let counted = attribution.counts(OTHER_SOCKETS) && !attribution.elapsed.is_zero();
    let rows = attribution.consumption.iter().filter(|row| row.protocol == Protocol::Tap);
    let rows: Vec<&Consumption> = rows.collect();
    let mut readers: Vec<TapReader> = holders
        .map(|(tgid, holder)| {
            let old = old.get(tgid);
            let line = |(tid, thread): (&u32, &TapThread)| {
                let old = old.and_then(|it| it.threads.get(tid));
                TapThreadLine {
                    tid: *tid,
                    comm: thread.comm.clone(),
                    tgid: if thread.kthread { *tid } else { *tgid },
                    start_time: thread.start_time,
                    cpu: thread.cpu,
                    cpus: thread.cpus.clone(),
                    time: old.filter(|old| old.start_time == thread.start_time).and_then(|old| {
                        ThreadShare::between(old.time, thread.time, rates.elapsed.as_secs_f64())
                    }),
                }
            };
            let taken = counted.then(|| Taken::of(*tgid, holder, &rows, attribution.elapsed));
            let taken = taken.unwrap_or_default();
            TapReader {
                tgid: *tgid,
                comm: holder.comm.clone(),
                guest: holder.guest.clone(),
                netdevs: holder.netdevs.iter().cloned().collect(),
                takers: takers(holder, old).map(line).collect(),
                vcpus: vcpus(holder).into_iter().map(line).collect(),
                bytes_per_s: taken.bytes_per_s,
                packets_per_s: taken.packets_per_s,
                taken_on: taken.on,
                sent_on: taken.sent_on,
            }
        })
        .collect();
    readers.sort_by(|a, b| {
        let bytes = |it: &TapReader| it.bytes_per_s.unwrap_or(0.0);
        bytes(b).total_cmp(&bytes(a)).then(a.tgid.cmp(&b.tgid))
    });
    readers
}

fn takers<'a>(
    holder: &'a TapHolder,
    old: Option<&TapHolder>,
) -> impl Iterator<Item = (&'a u32, &'a TapThread)> {
    let of = |role| holder.threads.iter().filter(move |(_, it)| it.role == role);
    let has_vhost = of(TapThreadRole::Vhost).next().is_some();
    let runs = |tid: &u32| old.and_then(|it| it.threads.get(tid)).map_or(0, |it| it.time.runs);
    let others = of(TapThreadRole::Other).filter(|(tid, it)| it.time.runs > runs(tid));
    let others: Vec<_> = others.collect();
    let only = others.first().copied().filter(|_| others.len() == 1 && !has_vhost);
    of(TapThreadRole::Vhost).chain(only)
}

fn vcpus(holder: &TapHolder) -> Vec<(&u32, &TapThread)> {
    let number = |it: &TapThread| match it.role {
        TapThreadRole::Vcpu(number) => Some(number),
        _ => None,
    };
    let mut all: Vec<_> = holder.threads.iter().filter(|(_, it)| number(it).is_some()).collect();
    all.sort_by_key(|(_, it)| number(it));
    all
}

/// What a process and its vhost workers took.
#[derive(Default)]
struct Taken {
    bytes_per_s: Option<f64>,
    packets_per_s: Option<f64>,
    on: BTreeMap<CpuId, f64>,
    sent_on: Option<CpuId>,
}

impl Taken {
    /// `rows`: all reads of taps.
    fn of(tgid: u32, holder: &TapHolder, rows: &[&Consumption], elapsed: Duration) -> Self {
        let seconds = elapsed.as_secs_f64();
        let is_its = |row: &&Consumption| {
            let worker = maker_of_vhost(&row.consumer.comm).is_some();
            let by_worker = worker && holder.threads.contains_key(&row.consumer.tgid);
            row.consumer.tgid == tgid || by_worker
        };
        let rows = || rows.iter().copied().filter(is_its);
        // Then its workers are not known.
        if holder.threads.is_empty() && rows().next().is_none() {
            return Self::default();
        }
        let sum = |of: &dyn Fn(&Consumption) -> u64| rows().map(of).fold(0, u64::saturating_add);
        let (bytes, packets) = (sum(&|it| it.bytes), sum(&|it| it.events));
        let mut on: BTreeMap<CpuId, f64> = BTreeMap::new();
        for row in rows() {
            *on.entry(row.consumer_cpu).or_default() += row.bytes as f64 / bytes.max(1) as f64;
        }
        let sent = rows().filter_map(|row| Some((row.protocol_cpu?, row.bytes as f64)));
        Self {
            bytes_per_s: Some(bytes as f64 / seconds),
            packets_per_s: Some(packets as f64 / seconds),
            on,
            sent_on: heaviest(sent),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::snapshot::attribution::{Consumer, Hook, QueueResolution};
    use crate::snapshot::thread_time::ThreadTime;
    use crate::synthetic::scene::Scene;

    fn thread(comm: &str, role: TapThreadRole, run_ns: u64, wait_ns: u64) -> TapThread {
        TapThread {
            comm: comm.into(),
            role,
            kthread: comm.starts_with("vhost"),
            start_time: 5,
            time: ThreadTime { run_ns, wait_ns, runs: run_ns },
            cpu: CpuId(1),
            cpus: CpuSet::first(2),
        }
    }

    /// Process 812 with the kernel's worker 900.
    fn host() -> Observation {
        let mut host = Scene::default().observation();
        let holder = |time: u64| TapHolder {
            comm: "qemu".into(),
            guest: Some("web1".into()),
            netdevs: ["vnet0".to_owned()].into(),
            here: BTreeSet::new(),
            threads: [
                (812, thread("qemu", TapThreadRole::Other, time, 0)),
                (813, thread("worker", TapThreadRole::Other, 1, 0)),
                (814, thread("CPU 1/KVM", TapThreadRole::Vcpu(1), 0, 0)),
                (815, thread("CPU 0/KVM", TapThreadRole::Vcpu(0), 0, 0)),
                (900, thread("vhost-812", TapThreadRole::Vhost, time, 2 * time)),
            ]
            .into(),
        };
        let quarter = u64::try_from((host.after.at - host.before.at).as_nanos()).unwrap() / 4;
        host.before.tap_holders = Some([(812, holder(7))].into());
        host.after.tap_holders = Some([(812, holder(7 + quarter))].into());
        host
    }

    fn readers(host: &Observation) -> Vec<TapReader> {
        tap_readers(host, &crate::derive::rates::rates(&host.before, &host.after))
    }

    #[test]
    fn a_virtual_machine_has_workers_and_cpus() {
        let host = host();
        let [reader] = &readers(&host)[..] else { panic!() };
        assert_eq!(reader.label(), "web1 (qemu, pid 812)");
        let lines = |of: &[TapThreadLine]| -> Vec<(u32, u32)> {
            of.iter().map(|it| (it.tid, it.tgid)).collect()
        };
        assert_eq!(
            (lines(&reader.takers), lines(&reader.vcpus)),
            (vec![(900, 900)], vec![(815, 812), (814, 812)])
        );
        let waits = reader.longest_waiting().unwrap().time.unwrap();
        assert!((waits.ran - 0.25).abs() < 0.01 && (waits.waited - 0.5).abs() < 0.02, "{waits:?}");
        assert_eq!((reader.bytes_per_s, reader.sent_on), (None, None), "nobody counted");
    }

    #[test]
    fn what_it_took_is_what_it_and_its_workers_read() {
        let mut host = host();
        let hook = Hook { quantity: OTHER_SOCKETS.into(), hook: "copied".into(), refused: None };
        host.attribution.hooks = vec![hook];
        let row = |tgid, comm: &str, protocol| Consumption {
            consumer: Consumer { tgid, comm: comm.into(), work: false, cgroup: None, netns: 1 },
            protocol,
            protocol_cpu: Some(CpuId(3)),
            consumer_cpu: CpuId(tgid % 8),
            bytes: 2000,
            events: 2,
            napi: None,
            rx_queue: None,
            resolved: QueueResolution::Local,
            poll_cpu: None,
            first_reads: 0,
            approximate: false,
            connected: None,
        };
        host.attribution.elapsed = Duration::from_secs(2);
        host.attribution.consumption = vec![
            row(812, "qemu", Protocol::Tap),
            row(900, "vhost-812", Protocol::Tap),
            row(900, "other", Protocol::Tap),
            row(812, "qemu", Protocol::Tcp),
            row(813, "pasta", Protocol::Tap),
        ];
        let reader = &readers(&host)[0];
        assert_eq!((reader.bytes_per_s, reader.packets_per_s), (Some(2000.0), Some(2.0)));
        assert_eq!(reader.taken_on, [(CpuId(4), 1.0)].into());
        assert_eq!(reader.sent_on, Some(CpuId(3)));
    }

    #[test]
    fn without_a_worker_the_only_thread_that_ran_takes_packets() {
        let mut host = host();
        for holders in [&mut host.before.tap_holders, &mut host.after.tap_holders] {
            holders.as_mut().unwrap().get_mut(&812).unwrap().threads.remove(&900);
        }
        let takers = |host: &Observation| -> Vec<u32> {
            readers(host)[0].takers.iter().map(|it| it.tid).collect()
        };
        assert_eq!(takers(&host), [812]);
        let holder = host.after.tap_holders.as_mut().unwrap().get_mut(&812).unwrap();
        holder.threads.get_mut(&813).unwrap().time.runs = 9;
        assert_eq!(takers(&host), [0; 0], "which of the two is not known");
    }
}
