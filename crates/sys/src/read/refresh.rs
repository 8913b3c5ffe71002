//! Makes the next snapshot from the last one. Reads only what changes without an announcement.
//!
//! | read | when |
//! |---|---|
//! | CPU times, NET_RX and NET_TX, `softnet_stat`; counts, names and affinity of netdevs'
//! interrupts; `up`, carrier and the displayed statistics of netdevs with hardware, and the
//! received packets of others with one rx queue; CPUs of NAPI kthreads | each time |
//! | other programs, network settings, RPS and XPS, queue leases, isolated partitions, owners of
//! CPUs | once a minute; programs also when an affinity has changed |
//! | the effective affinity of an interrupt that arrives as requested | once a minute |
//! | everything else | after [`Refresher::invalidate`], and when a CPU, netdev, interrupt, kthread,
//! isolated CPU or owner of CPUs has changed |
//!
//! Other data (of other interrupts, other counters) is left out or keeps the value last read.
//! Interrupts are read one by one or as a table, whichever costs less: see [`Counting`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::machine::reading::Reading;
use netsilo_model::parse::per_cpu_count::per_cpu_count;
use netsilo_model::parse::softirqs::net_softirqs;
use netsilo_model::parse::softnet_stat::softnet_stat;
use netsilo_model::parse::stat::stat;
use netsilo_model::parse::{cpu_lists, netdev as parse, pid_status, scalar};
use netsilo_model::snapshot::host::{CpuCounters, IrqBans, IrqState, Snapshot};
use netsilo_model::snapshot::netdev::{NapiThread, Netdev};

use crate::files::cache::{CachedFile, FdCache};
use crate::files::error::ReadError;
use crate::files::root::Root;
use crate::read::cpu_owners::cpu_owners;
use crate::read::gaps::Notes;
use crate::read::netdev::{NET, irqs_of, matches_netlink, queues};
use crate::read::partitions::partitions;
use crate::read::process::processes;
use crate::read::{irq, knob_owners, snapshot};

/// The interval between slow reads. It is also the maximum delay until a change is noticed.
const SLOW: Duration = Duration::from_secs(60);

/// The displayed counters of a netdev.
const STATISTICS: &[&str] = &[
    "rx_packets",
    "rx_bytes",
    "tx_packets",
    "tx_bytes",
    "rx_dropped",
    "rx_missed_errors",
    "rx_errors",
    "tx_dropped",
];

/// The counter that is read for a netdev without hardware, because its packets may pass no NAPI
/// that counts them.
const SOFTWARE_STATISTICS: &[&str] = &["rx_packets"];

/// Makes successive snapshots with few reads.
#[derive(Debug, Default)]
pub struct Refresher {
    opened: Option<Opened>,
    whole: u64,
    /// Interrupts that are a netdev's by observation only: no file says so.
    observed: BTreeSet<Irq>,
    /// What each irqbalance answered last, by process id. Up to 1.9.3 it sleeps after each list
    /// and answers nobody meanwhile.
    answered: BTreeMap<u32, IrqBans>,
}

impl Refresher {
    /// Makes the next snapshot a full read, after a change that a refresh does not detect.
    pub fn invalidate(&mut self) {
        self.opened = None;
    }

    /// Reads from the next snapshot on the interrupts that were found to be a netdev's.
    pub fn learn(&mut self, snapshot: &Snapshot) {
        let irqs = snapshot.netdevs.iter().flat_map(irqs_of);
        let unread = irqs.filter(|irq| !snapshot.irqs.contains_key(irq));
        for irq in unread {
            if self.observed.insert(irq) {
                self.invalidate();
            }
        }
    }

    /// Number of full reads so far.
    pub fn full_reads(&self) -> u64 {
        self.whole
    }

    /// The first snapshot: a full read, without interrupts that belong to no netdev.
    pub fn first(&mut self, root: &Root) -> Result<Snapshot, ReadError> {
        self.opened = None;
        self.whole += 1;
        let (mut looked, rows) = snapshot::of_netdevs(root, &self.observed)?;
        leave_out(&mut looked);
        let mut opened = Opened::of(root, &looked, rows)?;
        let mut snapshot = opened.next(root, &looked).map_err(Stale::into_error)?;
        self.opened = Some(opened);
        self.keep_answers(&mut snapshot);
        Ok(snapshot)
    }

