//! Who interrupted some CPUs, how often, and what would end it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use netsilo_model::derive::analysis::Analysis;
use netsilo_model::derive::net_threads::NetThreadWork;
use netsilo_model::derive::rates::growth;
use netsilo_model::derive::wakeups::Wakeups;
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::machine::words::cpus;
use netsilo_model::snapshot::host::{Gap, IrqState, Snapshot, Writable};
use netsilo_model::snapshot::net_thread::NetThreadKind;
use serde::{Deserialize, Serialize};

use crate::plan::isolate::{STILL_HERE, managed_off, threads_off, tick_off};

/// Who interrupted some CPUs between two snapshots.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Disturbances {
    /// The CPUs, as far as they were online in both snapshots.
    pub cpus: CpuSet,
    /// Time between the snapshots; 0 if nothing is known.
    pub elapsed_s: f64,
    /// How often each kind interrupted them. A kind that was not counted, or only in part, is left
    /// out: `not_known` has the reason.
    pub totals: BTreeMap<DisturbanceKind, u64>,
    /// Each cause that interrupted at least once, by kind, the most frequent first.
    pub causes: Vec<Disturbance>,
    /// Share of each CPU's time in interrupts and softirqs; CPUs where it was not measured are left
    /// out.
    pub interrupted: BTreeMap<CpuId, f64>,
    /// What was not counted, with the reason.
    pub not_known: Vec<Gap>,
}

/// One cause.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Disturbance {
    /// Its kind.
    pub kind: DisturbanceKind,
    /// The cause, in words (`irq 27 (virtio0-input.1)`).
    pub cause: String,
    /// How often it interrupted each CPU. CPUs that it did not interrupt are left out.
    pub counts: BTreeMap<CpuId, u64>,
    /// The same of all of these CPUs, per second.
    pub per_s: f64,
    /// What would end it, in words.
    pub remedy: String,
}

/// What interrupts a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum DisturbanceKind {
    /// An interrupt of a device.
    DeviceInterrupt,
    /// A row of the architecture: timer, IPIs, and others.
    CpuInterrupt,
    /// IPIs of RPS: another CPU put packets on the backlog. Each is a function call too.
    Rps,
    /// A thread that receive work on another CPU woke.
    Wakeup,
    /// Softirqs of one kind.
    Softirq,
    /// A kernel thread that receives or sends got the CPU.
    KernelThread,
}

impl DisturbanceKind {
    /// All kinds, with their names in reports.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::DeviceInterrupt, "device interrupts"),
        (Self::CpuInterrupt, "timers, IPIs and others"),
        (Self::Rps, "wakeups for RPS"),
        (Self::Wakeup, "threads woken by receive work elsewhere"),
        (Self::Softirq, "softirqs"),
        (Self::KernelThread, "runs of kernel threads for the network"),
    ];
}

/// What ends rows of the architecture: a part of their text, their label on x86, what ends them.
/// The label depends on architecture and kernel, the text does not.
const ROWS: &[(&str, &str, &str)] = &[
    (
        "function call",
        "CAL",
        "less RPS and fewer wakeups (their own rows); barriers of the whole machine are the \
         kernel's own",
    ),
    (
        "tlb shootdown",
        "TLB",
        "no process with threads both here and elsewhere, as it unmaps memory for all of them",
    ),
    ("non-maskable", "NMI", "no perf, and kernel.nmi_watchdog=0"),
    ("performance monitoring", "PMI", "no perf, and kernel.nmi_watchdog=0"),
    (
        "machine check poll",
        "MCP",
        "0 in /sys/devices/system/machinecheck/machinecheck*/check_interval",
    ),
    ("irq work", "IWI", "no perf, eBPF and kernel messages on these cpus; the rest is RCU's own"),
];

