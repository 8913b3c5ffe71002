//! Counts in the kernel which CPU polls each NAPI instance and which threads read its data.
//!
//! The eBPF programs are attached while a [`Tracer`] lives. Every hook is optional: if the kernel
//! refuses one, its counts are missing and [`Attribution::hooks`] has the reason.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::snapshot::attribution::{
    Attribution, AttributionSource, CountingCost, CpuTime, Hook, Sampling,
};
use netsilo_model::snapshot::packet_sockets;
use rustix::time::{ClockId, clock_getres};

use crate::bpf::arrived::Arrived;
use crate::bpf::cgroup::Cgroups;
use crate::bpf::decode::{
    TIME_OPEN, consumption, cpu_times, forwarded, group_reads, ip_packets, polls, sampled, since,
    wakeups,
};
use crate::bpf::drops::DropNames;
use crate::bpf::layout::{self, DEMAND_WORDS, TIME_WORDS};
use crate::bpf::load::{LoadContext, Loaded, READERS, Source, load, load_first, reason};
use crate::bpf::own_cost::{self, Unlisted};
use crate::bpf::packet_sockets::PacketSockets;
use crate::bpf::runqueue::Waits;
use crate::bpf::stages::Sampler;
use crate::bpf::table::{Mapped, Table, Turn, create_options, mappable_array};

/// Which eBPF programs to attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Softirq, hardirq and IPI time: two clock reads per event. Also counts the threads that
    /// receive work wakes.
    pub time: bool,
    /// The NIC queue of data that arrives through a veth. Examines each packet, if this machine has
    /// a veth.
    pub containers: bool,
    /// Which device forwards data to which. Examines each packet, if this machine is set up to
    /// forward.
    pub forwarding: bool,
    /// Where receive work spends its time, from samples of stacks on all CPUs. Needs `time`.
    pub stages: bool,
    /// Which rx queue received which flow, with the NIC's hash of each flow. Examines the headers
    /// of each packet.
    pub arrivals: bool,
    /// Which packets the kernel drops, and why. Runs for each dropped packet, also in pauses.
    pub drops: bool,
    /// What packet sockets take and lose. Each reading examines the open files of all processes.
    pub packet_sockets: bool,
    /// How many IP packets enter and leave each network namespace, and what raw and packet sockets
    /// read. Examines each packet.
    pub ip_packets: bool,
    /// How long threads that read sockets wait for a CPU. Examines every wakeup and context switch.
    pub runqueue: bool,
    /// Whether kernel functions may be traced (fentry, kprobes). Tests set it to false, to count as
    /// on kernels that refuse this.
    pub trace_functions: bool,
    /// How many reads, polls and softirqs (each) a CPU examines per second before it samples
    /// ([`Attribution::sampling`]). Of dropped packets it examines more. `None`: all.
    pub examined_per_s: Option<u64>,
}

impl Options {
    /// The default options without sampling: each read, poll and softirq is examined.
    pub fn exact() -> Self {
        Self { examined_per_s: None, ..Self::default() }
    }

    /// The options for findings and bundles: the default ones, plus the flows of each rx queue, the
    /// dropped packets and the packet sockets.
    pub fn for_findings() -> Self {
        Self { arrivals: true, drops: true, packet_sockets: true, ..Self::default() }
    }

    /// What a whole check knows: the same, in which stages receive work spends its time, and
    /// whether UDP packets are accounted for. It samples later, because causes of losses follow
    /// from the reads of one process.
    pub fn of_check() -> Self {
        let examined_per_s = Some(EXAMINED_PER_S_BY_CHECK);
        Self { stages: true, ip_packets: true, examined_per_s, ..Self::for_findings() }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            time: true,
            containers: true,
            forwarding: true,
            stages: false,
            arrivals: false,
            drops: false,
            packet_sockets: false,
            ip_packets: false,
            runqueue: false,
            trace_functions: true,
            examined_per_s: Some(EXAMINED_PER_S),
        }
    }
}

