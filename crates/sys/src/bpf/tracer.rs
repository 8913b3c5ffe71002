//! Counts in the kernel which CPU polls each NAPI instance and which threads read its data.
//!
//! The eBPF programs are attached while a [`Tracer`] lives. Every hook is optional: if the kernel
//! refuses one, its counts are missing and [`Attribution::hooks`] has the reason.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::snapshot::attribution::{
    Attribution, AttributionSource, CountingCost, CpuTime, Hook, Sampling,
};
use netsilo_model::snapshot::stage_samples::StageSamples;
use netsilo_model::snapshot::{drops, packet_sockets};

use crate::bpf::cgroup::Cgroups;
use crate::bpf::decode::{
    consumption, cpu_times, forwarded, group_reads, ip_packets, is_to_tun, polls, sampled,
    scheduled, sent, since, wakeups,
};
use crate::bpf::drops::DropNames;
use crate::bpf::functions::Functions;
use crate::bpf::load::{LoadContext, Loaded, load, refuse};
pub use crate::bpf::options::Options;
use crate::bpf::own_cost::{self, Unlisted};
use crate::bpf::packet_sockets::PacketSockets;
use crate::bpf::refusal::reason;
use crate::bpf::runqueue::Waits;
use crate::bpf::sources::{FLOWS, STAGES, Source};
use crate::bpf::stages::Samples;
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
    /// What the sampling program counts, if [`Options::stages`] is set and it was accepted.
    samples: Option<Samples>,
    packet_sockets: PacketSockets,
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
        let mut sources = Source::all(options);
        sources.extend(needed(options, &[], has_virtual_netdev(), false));
        let (tables, context, refused) = match Tables::new(options) {
            Ok((tables, context)) => (Some(tables), Some(context), Vec::new()),
            Err(error) => (None, None, refuse(&sources, &reason(&error))),
        };
        let mut tracer = Self {
            options,
            tables,
            context,
            loaded: Vec::new(),
            samples: None,
            packet_sockets: PacketSockets::default(),
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
        tracer.load(sources);
        tracer.samples = tracer.loaded.iter().find_map(Samples::of);
        tracer.start();
        tracer
    }

    fn load(&mut self, sources: Vec<Source>) {
        if let Some(context) = &mut self.context {
            load(sources, context, &mut self.loaded);
        }
    }

    /// Starts a window. Drops the counts from the time in which the hooks were attached one by one.
    fn start(&mut self) {
        self.since = Some(Instant::now());
        self.drops_since = self.since.filter(|_| self.counts_drops());
        // If this fails, the next read fails too and reports the error.
        let _ = self.restart();
    }

    fn counts_drops(&self) -> bool {
        self.loaded.iter().any(|loaded| loaded.is_attached(drops::QUANTITY))
    }

    /// Drops all counts, so that the next read has only those from now on.
    pub fn restart(&mut self) -> Result<(), ReadError> {
        self.count().map(drop)
    }

    /// Loads the programs that this machine needs by now.
    fn load_needed(&mut self, asks_for_flows: bool) {
        let first = self.loaded.len();
        self.load(needed(self.options, &self.loaded, asks_for_flows, self.sends_to_tun));
        if self.since.is_none() {
            self.loaded[first..].iter_mut().for_each(|loaded| loaded.detach(|_| true));
        }
    }

    /// Attaches the program that records flows while a consumer needs it. Without sampling it is
    /// always attached.
    fn attach_flows(&mut self) {
        let is_exact = self.options.examined_per_s.is_none();
        let needed = is_exact || self.tables.as_ref().is_some_and(Tables::records_flows);
        let is_flows = |quantity: &str| quantity == FLOWS;
        for loaded in &mut self.loaded {
            if needed { loaded.attach(is_flows, false) } else { loaded.detach(is_flows) }
        }
    }

    /// Each hook, with the reason if it was refused.
    pub fn hooks(&self) -> Vec<Hook> {
        self.loaded.iter().flat_map(Loaded::hooks).chain(&self.refused).cloned().collect()
    }

    /// Detaches the programs, so that tracing costs nothing. They stay loaded and their counts can
    /// still be read. Dropped packets are counted further, so that no burst between two windows is
    /// missed.
    pub fn pause(&mut self) {
        let counts_always = [drops::QUANTITY, packet_sockets::QUANTITY];
        let pauses = |quantity: &str| !counts_always.contains(&quantity);
        self.loaded.iter_mut().for_each(|loaded| loaded.detach(pauses));
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
        let softirqs = self.loaded.iter().any(Loaded::knows_softirqs);
        let is_meant = |quantity: &str| quantity != FLOWS;
        self.loaded.iter_mut().for_each(|loaded| loaded.attach(is_meant, softirqs));
        self.attach_flows();
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
        let asks_for_flows = self.tables.as_mut().is_some_and(Tables::renew_demand);
        self.load_needed(asks_for_flows);
        if self.since.is_some() {
            self.attach_flows();
        }
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
            tables.turn.wait()?;
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
            let lost = tables.lost()? + self.loaded.iter().map(Loaded::missed).sum::<u64>();
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
            if self.options.packet_sockets {
                let printed = self.loaded.iter().map(|it| it.iterate("packet_sockets"));
                match printed.collect::<io::Result<Vec<_>>>() {
                    Ok(bytes) => {
                        attribution.packet_sockets = self.packet_sockets.since(&bytes.concat());
                    }
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
        attribution.stages = self.stages()?;
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

    /// The stacks that were sampled since the last call; `None` unless [`Options::stages`] is set.
    fn stages(&self) -> libbpf_rs::Result<Option<StageSamples>> {
        if !self.options.stages {
            return Ok(None);
        }
        let sampled = self.samples.as_ref().map(Samples::read).transpose()?;
        let mut sampled = sampled.unwrap_or_default();
        let hook = self.hooks().into_iter().find(|hook| hook.quantity == STAGES);
        sampled.refused = hook.and_then(|hook| hook.refused).or(sampled.refused);
        Ok(Some(sampled))
    }

    /// The CPU time of the programs since the last call.
    fn cost(&mut self, attribution: &Attribution, wakeups: u64) -> CountingCost {
        if own_cost::is_measured() {
            let run_ns = self.loaded.iter().map(Loaded::run_ns).sum::<u64>();
            let ns = run_ns.saturating_sub(std::mem::replace(&mut self.before.run_ns, run_ns));
            return CountingCost { ns, measured: true };
        }
        let flows = u64::from(self.loaded.iter().any(|loaded| loaded.is_attached(FLOWS)));
        let runs = |program| u64::from(self.loaded.iter().any(|loaded| loaded.runs(program)));
        let packet_programs = flows + runs("forward_enters") + runs("forward_leaves");
        // sock_recv_length and skb_copy_datagram_iovec are called for each read of any socket.
        // Recording the queue of each datagram, examined or not, takes as much as four calls
        // (evidence/performance.md).
        let read_programs =
            1 + runs("udp_read_length") + runs("copied_read") + 4 * runs("udp_arrives");
        own_cost::estimate(attribution, Unlisted { wakeups, packet_programs, read_programs })
    }
}

/// The sources that few machines need, but this one does, and that are not loaded. `flows`: whether
/// the queue behind a veth is asked for (`bpf/flows.bpf.c`).
fn needed(options: Options, loaded: &[Loaded], flows: bool, sends_to_tun: bool) -> Vec<Source> {
    let is_new = |source: &Source| {
        let mut hooks = loaded.iter().flat_map(Loaded::hooks);
        !hooks.any(|hook| hook.quantity == source.quantity)
    };
    let reads_others = || {
        options.ip_packets || sends_to_tun || are_taps_here(&Root::live()) || uses_mptcp_or_sctp()
    };
    [
        Some(Source::flows()).filter(is_new).filter(|_| flows && options.containers),
        Some(Source::forward()).filter(is_new).filter(|_| options.forwarding && may_forward()),
        Some(Source::copied()).filter(is_new).filter(|_| reads_others()),
    ]
    .into_iter()
    .flatten()
    .collect()
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