    /// The snapshot after `last`, which must be the snapshot that the previous call returned.
    pub fn next(&mut self, root: &Root, last: &Snapshot) -> Result<Snapshot, ReadError> {
        match self.opened.as_mut().map(|opened| opened.next(root, last)) {
            Some(Ok(mut snapshot)) => {
                self.keep_answers(&mut snapshot);
                Ok(snapshot)
            }
            Some(Err(_)) | None => self.first(root),
        }
    }

    /// Keeps the last answer of an irqbalance that does not answer now.
    fn keep_answers(&mut self, snapshot: &mut Snapshot) {
        let mut answered = BTreeMap::new();
        for owner in &mut snapshot.knob_owners {
            let last = || self.answered.remove(&owner.pid);
            owner.bans = owner.bans.take().or_else(last);
            answered.extend(owner.bans.clone().map(|bans| (owner.pid, bans)));
        }
        self.answered = answered;
    }
}

/// Why a snapshot cannot be refreshed.
enum Stale {
    /// An object is gone or was replaced.
    Changed(&'static str),
    Read(ReadError),
}

impl From<ReadError> for Stale {
    fn from(error: ReadError) -> Self {
        Self::Read(error)
    }
}

impl Stale {
    fn into_error(self) -> ReadError {
        match self {
            Self::Changed(what) => ReadError::from_io(
                what,
                std::io::Error::other("changed while being read; read again"),
            ),
            Self::Read(error) => error,
        }
    }
}

fn has_hardware(netdev: &Netdev) -> bool {
    netdev.device_path.is_some() || irqs_of(netdev).next().is_some()
}

/// The counters that are read for a netdev. Without hardware they are read only if the netdev has a
/// single queue, because then they are that queue's counts.
fn statistics_of(netdev: &Netdev) -> &'static [&'static str] {
    match netdev.rx_queues.len() {
        _ if has_hardware(netdev) => STATISTICS,
        1 if netdev.name != "lo" => SOFTWARE_STATISTICS,
        _ => &[],
    }
}

/// Removes values that are not refreshed, so that old counts are not mistaken for new ones.
fn leave_out(snapshot: &mut Snapshot) {
    snapshot.arch_interrupts.values_mut().for_each(BTreeMap::clear);
    for netdev in snapshot.netdevs.iter_mut() {
        netdev.statistics.clear();
        if let Some(ethtool) = &mut netdev.ethtool {
            ethtool.stats = Reading::Absent("not read by a refresh".to_owned());
        }
    }
}

/// How interrupts are counted.
///
/// Measured on 6.18 with 2 CPUs: each row of `/proc/interrupts` costs 1.4 us, wanted or not. The
/// two cached files of an interrupt in `/sys/kernel/irq` cost 1.75 us together.
#[derive(Debug)]
enum Counting {
    /// `/sys/kernel/irq/<n>/per_cpu_count`, and `actions` to check that it is still the same
    /// interrupt.
    Each(BTreeMap<Irq, [CachedFile; 2]>),
    /// `/proc/interrupts`, only these rows.
    Table(BTreeSet<Irq>),
}

impl Counting {
    fn of(root: &Root, cache: &mut FdCache, snapshot: &Snapshot, rows: usize) -> Self {
        let wanted = || snapshot.irqs.keys().copied();
        let mut each = |irq: Irq| {
            let mut file =
                |name: &str| cache.open_if_present(root, format!("/sys/kernel/irq/{irq}/{name}"));
            Some((irq, [file("per_cpu_count")?, file("actions")?]))
        };
        let few = snapshot.irqs.len() * 5 <= rows * 4;
        let files: Option<BTreeMap<Irq, [CachedFile; 2]>> =
            if few { wanted().map(&mut each).collect() } else { None };
        files.map_or_else(|| Self::Table(wanted().collect()), Self::Each)
    }
}

/// Files that are read each time.
#[derive(Debug)]
struct Opened {
    cache: FdCache,
    /// Time of the last slow read.
    slow: Duration,
    online: CachedFile,
    stat: CachedFile,
    softirqs: CachedFile,
    softnet: Option<CachedFile>,
    /// Netdevs with their inode numbers, which distinguish two netdevs of the same name.
    names: Vec<(String, u64)>,
    counting: Counting,
    /// Requested and effective affinity.
    affinity: BTreeMap<Irq, [Option<CachedFile>; 2]>,
    netdevs: Vec<Option<Device>>,
    threads: BTreeMap<u32, CachedFile>,
}