/// Why an attached tracer cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the eBPF tables: stop and attach again")]
pub struct ReadError(#[from] libbpf_rs::Error);

/// eBPF programs in the kernel, attached unless paused. Dropping it detaches and unloads them.
pub struct Tracer {
    options: Options,
    tables: Option<Tables>,
    context: Option<LoadContext>,
    loaded: Vec<Loaded>,
    sampler: Option<Sampler>,
    /// The program that finds the queue behind a veth; `None` until this machine has a veth.
    flows: Option<Loaded>,
    /// The iterator over packet sockets, if [`Options::packet_sockets`] is set.
    packet_sockets: Option<PacketSockets>,
    /// Whether the program that counts forwarded packets is loaded.
    forward: bool,
    /// Whether the program that counts reads of MPTCP, raw and packet sockets is loaded.
    copied: bool,
    /// Every hook with its reason, if nothing could be loaded.
    refused: Vec<Hook>,
    cgroups: Cgroups,
    names: DropNames,
    /// When the programs were attached; `None` while paused.
    since: Option<Instant>,
    /// How long the programs were attached between the last read and the last pause.
    attached: Duration,
    windowed: bool,
    before: Before,
    /// Since when dropped packets are counted for the next read; `None` while they are not.
    drops_since: Option<Instant>,
    /// The counts of the last pause, of which the next read gets the dropped packets.
    in_pause: Option<Attribution>,
}

/// How long flows are recorded after a consumer last needed its flow. It is long so that rare
/// connections are matched too.
const DEMAND_LASTS: Duration = Duration::from_secs(60);

/// Default of [`Options::examined_per_s`].
const EXAMINED_PER_S: u64 = 8_000;

/// The same for [`Options::of_check`]: about 1 % of a CPU.
const EXAMINED_PER_S_BY_CHECK: u64 = 64_000;

/// How many dropped packets a CPU examines per second before it samples: 2 % of a CPU. Packets are
/// often dropped in bursts, hence their longer tick.
const DROPS_EXAMINED_PER_S: u64 = 100_000;

/// The tick of dropped packets (`bpf/drops.bpf.c`).
const JIFFIES_OF_DROPS: u64 = 256;

/// The tables that the programs count in.
struct Tables {
    polls: Table,
    reads: Table,
    wakeups: Table,
    forwards: Table,
    drops: Table,
    /// `None` unless [`Options::ip_packets`] is set.
    ip_packets: Option<Table>,
    /// Which half of each table is in use.
    turn: Turn,
    arrived: Arrived,
    /// `None` unless [`Options::runqueue`] is set.
    waits: Option<Waits>,
    times: Mapped,
    /// `struct demand` of `bpf/flow.h`.
    demand: Mapped,
    /// Until when flows are recorded, computed at the last check. `None` before the first check,
    /// because no consumer could request its flow yet.
    record_until: Option<Instant>,
    /// `bpf/window.h`.
    window: Mapped,
    lost: MapHandle,
}

/// Monotonic sums at the last read.
#[derive(Default)]
struct Before {
    times: BTreeMap<CpuId, CpuTime>,
    sampling: Sampling,
    wakeups_seen: u64,
    /// Run time of the programs, from the kernel's statistics.
    run_ns: u64,
    lost: u64,
}

impl Tracer {
    /// Attaches every hook that the kernel allows. For the others, [`Attribution::hooks`] has the
    /// reason.
    pub fn attach(options: Options) -> Self {
        libbpf_rs::set_print(None); // hooks report the reasons
        let (tables, mut context, refused) = match Tables::new(options) {
            Ok((tables, context)) => (Some(tables), Some(context), Vec::new()),
            Err(error) => (None, None, refuse(options, &reason(&error))),
        };
        let loaded = context.as_mut().map_or(Vec::new(), |context| load_all(options, context));
        let sampler = options.stages.then(|| match &context {
            Some(context) if knows_softirqs(&loaded) => Sampler::new(context),
            Some(_) => Sampler::refused(NO_SOFTIRQS),
            None => Sampler::refused("there are no eBPF tables"),
        });
        let mut tracer = Self {
            options,
            tables,
            context,
            loaded,
            sampler,
            flows: None,
            packet_sockets: None,
            forward: false,
            copied: false,
            refused,
            cgroups: Cgroups::new(),
            names: DropNames::default(),
            since: Some(Instant::now()),
            attached: Duration::ZERO,
            windowed: false,
            before: Before::default(),
            drops_since: None,
            in_pause: None,
        };
        if options.packet_sockets {
            let iterator = tracer.load_later(&Source::packet_sockets());
            tracer.packet_sockets = iterator.map(PacketSockets::new);
        }
        if has_virtual_netdev() {
            tracer.load_flows();
        }
        tracer.load_as_needed();
        tracer.start();
        tracer
    }

    /// Starts a window. Drops the counts from the time in which the hooks were attached one by one.
    fn start(&mut self) {
        self.since = Some(Instant::now());
        self.drops_since = self.since.filter(|_| self.counts_drops());
        // If this fails, the next read fails too and reports the error.
        let _ = self.restart();
    }

    fn counts_drops(&self) -> bool {
        self.loaded.iter().any(|loaded| loaded.counts_drops() && loaded.is_attached())
    }

    /// Drops all counts, so that the next read has only those from now on.
    pub fn restart(&mut self) -> Result<(), ReadError> {
        self.count().map(drop)
    }

    /// Loads `bpf/flows.bpf.c`.
    fn load_flows(&mut self) {
        if self.options.containers && self.flows.is_none() {
            self.flows = self.load_later(&Source::flows());
        }
    }

    /// Loads the programs that few machines need.
    fn load_as_needed(&mut self) {
        if self.options.forwarding && !self.forward && may_forward() {
            self.forward = true;
            let loaded = self.load_later(&Source::forward());
            self.loaded.extend(loaded);
        }
        if !self.copied && (self.options.ip_packets || uses_mptcp()) {
            self.copied = true;
            let loaded = self.load_later(&Source::copied());
            self.loaded.extend(loaded);
        }
    }

    fn load_later(&self, source: &Source) -> Option<Loaded> {
        let mut loaded = load(source, self.context.as_ref()?);
        if self.since.is_none() {
            loaded.detach();
        }
        Some(loaded)
    }

    /// Attaches the program that records flows while a consumer needs it. Without sampling it is
    /// always attached.
    fn attach_flows(&mut self) {
        let is_exact = self.options.examined_per_s.is_none();
        let needed = is_exact || self.tables.as_ref().is_some_and(Tables::records_flows);
        match &mut self.flows {
            Some(flows) if needed && !flows.is_attached() => flows.attach(),
            Some(flows) if !needed => flows.detach(),
            _ => {}
        }
    }

    /// All loaded objects.
    fn objects(&self) -> impl Iterator<Item = &Loaded> {
        let packet_sockets = self.packet_sockets.iter().map(|it| &it.iterator);
        self.loaded.iter().chain(&self.flows).chain(packet_sockets)
    }

    /// Each hook, with the reason if it was refused.
    pub fn hooks(&self) -> Vec<Hook> {
        let loaded = self.objects().flat_map(|loaded| &loaded.hooks);
        let sampler = self.sampler.iter().map(|sampler| &sampler.hook);
        loaded.chain(&self.refused).chain(sampler).cloned().collect()
    }

    /// Detaches the programs, so that tracing costs nothing. They stay loaded and their counts can
    /// still be read. Dropped packets are counted further, so that no burst between two windows is
    /// missed.
    pub fn pause(&mut self) {
        self.sampler.iter_mut().for_each(Sampler::detach);
        let pausing = self.loaded.iter_mut().filter(|loaded| !loaded.counts_drops());
        pausing.chain(&mut self.flows).for_each(Loaded::detach);
        self.attached += self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        self.windowed = true;
    }

    /// Attaches again and starts a new window.
    ///
    /// The first read from a socket that is already open only sets the baseline of that socket.
    pub fn resume(&mut self) {
        if self.since.is_some() {
            return;
        }
        if let Some(tables) = &self.tables {
            tables.begin_window();
        }
        let detached = self.loaded.iter_mut().filter(|loaded| !loaded.is_attached());
        detached.for_each(Loaded::attach);
        self.attach_flows();
        self.sampler.iter_mut().for_each(Sampler::attach);
        self.since = Some(Instant::now());
        self.drops_since = self.drops_since.or(self.since).filter(|_| self.counts_drops());
        // If this fails, the next read fails too and reports the error.
        self.in_pause = self.count().ok();
    }

    /// The counts since the last call, or since the programs were attached. Takes some
    /// milliseconds.
    ///
    /// Read before you pause: hooks are detached one by one, and the remaining ones keep counting.
    pub fn read(&mut self) -> Result<Attribution, ReadError> {
        let attribution = self.count()?;
        if self.tables.as_mut().is_some_and(Tables::renew_demand) {
            self.load_flows();
        }
        if self.since.is_some() {
            self.attach_flows();
        }
        self.load_as_needed();
        Ok(attribution)
    }

    fn count(&mut self) -> Result<Attribution, ReadError> {
        let mut attribution =
            Attribution { hooks: self.hooks(), windowed: self.windowed, ..Attribution::default() };
        if attribution.hooks.iter().any(|hook| hook.refused.is_none()) {
            attribution.source = AttributionSource::Bpf;
        }
        let (mut wakeups_of_any, mut end) = (0, Instant::now());
        if let Some(tables) = &mut self.tables {
            // The window ends here for all counts, before the wait for running programs.
            let full = tables.turn.next();
            end = Instant::now();
            let reschedules = self.loaded.iter().any(Loaded::counts_reschedules);
            let times = cpu_times(&tables.times, reschedules);
            let (sampling, wakeups_seen) = sampled(&tables.times);
            tables.polls.wait()?;
            attribution.polls = polls(tables.polls.drain(full));
            let reads = tables.reads.drain(full);
            attribution.group_reads = group_reads(&reads);
            if let Some(table) = &mut tables.ip_packets {
                attribution.ip_packets = ip_packets(table.drain(full), &reads);
            }
            attribution.consumption = consumption(reads, &attribution.polls, &self.cgroups);
            attribution.wakeups = wakeups(tables.wakeups.drain(full));
            attribution.cpu_time = since(&times, &self.before.times);
            self.before.times = times;
            attribution.sampling = sampling.since(self.before.sampling);
            self.before.sampling = sampling;
            wakeups_of_any = wakeups_seen - self.before.wakeups_seen;
            self.before.wakeups_seen = wakeups_seen;
            let lost = tables.lost()?
                + self.loaded.iter().chain(&self.flows).map(Loaded::missed).sum::<u64>();
            // If the count of a program cannot be read, it is 0.
            attribution.lost_events = lost.saturating_sub(self.before.lost);
            self.before.lost = lost;
            attribution.forwarded = forwarded(tables.forwards.drain(full));
            attribution.drops = self.names.drops(tables.drops.drain(full), &self.cgroups);
            if let Some(sockets) = &mut self.packet_sockets {
                match sockets.read() {
                    Ok(read) => attribution.packet_sockets = read,
                    Err(error) => {
                        let own = |it: &&mut Hook| it.quantity == packet_sockets::QUANTITY;
                        let hooks = attribution.hooks.iter_mut().filter(own);
                        hooks.for_each(|it| it.refused = Some(format!("not read: {error}")));
                    }
                }
            }
            if self.options.arrivals {
                (attribution.flows, attribution.flows_missed) =
                    tables.arrived.drain(&attribution.polls)?;
            }
            attribution.runqueue_latency = tables.waits.as_mut().map(Waits::drain);
        }
        attribution.stages = self.sampler.as_ref().map(Sampler::read).transpose()?;
        attribution.drops_elapsed = self.drops_since.map_or(Duration::ZERO, |since| end - since);
        self.drops_since = self.drops_since.map(|_| end);
        attribution.cost = Some(self.cost(&attribution, wakeups_of_any));
        if let Some(paused) = self.in_pause.take() {
            attribution.drops.extend(paused.drops);
            attribution.drops_elapsed += paused.drops_elapsed;
            attribution.lost_events += paused.lost_events;
            attribution.sampling.drops.add(paused.sampling.drops);
            let cost = attribution.cost.iter_mut().zip(paused.cost);
            cost.for_each(|(cost, paused)| cost.ns += paused.ns);
        }
        attribution.elapsed =
            self.attached + self.since.map_or(Duration::ZERO, |since| end - since);
        self.attached = Duration::ZERO;
        self.since = self.since.map(|_| end);
        Ok(attribution)
    }

    /// The CPU time of the programs since the last call.
    fn cost(&mut self, attribution: &Attribution, wakeups: u64) -> CountingCost {
        if own_cost::is_measured() {
            let run_ns = self.objects().map(Loaded::run_ns).sum::<u64>();
            let ns = run_ns.saturating_sub(std::mem::replace(&mut self.before.run_ns, run_ns));
            return CountingCost { ns, measured: true };
        }
        let flows = u64::from(self.flows.as_ref().is_some_and(Loaded::is_attached));
        let runs = |program| u64::from(self.loaded.iter().any(|loaded| loaded.runs(program)));
        let packet_programs = flows + 2 * u64::from(self.forward);
        // sock_recv_length is called for each read of any socket. Recording the queue of each
        // datagram, examined or not, takes as much as four calls (evidence/performance.md).
        let read_programs = 1 + runs("udp_read_length") + 4 * runs("udp_arrives");
        own_cost::estimate(attribution, Unlisted { wakeups, packet_programs, read_programs })
    }
}

fn load_all(options: Options, context: &mut LoadContext) -> Vec<Loaded> {
    let mut loaded = Vec::new();
    if options.runqueue {
        let runqueue = load(&Source::runqueue(), context);
        // This is first, because the programs loaded below mark readers in its map.
        context.maps.extend(
            runqueue.map(READERS).filter(|_| runqueue.complete()).map(|readers| (READERS, readers)),
        );
        loaded.push(runqueue);
    }
    loaded.extend([load(&Source::polls(), context), load(&Source::tcp(), context)]);
    loaded.extend(load_first(&Source::udp(options.trace_functions), context));
    if options.time {
        loaded.push(load(&Source::time(), context));
        let wakeups = Source::wakeups();
        if knows_softirqs(&loaded) {
            loaded.extend(load_first(&wakeups, context));
        } else {
            loaded.extend(wakeups.first().map(|all| Loaded::refused(all, NO_SOFTIRQS)));
        }
    }
    if options.arrivals {
        loaded.push(load(&Source::arrive(), context));
    }
    if options.ip_packets {
        loaded.push(load(&Source::ip_packets(), context));
    }
    if options.drops {
        // An older kernel's variant tells less, but counts the same packets.
        loaded.extend(load_first(&Source::drops(), context).pop());
    }
    loaded
}

const NO_SOFTIRQS: &str = "needs the softirq hooks, which are refused or not requested";

/// Whether both softirq hooks are attached. They record which softirq each CPU is running.
fn knows_softirqs(loaded: &[Loaded]) -> bool {
    ["softirq_entry", "softirq_exit"]
        .iter()
        .all(|hook| loaded.iter().any(|loaded| loaded.runs(hook)))
}

/// All hooks, refused for this reason, when the tables cannot be created.
fn refuse(options: Options, reason: &str) -> Vec<Hook> {
    let mut sources = vec![Source::polls(), Source::tcp(), Source::time()];
    sources.extend(Source::wakeups());
    sources.extend(Source::udp(options.trace_functions));
    sources.extend(options.runqueue.then(Source::runqueue));
    sources.extend(options.drops.then(Source::drops).and_then(|mut all| all.pop()));
    sources.extend(options.ip_packets.then(Source::ip_packets));
    sources.extend(options.packet_sockets.then(Source::packet_sockets));
    sources.iter().flat_map(|source| source.refuse(reason)).collect()
}

/// Whether data may arrive through a device without hardware (veth, bridge, tunnel), where the NAPI
/// id is lost.
fn has_virtual_netdev() -> bool {
    let netdevs = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    netdevs
        .into_iter()
        .any(|netdev| netdev.file_name() != "lo" && !netdev.path().join("device").exists())
}

/// Whether packets may be forwarded: routing is on, or a device is a bridge port.
///
/// Other network namespaces have their own settings. They are ignored, because their queues are not
/// examined either.
fn may_forward() -> bool {
    let on = |path: &str| fs::read_to_string(path).is_ok_and(|value| value.trim() != "0");
    let routes = ["/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"]
        .into_iter()
        .any(on);
    let netdevs = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    routes || netdevs.into_iter().any(|netdev| netdev.path().join("brport").exists())
}

/// Whether a program has opened an MPTCP socket since boot, in any network namespace; also if that
/// cannot be read.
fn uses_mptcp() -> bool {
    let Ok(caches) = fs::read_to_string("/proc/slabinfo") else { return true };
    let sockets = caches.lines().filter(|line| line.starts_with("MPTCP"));
    sockets.into_iter().any(|line| line.split_whitespace().nth(1).is_some_and(|it| it != "0"))
}

/// Attaches the programs for one window, waits, and returns the counts.
///
/// The first read from a socket that was already open only sets its baseline and counts nothing.
pub fn observe_window(length: Duration, options: Options) -> Result<Attribution, ReadError> {
    let mut tracer = Tracer::attach(options);
    std::thread::sleep(length);
    tracer.read().map(|attribution| Attribution { windowed: true, ..attribution })
}

impl Tables {
    fn new(options: Options) -> libbpf_rs::Result<(Self, LoadContext)> {
        let cpus = cpus_possible();
        let slots = slots(cpus);
        let polls = Table::new(cpus, slots)?;
        let reads = Table::new(cpus, slots)?;
        let wakeups = Table::new(cpus, slots / 2)?;
        let forwards = Table::new(cpus, slots / 2)?;
        let drops = Table::new(cpus, slots / 2)?;
        let times = mappable_array("netsilo_times", (TIME_WORDS * 8) as u32, cpus)?;
        let demand = mappable_array("netsilo_demand", (DEMAND_WORDS * 8) as u32, 1)?;
        let window = mappable_array("netsilo_window", 8, 1)?;
        let quota = options.examined_per_s.map_or(u32::MAX, per_tick);
        let drops_per_s = options.examined_per_s.map(|_| DROPS_EXAMINED_PER_S);
        let quota_of_drops =
            drops_per_s.map_or(u32::MAX, |per_s| per_tick(per_s * JIFFIES_OF_DROPS));
        let tables = Self {
            window: Mapped::new(window.as_fd(), 8)?,
            record_until: None,
            demand: Mapped::new(demand.as_fd(), DEMAND_WORDS * 8)?,
            times: Mapped::new(times.as_fd(), cpus as usize * TIME_WORDS * 8)?,
            lost: mappable_array("netsilo_lost", 8, 1)?,
            polls,
            reads,
            wakeups,
            forwards,
            drops,
            ip_packets: options.ip_packets.then(|| Table::new(cpus, slots)).transpose()?,
            turn: Turn::new()?,
            arrived: Arrived::new(options.arrivals)?,
            waits: options.runqueue.then(|| Waits::new(cpus)).transpose()?,
        };
        let mut maps = BTreeMap::from([
            ("polls", tables.polls.pair()?),
            ("reads", tables.reads.pair()?),
            ("wakeups", tables.wakeups.pair()?),
            ("forwards", tables.forwards.pair()?),
            ("drops", tables.drops.pair()?),
            ("arrivals", array("netsilo_arrivals", layout::SIZEOF_ARRIVALS, cpus)?),
            ("cpu_times", times),
            ("lost", MapHandle::try_from(&tables.lost)?),
            ("virtual_napis", lru("netsilo_virtual", 4, 1, layout::VIRTUAL_NAPIS)?),
            (
                "flows_by_hash",
                lru("netsilo_hashes", 4, layout::SIZEOF_ORIGIN, layout::FLOWS_RECORDED)?,
            ),
            (
                "flows_by_tuple",
                lru(
                    "netsilo_tuples",
                    layout::SIZEOF_TUPLE,
                    layout::SIZEOF_ORIGIN,
                    layout::FLOWS_RECORDED,
                )?,
            ),
            ("flow_demand", demand),
            ("window", window),
        ]);
        if let Some(ip_packets) = &tables.ip_packets {
            maps.insert("ip_packets", ip_packets.pair()?);
        }
        maps.extend([tables.turn.map()?]);
        maps.extend(tables.arrived.maps()?);
        maps.extend(tables.waits.as_ref().map(Waits::map).transpose()?);
        tables.begin_window();
        tables.demand.words()[layout::DEMAND_NOTING].store(1, Ordering::Relaxed);
        Ok((tables, LoadContext { maps, cpus, slots, quota, quota_of_drops }))
    }

    /// Drops intervals that began in an earlier window. Call it while nothing is attached.
    fn begin_window(&self) {
        self.window.words()[0].fetch_add(1, Ordering::Relaxed);
        for time in self.times.words().chunks_exact(TIME_WORDS) {
            time[TIME_OPEN].iter().for_each(|since| since.store(0, Ordering::Relaxed));
        }
    }

    /// Extends the recording of flows if a consumer requested its flow since the last call.
    /// Recording ends [`DEMAND_LASTS`] after the last request.
    fn renew_demand(&mut self) -> bool {
        let demand = self.demand.words();
        let (asked, noting) = (&demand[layout::DEMAND_ASKED], &demand[layout::DEMAND_NOTING]);
        let (asked, now) = (asked.swap(0, Ordering::Relaxed) != 0, Instant::now());
        let until = if asked { now + DEMAND_LASTS } else { self.record_until.unwrap_or(now) };
        self.record_until = Some(until);
        noting.store(u64::from(now < until), Ordering::Relaxed);
        asked
    }

    fn records_flows(&self) -> bool {
        self.demand.words()[layout::DEMAND_NOTING].load(Ordering::Relaxed) != 0
    }

    fn lost(&self) -> libbpf_rs::Result<u64> {
        let value = self.lost.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY)?;
        Ok(value.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes))
    }
}