/// Who interrupted these CPUs.
pub fn disturbances(analysis: &Analysis<'_>, asked: &CpuSet) -> Disturbances {
    let known: CpuSet = analysis.rates.cpus.keys().copied().collect();
    let elapsed_s = analysis.rates.elapsed.as_secs_f64();
    let mut found = Disturbances { cpus: asked.and(&known), elapsed_s, ..Disturbances::default() };
    let gap = |what: String, why: &str| Gap { what, why: why.to_owned() };
    let absent = asked.minus(&known);
    if !absent.is_empty() {
        found.not_known.push(gap(cpus(&absent), "not online in two snapshots of one boot"));
    }
    if found.cpus.is_empty() {
        return found;
    }
    let look = Look { analysis, asked, cpus: &found.cpus.clone(), elapsed_s };
    for (kind, label) in DisturbanceKind::ALL {
        let causes = match look.causes(kind) {
            Ok(causes) => causes,
            Err(why) => {
                found.not_known.push(gap(label.to_owned(), why));
                continue;
            }
        };
        let unknown: Vec<String> =
            causes.iter().filter(|it| it.counts.is_none()).map(|it| it.name.clone()).collect();
        let mut causes: Vec<_> =
            causes.into_iter().filter_map(|it| look.disturbance(kind, it)).collect();
        causes.sort_by_key(|it| Reverse(sum(&it.counts)));
        if unknown.is_empty() {
            let total = causes.iter().fold(0, |all: u64, it| all.saturating_add(sum(&it.counts)));
            found.totals.insert(kind, total);
        } else {
            let why = "not counted in both snapshots, or not on these cpus alone";
            found.not_known.push(gap(unknown.join(", "), why));
        }
        found.causes.extend(causes);
    }
    found.interrupted = look.interrupted();
    if found.interrupted.len() < found.cpus.len() {
        let what = "time in interrupts and softirqs".to_owned();
        found.not_known.push(gap(what, "eBPF did not measure it"));
    }
    let others = "netsilo reads only kernel threads that receive or send: ps -eLo psr,comm shows \
                  where others ran last";
    found.not_known.push(gap("workers and other threads".to_owned(), others));
    found
}

fn sum(counts: &BTreeMap<CpuId, u64>) -> u64 {
    counts.values().fold(0, |all, count| all.saturating_add(*count))
}

/// What may have interrupted.
struct Cause {
    name: String,
    /// How often, also on other CPUs; `None` if that is not known.
    counts: Option<Vec<(CpuId, u64)>>,
    remedy: String,
}

/// The observation, the CPUs that were asked for, and those of them that are known.
struct Look<'a> {
    analysis: &'a Analysis<'a>,
    asked: &'a CpuSet,
    cpus: &'a CpuSet,
    elapsed_s: f64,
}