/// Files of a netdev.
#[derive(Debug)]
struct Device {
    dir: String,
    flags: Option<CachedFile>,
    carrier: Option<CachedFile>,
    statistics: Vec<(&'static str, CachedFile)>,
}

impl Device {
    fn of(root: &Root, cache: &mut FdCache, netdev: &Netdev) -> Result<Self, ReadError> {
        let dir = root.resolve(&format!("{NET}/{}", netdev.name))?;
        let mut file = |name: &str| cache.open_if_present(root, format!("{dir}/{name}"));
        let (flags, carrier) = (file("flags"), file("carrier"));
        let statistics = statistics_of(netdev)
            .iter()
            .filter_map(|name| Some((*name, file(&format!("statistics/{name}"))?)));
        Ok(Self { flags, carrier, statistics: statistics.collect(), dir: dir.clone() })
    }
}

impl Opened {
    /// `rows`: number of rows in `/proc/interrupts`.
    fn of(root: &Root, snapshot: &Snapshot, rows: usize) -> Result<Self, ReadError> {
        let files = 16 + snapshot.irqs.len() * 4 + snapshot.netdevs.len() * (2 + STATISTICS.len());
        let threads = || {
            snapshot
                .netdevs
                .iter()
                .flat_map(|netdev| &netdev.napis)
                .filter_map(|it| it.thread.as_ref())
        };
        let mut cache = FdCache::for_files(files + threads().count());
        let mut file = |path: &str| cache.open(root, path.to_owned());
        let (online, stat) = (file("/sys/devices/system/cpu/online")?, file("/proc/stat")?);
        let (softirqs, softnet) = (file("/proc/softirqs")?, file("/proc/net/softnet_stat").ok());
        let counting = Counting::of(root, &mut cache, snapshot, rows);
        let mut affinity = |irq: Irq| {
            let mut file =
                |name: &str| cache.open_if_present(root, format!("/proc/irq/{irq}/{name}"));
            (irq, [file("smp_affinity_list"), file("effective_affinity_list")])
        };
        let affinity = snapshot.irqs.keys().map(|irq| affinity(*irq)).collect();
        let device = |netdev: &Netdev| {
            let is_read = !statistics_of(netdev).is_empty();
            is_read.then(|| Device::of(root, &mut cache, netdev)).transpose()
        };
        let netdevs = snapshot.netdevs.iter().map(device).collect::<Result<_, _>>()?;
        let status = |thread: &NapiThread| {
            Ok((thread.pid, cache.open(root, format!("/proc/{}/status", thread.pid))?))
        };
        let threads = threads().map(status).collect::<Result<_, ReadError>>()?;
        let names = root.inodes(NET)?;
        let slow = snapshot.at;
        Ok(Self {
            cache,
            slow,
            online,
            stat,
            softirqs,
            softnet,
            names,
            counting,
            affinity,
            netdevs,
            threads,
        })
    }

    fn next(&mut self, root: &Root, last: &Snapshot) -> Result<Snapshot, Stale> {
        if self.cache.value(root, &self.online, cpu_lists::list)? != last.topology.online {
            return Err(Stale::Changed("/sys/devices/system/cpu/online"));
        }
        if root.inodes(NET)? != self.names {
            return Err(Stale::Changed(NET));
        }
        // counters first and together: rates are computed from `at`
        let at = root.now()?;
        let counts = self.counts(root, last)?;
        let cpus = self.cpus(root, &last.topology.online)?;
        let due = at.saturating_sub(self.slow) >= SLOW;
        let irqs = counts
            .into_iter()
            .map(|(irq, counts)| self.irq(root, last, irq, counts, due))
            .collect::<Result<_, _>>()?;
        let mut snapshot = Snapshot {
            audit: None,
            machine: last.machine.clone(),
            at,
            topology: last.topology.clone(),
            irqs,
            other_vectors: last.other_vectors.clone(),
            free_vectors: last.free_vectors.clone(),
            arch_interrupts: last.arch_interrupts.clone(),
            arch_names: last.arch_names.clone(),
            default_smp_affinity: last.default_smp_affinity.clone(),
            cpus,
            netdevs: last.netdevs.clone(),
            net: last.net.clone(),
            knob_owners: last.knob_owners.clone(),
            net_threads: last.net_threads.clone(),
            gaps: last.gaps.clone(),
            ..Snapshot::default()
        };
        for (netdev, device) in snapshot.netdevs.iter_mut().zip(&self.netdevs) {
            refresh_netdev(&mut self.cache, root, netdev, device.as_ref(), &self.threads)?;
        }
        self.read_slow_values(root, last, &mut snapshot, due)?;
        Ok(snapshot)
    }