fn array(name: &str, value: usize, entries: u32) -> libbpf_rs::Result<MapHandle> {
    MapHandle::create(MapType::Array, Some(name), 4, value as u32, entries, &create_options())
}

fn lru(name: &str, key: usize, value: usize, entries: usize) -> libbpf_rs::Result<MapHandle> {
    let [key, value, entries] = [key, value, entries].map(|number| number as u32);
    MapHandle::create(MapType::LruHash, Some(name), key, value, entries, &create_options())
}

/// The highest CPU that can ever be online, plus one.
fn cpus_possible() -> u32 {
    let list = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let highest = CpuSet::parse_list(&list).ok().and_then(|cpus| cpus.highest());
    highest.map_or(1, |cpu| cpu.0 + 1)
}

/// Number of events per tick of the kernel (the resolution of its coarse clock), at least one.
fn per_tick(per_s: u64) -> u32 {
    let tick = clock_getres(ClockId::MonotonicCoarse);
    let ns = tick.tv_sec.unsigned_abs() * 1_000_000_000 + tick.tv_nsec.unsigned_abs();
    (per_s * ns / 1_000_000_000).clamp(1, u32::MAX.into()) as u32
}

/// Slots per CPU of a full table, 88 bytes each.
///
/// Two full tables and three of half the slots, each doubled: 616 KB per CPU up to 64 CPUs, 39 MB
/// in total up to 256. [`Options::ip_packets`] adds a full one: 176 KB and 11 MB.
fn slots(cpus: u32) -> u32 {
    (65536 / cpus.next_power_of_two()).clamp(256, 1024)
}