impl Look<'_> {
    /// All causes of a kind; the error is why they were not counted.
    fn causes(&self, kind: DisturbanceKind) -> Result<Vec<Cause>, &'static str> {
        match kind {
            DisturbanceKind::DeviceInterrupt => self.device_interrupts(),
            DisturbanceKind::CpuInterrupt => self.cpu_interrupts(),
            DisturbanceKind::Rps => self.rps(),
            DisturbanceKind::Wakeup => self.wakeups(),
            DisturbanceKind::Softirq => self.softirqs(),
            DisturbanceKind::KernelThread => self.kernel_threads(),
        }
    }

    /// A cause that interrupted these CPUs.
    fn disturbance(&self, kind: DisturbanceKind, cause: Cause) -> Option<Disturbance> {
        let counts = cause.counts?.into_iter();
        let counts: BTreeMap<CpuId, u64> =
            counts.filter(|(cpu, count)| *count > 0 && self.cpus.contains(*cpu)).collect();
        let per_s = sum(&counts) as f64 / self.elapsed_s;
        let (cause, remedy) = (cause.name, cause.remedy);
        (!counts.is_empty()).then_some(Disturbance { kind, cause, counts, per_s, remedy })
    }

    fn growth(&self, old: u64, new: u64) -> Option<u64> {
        growth(old, new, self.analysis.rates.elapsed)
    }

    fn times(&self, per_s: f64) -> u64 {
        (per_s * self.elapsed_s).round() as u64
    }

    fn isolate(&self) -> String {
        format!("netsilo isolate --cpus {}", self.asked)
    }

    fn tick(&self) -> String {
        if self.asked.is_subset(&self.analysis.after().topology.nohz_full) {
            "one runnable thread per cpu, and no timers of its own (nohz_full is set)".to_owned()
        } else {
            tick_off(self.asked)
        }
    }

    fn device_interrupts(&self) -> Result<Vec<Cause>, &'static str> {
        let after = self.analysis.after();
        if after.irqs.is_empty() || !after.other_vectors.is_empty() {
            return Err("not all of them were read");
        }
        let cause = |(irq, state): (&Irq, &IrqState)| {
            let rates = self.analysis.rates.irqs.get(irq);
            let all = rates.map(|it| it.per_s.iter().map(|(cpu, it)| (*cpu, self.times(*it))));
            let is_here = state.requested.as_ref().is_none_or(|it| it.intersects(self.asked));
            let still_here = state.effective.as_ref().is_some_and(|it| it.intersects(self.asked));
            let remedy = match state.writable {
                Writable::Managed => managed_off(self.asked),
                _ if rates.is_some_and(|it| it.ignores_affinity) => {
                    "nothing: its controller ignores affinities".to_owned()
                }
                // ARM's timers are interrupts of each CPU with a number.
                Writable::Unsupported if state.devices().contains("timer") => self.tick(),
                Writable::Unsupported => {
                    "nothing: it is of each cpu, or cannot be directed".to_owned()
                }
                Writable::Yes if is_here => self.isolate(),
                Writable::Yes if still_here => STILL_HERE.to_owned(),
                Writable::Yes => "it is elsewhere by now: count again".to_owned(),
            };
            let name = format!("irq {irq} ({})", state.devices());
            Cause { name, counts: all.map(Iterator::collect), remedy }
        };
        Ok(after.irqs.iter().map(cause).collect())
    }

    fn cpu_interrupts(&self) -> Result<Vec<Cause>, &'static str> {
        let [before, after] = [&self.analysis.observation.before, self.analysis.after()];
        // Zeros are left out, so a row without counts is 0 only if others have some.
        let is_read = |it: &Snapshot| it.arch_interrupts.values().any(|row| !row.is_empty());
        if !is_read(before) || !is_read(after) {
            return Err("their rows of /proc/interrupts were not counted");
        }
        let cause = |(label, new): (&String, &BTreeMap<CpuId, u64>)| {
            let text = after.arch_names.get(label).map_or("", String::as_str);
            let old = before.arch_interrupts.get(label);
            let at = |row: &BTreeMap<CpuId, u64>, cpu| row.get(&cpu).copied().unwrap_or(0);
            let grown = |cpu| Some((cpu, self.growth(at(old?, cpu), at(new, cpu))?));
            let counts = self.cpus.iter().map(grown).collect();
            Cause { name: format!("{label} ({text})"), counts, remedy: self.of_row(label, text) }
        };
        Ok(after.arch_interrupts.iter().map(cause).collect())
    }

    fn of_row(&self, label: &str, text: &str) -> String {
        let words = text.to_ascii_lowercase();
        let is = |part: &str, row: &str| words.contains(part) || label == row;
        match ROWS.iter().find(|(part, row, _)| is(part, row)) {
            Some((.., remedy)) => (*remedy).to_owned(),
            None if is("timer", "LOC") => self.tick(),
            None if is("rescheduling", "RES") => {
                format!("threads that wake here: {}", threads_off(self.asked))
            }
            None => "nothing: the kernel's or the firmware's own".to_owned(),
        }
    }

    fn rps(&self) -> Result<Vec<Cause>, &'static str> {
        let of_cpu = |cpu| {
            let softnet = self.analysis.rates.cpus.get(&cpu)?.softnet?;
            Some((cpu, self.times(softnet.received_rps_per_s?)))
        };
        let counts: Option<Vec<_>> = self.cpus.iter().map(of_cpu).collect();
        let counts = Some(counts.ok_or("/proc/net/softnet_stat was not counted")?);
        let after = self.analysis.after();
        let mut queues = after.netdevs.iter().flat_map(|netdev| &netdev.rx_queues);
        let named =
            queues.any(|it| it.rps_cpus.as_ref().is_some_and(|it| it.intersects(self.asked)));
        let follows = after.net.rps_sock_flow_entries.is_some_and(|entries| entries > 0);
        let remedy = match (named, follows) {
            (true, _) => self.isolate(),
            (false, true) => {
                "netsilo apply --rfs off: RFS follows readers to these cpus".to_owned()
            }
            (false, false) => {
                "no rps_cpus of this network namespace names these cpus: look in the others".into()
            }
        };
        Ok(vec![Cause { name: "RPS of other cpus".into(), counts, remedy }])
    }

    fn wakeups(&self) -> Result<Vec<Cause>, &'static str> {
        let attribution = &self.analysis.observation.attribution;
        if !Wakeups::from_attribution(attribution).counted {
            return Err("eBPF did not count wakeups");
        }
        // Attached for a part of the time, it counts a part.
        let scale = self.elapsed_s / attribution.elapsed.as_secs_f64();
        let mut by_group: BTreeMap<u32, BTreeMap<CpuId, u64>> = BTreeMap::new();
        for it in attribution.wakeups.iter().filter(|it| it.waker_cpu != it.sleeper_cpu) {
            let counts = by_group.entry(it.tgid).or_default();
            let count = counts.entry(it.sleeper_cpu).or_default();
            *count = count.saturating_add(it.count);
        }
        let cause = |(tgid, counts): (u32, BTreeMap<CpuId, u64>)| {
            let mut readers = attribution.consumption.iter().map(|row| &row.consumer);
            let name = readers.find(|it| it.tgid == tgid).map_or("threads", |it| &it.comm);
            let scaled = |(cpu, count)| (cpu, (count as f64 * scale).round() as u64);
            let counts = Some(counts.into_iter().map(scaled).collect());
            let remedy = "it reads here what another cpu receives: netsilo pin moves it".to_owned();
            Cause { name: format!("{name} (pid {tgid})"), counts, remedy }
        };
        Ok(by_group.into_iter().map(cause).collect())
    }

    fn softirqs(&self) -> Result<Vec<Cause>, &'static str> {
        let [before, after] = [&self.analysis.observation.before, self.analysis.after()];
        let mut by_name: BTreeMap<&str, Option<Vec<(CpuId, u64)>>> = BTreeMap::new();
        for cpu in self.cpus.iter() {
            let both = before.cpus.get(&cpu).zip(after.cpus.get(&cpu));
            let (old, new) = both.ok_or("they were not read")?;
            new.softirqs.iter().next().ok_or("they were not read")?;
            for (name, new) in new.softirqs.iter() {
                let grown = old.softirqs.get(name).and_then(|old| self.growth(old, new));
                let counts = by_name.entry(name).or_insert_with(|| Some(Vec::new()));
                *counts = counts.take().zip(grown).map(|(mut counts, grown)| {
                    counts.push((cpu, grown));
                    counts
                });
            }
        }
        let cause = |(name, counts): (&str, _)| {
            let remedy = match name {
                "NET_RX" => format!("{}; what is sent here to this host stays", self.isolate()),
                "NET_TX" => "what these cpus send, and interrupts of tx queues".to_owned(),
                "TIMER" | "HRTIMER" => format!("timers of threads here; {}", self.tick()),
                "SCHED" => threads_off(self.asked),
                "RCU" => format!("rcu_nocbs={} at boot", self.asked),
                "BLOCK" => "disk requests of these cpus, and interrupts of disks".to_owned(),
                _ => "the interrupts of their drivers".to_owned(),
            };
            Cause { name: name.to_owned(), counts, remedy }
        };
        Ok(by_name.into_iter().map(cause).collect())
    }

    fn kernel_threads(&self) -> Result<Vec<Cause>, &'static str> {
        let observation = self.analysis.observation;
        if observation.after.net_threads.is_empty() {
            return Err("they were not read");
        }
        let cause = |thread: &NetThreadWork| {
            let is_bound = match &thread.cpus {
                Some(cpus) => cpus.len() == 1,
                None => {
                    matches!(thread.kind, NetThreadKind::Ksoftirqd | NetThreadKind::BacklogNapi)
                }
            };
            let never_here = thread.cpus.as_ref().is_some_and(|it| !it.intersects(self.cpus))
                || (is_bound && thread.cpu.is_some_and(|cpu| !self.cpus.contains(cpu)));
            if never_here {
                return None;
            }
            let time = |it: &Snapshot| it.net_threads.get(&thread.pid)?.time;
            let both = time(&observation.before).zip(time(&observation.after));
            let runs = both.and_then(|(old, new)| new.runs.checked_sub(old.runs));
            // Of a thread that may run on several CPUs, only the last one is known.
            let counts = match (runs.filter(|_| thread.time.is_some()), thread.cpu) {
                (Some(0), _) => Some(Vec::new()),
                (Some(runs), Some(cpu)) if is_bound => Some(vec![(cpu, runs)]),
                _ => None,
            };
            let remedy = if thread.movable { self.isolate() } else { thread.placed_by() };
            let name = format!("{} (pid {})", thread.comm, thread.pid);
            Some(Cause { name, counts, remedy })
        };
        Ok(self.analysis.net_threads.iter().filter_map(cause).collect())
    }

    /// The share of each CPU's time in interrupts and softirqs, where it was measured.
    fn interrupted(&self) -> BTreeMap<CpuId, f64> {
        let attribution = &self.analysis.observation.attribution;
        let seconds = attribution.elapsed.as_secs_f64();
        let times = attribution.cpu_time.iter().filter(|(cpu, _)| self.cpus.contains(**cpu));
        let share = |ns: u64| (ns as f64 / 1e9 / seconds).min(1.0);
        let shares = times.filter(|_| seconds > 0.0);
        shares.map(|(cpu, time)| (*cpu, share(time.interrupted_ns()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use netsilo_model::cost::weights::Costs;
    use netsilo_model::snapshot::host::CpuCounters;
    use netsilo_model::snapshot::observation::Observation;
    use netsilo_model::synthetic::grid::Grid;
    use netsilo_model::synthetic::scene::{Scene, SceneNetdev, SceneQueue, SceneThread};

    use super::*;

    /// Four CPUs. eth0's interrupt is requested on CPUs 2 and 3 and arrives on CPU 2. Each CPU had
    /// 10 ticks on each second, CPU 3 almost 2^32 before.
    fn host() -> Observation {
        let queue = SceneQueue {
            irq: Some(30),
            cpus: CpuSet::parse_list("2-3").unwrap(),
            packets_per_s: 1000,
            load: 0.2,
            ..SceneQueue::default()
        };
        let eth0 =
            SceneNetdev { name: "eth0".into(), queues: vec![queue], ..SceneNetdev::default() };
        let cpus = CpuSet::from_cpu(CpuId(3));
        let ksoftirqd =
            SceneThread { comm: "ksoftirqd/3".into(), cpus, load: 0.1, without_time: false };
        let grid = Grid { cores: 4, ..Grid::default() };
        let scene =
            Scene { grid, netdevs: vec![eth0], threads: vec![ksoftirqd], ..Scene::default() };
        let mut observation = scene.observation();
        let seconds = (observation.after.at - observation.before.at).as_secs();
        let row = |counts: [u64; 4]| (0..).map(CpuId).zip(counts).collect();
        let old = [1, 1, 1, (1 << 32) - 5];
        let new = [1, 1, 1, 10 * seconds - 5];
        for (snapshot, counts) in [(&mut observation.before, old), (&mut observation.after, new)] {
            snapshot.arch_interrupts =
                [("LOC".into(), row(counts)), ("TRM".into(), BTreeMap::new())].into();
            snapshot.arch_names = [("LOC".into(), "Local timer interrupts".into())].into();
        }
        observation
    }

    fn found(observation: &Observation, cpus: &str) -> Disturbances {
        let cpus = CpuSet::parse_list(cpus).unwrap();
        disturbances(&Analysis::new(observation, &Costs::default()), &cpus)
    }

    fn causes(found: &Disturbances) -> Vec<(&str, Vec<u32>)> {
        let on = |it: &Disturbance| it.counts.keys().map(|cpu| cpu.0).collect();
        found.causes.iter().map(|it| (it.cause.as_str(), on(it))).collect()
    }

    #[test]
    fn each_cause_has_its_counts_on_these_cpus_alone_and_a_remedy() {
        let found = found(&host(), "2-3");
        let expected = [
            ("irq 30 (eth0-TxRx-0)", vec![2]),
            ("LOC (Local timer interrupts)", vec![3]),
            ("NET_RX", vec![2]),
            ("ksoftirqd/3 (pid 700)", vec![3]),
        ];
        assert_eq!(causes(&found), expected);
        assert_eq!(found.causes[1].per_s, 10.0, "across the wrap of 32 bits");
        assert_eq!(found.causes[0].remedy, "netsilo isolate --cpus 2-3");
        assert!(found.causes.iter().all(|it| !it.remedy.is_empty()));
        assert_eq!(found.totals[&DisturbanceKind::KernelThread], 1);
        assert!(found.interrupted[&CpuId(2)] > 0.1);
        let idle = super::tests::found(&host(), "1");
        assert_eq!((idle.causes.len(), idle.totals[&DisturbanceKind::DeviceInterrupt]), (0, 0));
    }

    #[test]
    fn what_was_not_counted_is_not_known_and_never_zero() {
        let mut observation = host();
        observation.after.arch_interrupts.values_mut().for_each(BTreeMap::clear);
        observation.before.irqs.clear();
        observation.after.net_threads.clear();
        observation.attribution = Default::default();
        for cpu in observation.after.cpus.values_mut() {
            *cpu = CpuCounters { stat: cpu.stat, ..CpuCounters::default() };
        }
        let found = found(&observation, "2-3,9");
        assert_eq!((found.totals.len(), found.causes.len()), (0, 0), "{found:?}");
        let unknown: Vec<&str> = found.not_known.iter().map(|it| it.what.as_str()).collect();
        let expected = [
            "cpu 9",
            "irq 30 (eth0-TxRx-0)",
            "timers, IPIs and others",
            "wakeups for RPS",
            "threads woken by receive work elsewhere",
            "softirqs",
            "runs of kernel threads for the network",
            "time in interrupts and softirqs",
            "workers and other threads",
        ];
        assert_eq!(unknown, expected);
        observation.after.machine.boot_id = "another".into();
        let other_boot = super::tests::found(&observation, "2-3");
        assert!(other_boot.cpus.is_empty() && other_boot.totals.is_empty());
        assert_eq!(other_boot.not_known.len(), 1);
    }
}