    fn counts(
        &mut self,
        root: &Root,
        last: &Snapshot,
    ) -> Result<BTreeMap<Irq, BTreeMap<CpuId, u64>>, Stale> {
        const REPLACED: Stale = Stale::Changed("/proc/interrupts");
        let mut counts = BTreeMap::new();
        match &self.counting {
            Counting::Each(files) => {
                for ((irq, [count, actions]), state) in files.iter().zip(last.irqs.values()) {
                    let same = |text: &str| {
                        let names = text.trim().split(',').filter(|name| !name.is_empty());
                        Ok(names.eq(state.actions.iter().map(String::as_str)))
                    };
                    if !self.cache.value(root, actions, same)? {
                        return Err(REPLACED);
                    }
                    let possible = &last.topology.possible;
                    counts.insert(
                        *irq,
                        self.cache.value(root, count, |text| per_cpu_count(text, possible))?,
                    );
                }
            }
            Counting::Table(wanted) => {
                for (irq, row) in irq::interrupts(root, Some(wanted))?.irqs {
                    if last.irqs.get(&irq).is_none_or(|state| state.actions != row.actions) {
                        return Err(REPLACED);
                    }
                    counts.insert(irq, row.counts);
                }
            }
        }
        if counts.keys().ne(last.irqs.keys()) { Err(REPLACED) } else { Ok(counts) }
    }

    fn irq(
        &mut self,
        root: &Root,
        last: &Snapshot,
        irq: Irq,
        counts: BTreeMap<CpuId, u64>,
        due: bool,
    ) -> Result<(Irq, IrqState), Stale> {
        let (Some(state), Some([requested, effective])) =
            (last.irqs.get(&irq), self.affinity.get(&irq))
        else {
            return Err(Stale::Changed("/proc/interrupts"));
        };
        let mut cpus = |file: &Option<CachedFile>| match file {
            Some(file) => match self.cache.value(root, file, cpu_lists::list) {
                Err(e) if e.is_absent() => Ok(None),
                read => read.map(Some),
            },
            None => Ok(None),
        };
        let requested = cpus(requested)?;
        let effective = if !due && is_settled(state, requested.as_ref(), &counts) {
            state.effective.clone()
        } else {
            cpus(effective)?.filter(|cpus| !cpus.is_empty())
        };
        // if an interrupt gained or lost its affinity, it is a different interrupt
        if requested.is_some() != state.requested.is_some() {
            return Err(Stale::Changed("/proc/irq"));
        }
        let state = IrqState {
            actions: state.actions.clone(),
            chip: state.chip.clone(),
            counts,
            requested,
            effective,
            hint: state.hint.clone(),
            node: state.node,
            writable: state.writable.clone(),
        };
        Ok((irq, state))
    }

    fn cpus(
        &mut self,
        root: &Root,
        online: &CpuSet,
    ) -> Result<BTreeMap<CpuId, CpuCounters>, ReadError> {
        let stats = self.cache.table(root, &self.stat, stat)?;
        let mut softirqs = self.cache.table(root, &self.softirqs, net_softirqs)?;
        let softnet = match &self.softnet {
            Some(file) => self.cache.table(root, file, |text| softnet_stat(text, online))?,
            None => BTreeMap::new(),
        };
        let counters = |(cpu, stat)| {
            let softirqs = softirqs.remove(&cpu).unwrap_or_default();
            (cpu, CpuCounters { stat, softirqs, softnet: softnet.get(&cpu).copied() })
        };
        Ok(stats.into_iter().map(counters).collect())
    }

