//! Counts in the kernel which CPU polls each NAPI instance and which threads read its data.
//!
//! The eBPF programs are attached while a [`Tracer`] lives. Every hook is optional: if the kernel
//! refuses one, its counts are missing and [`Attribution::hooks`] has the reason.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::snapshot::attribution::{
    Attribution, AttributionSource, CountingCost, CpuTime, Hook, Sampling,
};
use netsilo_model::snapshot::packet_sockets;

use crate::bpf::cgroup::Cgroups;
use crate::bpf::decode::{
    consumption, cpu_times, forwarded, group_reads, ip_packets, is_to_tun, polls, sampled,
    scheduled, sent, since, wakeups,
};
use crate::bpf::drops::DropNames;
use crate::bpf::functions::Functions;
use crate::bpf::load::{LoadContext, Loaded, READERS, Source, load, load_first, reason};
pub use crate::bpf::options::Options;
use crate::bpf::own_cost::{self, Unlisted};
use crate::bpf::packet_sockets::PacketSockets;
use crate::bpf::runqueue::Waits;
use crate::bpf::stages::Sampler;
use crate::bpf::tables::Tables;
use crate::files::root::Root;

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
    /// Whether the program that counts reads of MPTCP, SCTP, raw and packet sockets is
    /// loaded.
    copied: bool,
    /// Whether packets left through a tun or tap, in any network namespace.
    sends_to_tun: bool,
    /// Every hook with its reason, if nothing could be loaded.
    refused: Vec<Hook>,
    cgroups: Cgroups,
    names: DropNames,
    functions: Functions,
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
            sends_to_tun: false,
            refused,
            cgroups: Cgroups::new(),
            names: DropNames::default(),
            functions: Functions::default(),
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
        let is_needed = || {
            let taps = self.sends_to_tun || are_taps_here(&Root::live());
            self.options.ip_packets || taps || uses_mptcp_or_sctp()
        };
        if !self.copied && is_needed() {
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
            let polled = tables.polls.drain(full);
            let woken = tables.wakeups.drain(full);
            attribution.scheduled = scheduled(&polled, &woken);
            attribution.polls = polls(polled);
            let reads = tables.reads.drain(full);
            attribution.group_reads = group_reads(&reads);
            if let Some(table) = &mut tables.ip_packets {
                let mut passed = table.drain(full);
                attribution.sent = sent(&mut passed);
                attribution.ip_packets = ip_packets(passed, &reads);
            }
            attribution.consumption =
                consumption(reads, &attribution.polls, &self.cgroups, &mut self.functions);
            attribution.wakeups = wakeups(woken);
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
            let mut forwards = tables.forwards.drain(full);
            self.sends_to_tun |= forwards.iter().any(is_to_tun);
            if self.loaded.iter().any(|it| it.runs("copied_read")) {
                forwards.retain(|it| !is_to_tun(it));
            }
            attribution.forwarded = forwarded(forwards);
            attribution.drops =
                self.names.drops(tables.drops.drain(full), &self.cgroups, &mut self.functions);
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
        // sock_recv_length and skb_copy_datagram_iovec are called for each read of any socket.
        // Recording the queue of each datagram, examined or not, takes as much as four calls
        // (evidence/performance.md).
        let read_programs =
            1 + runs("udp_read_length") + runs("copied_read") + 4 * runs("udp_arrives");
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
    loaded.extend(load_first(&Source::udp(options.only_tracepoints), context));
    if options.time {
        let [with_list, without] = Source::time();
        let with_list = (!options.only_tracepoints).then(|| load(&with_list, context));
        let time = with_list.filter(|it| it.runs("irq_handler_exit"));
        loaded.push(time.unwrap_or_else(|| load(&without, context)));
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
    let [time, _] = Source::time();
    let mut sources = vec![Source::polls(), Source::tcp(), time];
    sources.extend(Source::wakeups());
    sources.extend(Source::udp(options.only_tracepoints));
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

/// Whether this network namespace has a tun, tap, macvtap or ipvtap.
pub(crate) fn are_taps_here(root: &Root) -> bool {
    let listed = |folder: &str| root.list(folder).unwrap_or_default();
    let is_tun = |netdev: &String| root.exists(&format!("/sys/class/net/{netdev}/tun_flags"));
    listed("/sys/class/net").iter().any(is_tun)
        || ["/sys/class/macvtap", "/sys/class/ipvtap"].iter().any(|it| !listed(it).is_empty())
}

/// Whether a program has opened an MPTCP or SCTP socket since boot, in any network namespace; also
/// if that cannot be read.
fn uses_mptcp_or_sctp() -> bool {
    let Ok(caches) = fs::read_to_string("/proc/slabinfo") else { return true };
    let is_theirs = |line: &&str| line.starts_with("MPTCP") || line.starts_with("SCTP");
    let mut sockets = caches.lines().filter(is_theirs);
    sockets.any(|line| line.split_whitespace().nth(1).is_some_and(|it| it != "0"))
}

/// Attaches the programs for one window, waits, and returns the counts.
///
/// The first read from a socket that was already open only sets its baseline and counts nothing.
pub fn observe_window(length: Duration, options: Options) -> Result<Attribution, ReadError> {
    let mut tracer = Tracer::attach(options);
    std::thread::sleep(length);
    tracer.read().map(|attribution| Attribution { windowed: true, ..attribution })
}