    /// Reads values that change rarely and without an announcement.
    fn read_slow_values(
        &mut self,
        root: &Root,
        last: &Snapshot,
        snapshot: &mut Snapshot,
        due: bool,
    ) -> Result<(), Stale> {
        if !due && !moved(last, snapshot) {
            return Ok(());
        }
        // unreadable values are recorded as gaps by the full read
        let notes = Notes::new(root);
        snapshot.knob_owners = knob_owners::knob_owners(&notes, &processes(&notes));
        if due {
            self.slow = snapshot.at;
            snapshot.net = snapshot::net_settings(&notes);
            let topology = &last.topology;
            let partitions = partitions(&notes, &topology.online);
            if partitions.isolated != topology.isolated_partitions {
                return Err(Stale::Changed("isolated partitions"));
            }
            if cpu_owners(root, topology, partitions.owned) != topology.cpu_owners {
                return Err(Stale::Changed("owners of cpus"));
            }
            let genl = snapshot::netdev_genl(&notes);
            for (netdev, device) in snapshot.netdevs.iter_mut().zip(&self.netdevs) {
                let Some(device) = device else { continue };
                if !refresh_queues(&notes, netdev, &device.dir)
                    || !matches_netlink(genl.as_ref(), netdev)
                {
                    return Err(Stale::Changed(NET));
                }
            }
        }
        notes.finish()?;
        Ok(())
    }
}

/// Whether an interrupt has its requested affinity in effect, and has arrived nowhere else since.
/// Without a new request the kernel changes the effective affinity only if a driver or a CPU starts
/// again. Then the interrupt arrives elsewhere, or the slow read shows it.
fn is_settled(last: &IrqState, requested: Option<&CpuSet>, counts: &BTreeMap<CpuId, u64>) -> bool {
    let (Some(effective), Some(requested)) = (&last.effective, requested) else { return false };
    let is_old = |(cpu, count): (&CpuId, &u64)| last.counts.get(cpu) == Some(count);
    last.requested.as_ref() == Some(requested)
        && effective.is_subset(requested)
        && counts.iter().all(|it| effective.contains(*it.0) || is_old(it))
}

/// Refreshes a netdev. Without hardware, refreshes only the CPUs of its kthreads.
fn refresh_netdev(
    cache: &mut FdCache,
    root: &Root,
    netdev: &mut Netdev,
    device: Option<&Device>,
    threads: &BTreeMap<u32, CachedFile>,
) -> Result<(), Stale> {
    for thread in netdev.napis.iter_mut().filter_map(|napi| napi.thread.as_mut()) {
        let status = threads.get(&thread.pid).ok_or(Stale::Changed("napi kthread"))?;
        thread.cpus = cache.value(root, status, pid_status::cpus_allowed)?;
    }
    let Some(device) = device else { return Ok(()) };
    if let Some(flags) = &device.flags {
        netdev.up = cache.value(root, flags, scalar::hexadecimal)? & parse::IFF_UP != 0;
    }
    if let Some(carrier) = &device.carrier {
        netdev.carrier = match cache.value(root, carrier, scalar::number::<u32>) {
            Err(e) if e.is_absent() => None,
            carrier => Some(carrier? != 0),
        };
    }
    for (name, file) in &device.statistics {
        netdev.statistics.insert((*name).to_owned(), cache.value(root, file, scalar::number)?);
    }
    Ok(())
}

/// Reads the queues' settings again. Returns whether the set of queues is unchanged.
fn refresh_queues(notes: &Notes<'_>, netdev: &mut Netdev, dir: &str) -> bool {
    let mut now = Netdev::default();
    queues(notes, dir, &mut now);
    let same_rx = now
        .rx_queues
        .iter()
        .map(|queue| queue.index)
        .eq(netdev.rx_queues.iter().map(|queue| queue.index));
    let same_tx = now
        .tx_queues
        .iter()
        .map(|queue| queue.index)
        .eq(netdev.tx_queues.iter().map(|queue| queue.index));
    for (queue, now) in netdev.rx_queues.iter_mut().zip(now.rx_queues) {
        (queue.rps_cpus, queue.rps_flow_cnt) = (now.rps_cpus, now.rps_flow_cnt);
    }
    for (queue, now) in netdev.tx_queues.iter_mut().zip(now.tx_queues) {
        (queue.xps_cpus, queue.xps_rxqs) = (now.xps_cpus, now.xps_rxqs);
    }
    same_rx && same_tx
}

/// Whether the affinity of an interrupt or kthread has changed. A newly started program may have
/// changed it.
fn moved(last: &Snapshot, now: &Snapshot) -> bool {
    let irqs =
        |it: &Snapshot| it.irqs.values().map(|state| state.requested.clone()).collect::<Vec<_>>();
    let threads = |it: &Snapshot| {
        let napis = it.netdevs.iter().flat_map(|netdev| &netdev.napis);
        napis.filter_map(|napi| Some(napi.thread.as_ref()?.cpus.clone())).collect::<Vec<_>>()
    };
    irqs(last) != irqs(now) || threads(last) != threads(now)
}
