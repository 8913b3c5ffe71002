//! Maps NAPIs to queues, and consumption to the queue that it arrived on: by netdev netlink, or by
//! observation.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use crate::derive::rates::Rates;
use crate::drivers::software::SoftwareNetdev;
use crate::machine::cpuset::CpuId;
use crate::machine::ids::NapiId;
use crate::snapshot::attribution::{Attribution, Consumption, Forwarded, Poll, QueueResolution};
use crate::snapshot::host::Snapshot;
use crate::snapshot::netdev::{Association, AssociationSource, Confidence, Netdev, RxQueue};

/// The queue or device that counted work belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// An rx queue, by the netdev's position in the snapshot and the queue's index.
    Queue(usize, u32),
    /// A NAPI with an unknown queue, by its netdev's position in the snapshot.
    Napi(usize, NapiId),
    /// Received through no NIC.
    Local,
    /// A netdev of another network namespace.
    Foreign,
    /// Not found.
    Unresolved,
}

/// The mapping between NAPIs and queues.
#[derive(Debug)]
pub struct QueueMap<'a> {
    snapshot: &'a Snapshot,
    /// The netdev of each NAPI, by its position in the snapshot.
    devices: BTreeMap<NapiId, usize>,
    /// NAPIs that polled netdevs of other network namespaces.
    foreign: BTreeSet<NapiId>,
    /// All rx queues, by their netdev's position in the snapshot.
    rx_queues: BTreeSet<(usize, u32)>,
    /// The queue of each NAPI.
    queues: BTreeMap<NapiId, (usize, u32, Association<NapiId>)>,
    /// The most certain NAPI of each queue, by interface index.
    napis: BTreeMap<(u32, u32), Association<NapiId>>,
    /// Of each netdev without hardware that no NAPI with an id polls, the only queue, or the netdev
    /// alone: instances without an id poll it (GRO cells, WireGuard, a tap with `IFF_NAPI`).
    without_id: BTreeMap<u32, Origin>,
    /// All origins, in the order of the silos.
    origins: Vec<Origin>,
    /// The origin of data whose protocol ran on a CPU, where what was read there is what arrived.
    by_cpu: Vec<(CpuId, Origin)>,
}

/// Share of a CPU's polled packets that one queue must have to count as the only one there.
const ALONE: f64 = 0.95;

/// Reads for each packet of a queue: fewer are not of its packets alone, nor are more.
const READS_PER_PACKET: RangeInclusive<f64> = 0.02..=2.0;

/// Bytes of payload read for each that arrived, at most and at least: reads lag behind arrivals.
const READ_OF_ARRIVED: RangeInclusive<f64> = 0.8..=1.1;

/// The fewest and most bytes of headers in front of a payload: IPv4 and UDP; Ethernet, IPv6 and
/// TCP with options, and a VLAN.
const HEADERS: [f64; 2] = [28.0, 120.0];

/// Whether a packet that arrives may still have the queue on which it was sent: veth does not
/// record its own on each kernel.
fn keeps_queue_of_sender(netdev: &Netdev) -> bool {
    SoftwareNetdev::is_on_backlogs(netdev)
}

impl<T> Association<T> {
    /// An edge to something else with the same source and confidence.
    pub fn with<U>(self, to: U) -> Association<U> {
        Association { to, source: self.source, confidence: self.confidence }
    }
}

impl<'a> QueueMap<'a> {
    /// Builds the mapping from a snapshot and the counts of the observation.
    pub fn new(snapshot: &'a Snapshot, attribution: &Attribution, rates: &Rates) -> Self {
        let mut map = Self {
            snapshot,
            devices: BTreeMap::new(),
            foreign: BTreeSet::new(),
            rx_queues: BTreeSet::new(),
            queues: BTreeMap::new(),
            napis: BTreeMap::new(),
            without_id: BTreeMap::new(),
            origins: Vec::new(),
            by_cpu: Vec::new(),
        };
        let queues = || {
            snapshot
                .netdevs
                .iter()
                .enumerate()
                .flat_map(|(at, dev)| dev.rx_queues.iter().map(move |q| (at, q.index)))
        };
        map.rx_queues = queues().collect();
        map.add_settings();
        map.add_polls(&attribution.polls);
        map.add_in_order();
        map.add_packets(attribution);
        map.add_only_queues();
        map.add_by_irqs();
        map.add_interrupted(attribution, rates);
        for (at, index, edge) in map.queues.values() {
            let sure = map
                .napis
                .entry((snapshot.netdevs[*at].ifindex, *index))
                .or_insert_with(|| edge.clone());
            if edge.confidence >= sure.confidence {
                *sure = edge.clone();
            }
        }
        map.add_without_id();
        map.origins = queues().map(|(at, index)| Origin::Queue(at, index)).collect();
        let queueless = map.devices.iter().filter(|(napi, _)| !map.queues.contains_key(napi));
        let polled: BTreeSet<NapiId> =
            attribution.polls.iter().filter(|p| p.packets > 0).map(|p| p.napi).collect();
        let without_queue = queueless
            .filter(|(napi, _)| polled.contains(napi))
            .map(|(napi, at)| Origin::Napi(*at, *napi));
        let mut without_queue: BTreeSet<Origin> = without_queue.collect();
        without_queue.extend(map.polls_by_origin(attribution).into_iter().filter_map(
            |(origin, polls)| {
                let is_new = matches!(origin, Origin::Napi(_, NapiId(0)));
                (is_new && polls.iter().any(|poll| poll.packets > 0)).then_some(origin)
            },
        ));
        map.origins.extend(without_queue);
        map.by_cpu = map.accounted_for(attribution, rates);
        map
    }

    /// Finds CPUs that poll one queue alone, of which no packet is known to be read or forwarded,
    /// while just as much data of unknown origin, whose protocol ran there, is read: the same
    /// number of packets and bytes came from that queue. That nothing else is left is no reason.
    ///
    /// So a veth that feeds a router or bridge, whose packets are read in another network
    /// namespace: the kernel handles them on the CPU that polled them, up to the socket. Not with
    /// RPS, which has them handled elsewhere.
    fn accounted_for(&self, attribution: &Attribution, rates: &Rates) -> Vec<(CpuId, Origin)> {
        let steers = |rx: &RxQueue| rx.rps_cpus.as_ref().is_some_and(|cpus| !cpus.is_empty());
        if self.snapshot.netdevs.iter().flat_map(|netdev| &netdev.rx_queues).any(steers) {
            return Vec::new();
        }
        let mut known: BTreeSet<Origin> = BTreeSet::new();
        let mut reads: BTreeMap<CpuId, (u64, u64)> = BTreeMap::new();
        for row in &attribution.consumption {
            match (self.origin_of(row), row.protocol_cpu) {
                (Origin::Unresolved, Some(cpu)) => {
                    let (events, bytes) = reads.entry(cpu).or_default();
                    (*events, *bytes) = (*events + row.events, *bytes + row.bytes);
                }
                (origin, _) => _ = known.insert(origin),
            }
        }
        known.extend(attribution.forwarded.iter().map(|row| self.origin_of_forwarded(row)));
        // The backlog (NAPI 0) polls no device: its packets were polled before, or are local.
        let mut polled: BTreeMap<CpuId, u64> = BTreeMap::new();
        for poll in attribution.polls.iter().filter(|poll| poll.napi.0 != 0) {
            *polled.entry(poll.cpu).or_default() += poll.packets;
        }
        let mut found = Vec::new();
        for (origin, polls) in self.polls_by_origin(attribution) {
            let Some(size) = self.bytes_per_packet(origin, rates) else { continue };
            let with_id = polls.iter().filter(|poll| poll.napi.0 != 0);
            for poll in with_id.filter(|_| !known.contains(&origin)) {
                let Some((events, bytes)) = reads.get(&poll.cpu) else { continue };
                let packets = poll.packets as f64;
                let is_only = packets >= ALONE * *polled.get(&poll.cpu).unwrap_or(&0) as f64;
                let [most, least] = HEADERS.map(|headers| packets * (size - headers).max(0.0));
                let is_all = *bytes as f64 >= READ_OF_ARRIVED.start() * least
                    && *bytes as f64 <= READ_OF_ARRIVED.end() * most;
                if is_only && is_all && READS_PER_PACKET.contains(&(*events as f64 / packets)) {
                    found.push((poll.cpu, origin));
                }
            }
        }
        found
    }

    /// The mean size of a packet of the netdev of an origin.
    fn bytes_per_packet(&self, origin: Origin, rates: &Rates) -> Option<f64> {
        let (Origin::Queue(at, _) | Origin::Napi(at, _)) = origin else { return None };
        let counters = rates.netdevs.get(&self.snapshot.netdevs[at].name)?;
        let packets = *counters.get("rx_packets")?;
        (packets > 0.0).then_some(counters.get("rx_bytes")? / packets)
    }

    /// Adds what netdev netlink reports: the NAPIs of each netdev and, on newer kernels, of each
    /// queue.
    fn add_settings(&mut self) {
        for (at, netdev) in self.snapshot.netdevs.iter().enumerate() {
            self.devices.extend(
                netdev.napis.iter().filter(|napi| napi.id.0 != 0).map(|napi| (napi.id, at)),
            );
            for queue in &netdev.rx_queues {
                if let Some(edge) = &queue.napi {
                    self.devices.insert(edge.to, at);
                    self.queues.insert(edge.to, (at, queue.index, edge.clone()));
                }
            }
        }
    }

    /// Adds the devices of polls.
    ///
    /// A poll names its device within the device's network namespace; names and indexes repeat in
    /// other namespaces.
    fn add_polls(&mut self, polls: &[Poll]) {
        for poll in polls
            .iter()
            .filter(|poll| poll.napi.0 != 0 && !self.devices.contains_key(&poll.napi))
            .collect::<Vec<_>>()
        {
            let here = self.snapshot.machine.is_own_netns(poll.netns);
            let is_device = |dev: &Netdev| dev.ifindex == poll.ifindex && dev.name == poll.netdev;
            match self.snapshot.netdevs.iter().position(is_device).filter(|_| here) {
                Some(at) => _ = self.devices.insert(poll.napi, at),
                None => _ = self.foreign.insert(poll.napi),
            }
        }
    }

    /// Adds the NAPIs of veths: one for each rx queue, with ascending numbers
    /// (`drivers/net/veth.c:__veth_napi_enable_range`). What the kernel reports of one stays.
    fn add_in_order(&mut self) {
        let mut napis: BTreeMap<usize, Vec<NapiId>> = BTreeMap::new();
        for (napi, at) in &self.devices {
            napis.entry(*at).or_default().push(*napi);
        }
        for (at, napis) in napis {
            let netdev = &self.snapshot.netdevs[at];
            if !keeps_queue_of_sender(netdev) || napis.len() != netdev.rx_queues.len() {
                continue;
            }
            for (napi, queue) in napis.into_iter().zip(&netdev.rx_queues) {
                let source = AssociationSource::InOrder;
                let edge = Association { to: napi, source, confidence: Confidence::Named };
                self.queues.entry(napi).or_insert((at, queue.index, edge));
            }
        }
    }

    /// Adds queues from packets: a packet records its rx queue, and its NAPI belongs to that queue,
    /// unless the record is the sender's.
    ///
    /// If one NAPI has packets of several queues (it changed hands, or a socket changed queues
    /// between two packets), the queue with most bytes is used; if several have packets of one
    /// queue, the one with most. Approximate rows count only without exact ones.
    fn add_packets(&mut self, attribution: &Attribution) {
        let read = attribution
            .consumption
            .iter()
            .map(|row| (row.napi, row.rx_queue, row.bytes, row.approximate));
        let forwarded =
            attribution.forwarded.iter().map(|row| (row.napi, row.rx_queue, row.bytes, false));
        let mut votes: BTreeMap<NapiId, BTreeMap<u32, (u64, u64)>> = BTreeMap::new();
        for (napi, queue, bytes, is_approximate) in read.chain(forwarded) {
            let (Some(napi), Some(queue)) = (napi, queue) else { continue };
            let (exact, approximate) = votes.entry(napi).or_default().entry(queue).or_default();
            let votes = if is_approximate { approximate } else { exact };
            *votes = votes.saturating_add(bytes);
        }
        let mut elected: BTreeMap<(usize, u32), ((u64, u64), NapiId)> = BTreeMap::new();
        for (napi, votes) in votes {
            let Some(&at) = self.devices.get(&napi).filter(|_| !self.queues.contains_key(&napi))
            else {
                continue;
            };
            let most = votes
                .into_iter()
                .filter(|(queue, _)| self.may_record(at, *queue))
                .max_by_key(|(queue, bytes)| (*bytes, std::cmp::Reverse(*queue)));
            let Some((queue, bytes)) = most else { continue };
            let best = elected.entry((at, queue)).or_insert((bytes, napi));
            *best = (*best).max((bytes, napi));
        }
        for ((at, queue), ((exact, _), napi)) in elected {
            let confidence = if exact > 0 { Confidence::Certain } else { Confidence::Guess };
            let source = AssociationSource::Observed;
            self.queues.insert(napi, (at, queue, Association { to: napi, source, confidence }));
        }
    }

    /// Adds NAPIs of devices with one rx queue: a polled NAPI belongs to that queue.
    fn add_only_queues(&mut self) {
        let unknown = self.devices.iter().filter(|(napi, _)| !self.queues.contains_key(napi));
        for (napi, at) in unknown.map(|(napi, at)| (*napi, *at)).collect::<Vec<_>>() {
            if let [only] = self.snapshot.netdevs[at].rx_queues.as_slice() {
                let edge = Association {
                    to: napi,
                    source: AssociationSource::Observed,
                    confidence: Confidence::Named,
                };
                self.queues.insert(napi, (at, only.index, edge));
            }
        }
    }

    /// Adds NAPIs whose interrupt is known, to the queue that it announces.
    fn add_by_irqs(&mut self) {
        for (at, netdev) in self.snapshot.netdevs.iter().enumerate() {
            for (napi, irq) in netdev.napis.iter().filter_map(|it| Some((it.id, it.irq?))) {
                let is_its = |rx: &&RxQueue| rx.irq.as_ref().is_some_and(|edge| edge.to == irq);
                let queues: Vec<&RxQueue> = netdev.rx_queues.iter().filter(is_its).collect();
                let is_shared = netdev.napis.iter().filter(|it| it.irq == Some(irq)).count() > 1;
                if let [RxQueue { index, irq: Some(edge), .. }] = queues.as_slice()
                    && napi.0 != 0
                    && !is_shared
                {
                    let edge = edge.clone().with(napi);
                    self.queues.entry(napi).or_insert((at, *index, edge));
                }
            }
        }
    }

    fn add_without_id(&mut self) {
        let has_id: BTreeSet<usize> = self.devices.values().copied().collect();
        for (at, netdev) in self.snapshot.netdevs.iter().enumerate() {
            let is_polled = || {
                SoftwareNetdev::from_netdev(netdev).is_some_and(|kind| kind.is_polled_without_id())
            };
            if (netdev.device_path.is_none() || is_polled()) && !has_id.contains(&at) {
                let origin = match netdev.rx_queues.as_slice() {
                    [only] => Origin::Queue(at, only.index),
                    _ => Origin::Napi(at, NapiId(0)),
                };
                self.without_id.insert(netdev.ifindex, origin);
            }
        }
    }

    /// Adds NAPIs by where they were polled: a NAPI is polled on the CPU that takes its interrupt.
    ///
    /// A pair counts if on some CPU the netdev has one NAPI without a queue and one queue without
    /// a NAPI. Without counted polls, the CPU that ran the protocol counts as the CPU that polled,
    /// unless RPS is on. A kthread polls anywhere, so threaded NAPIs are not paired.
    fn add_interrupted(&mut self, attribution: &Attribution, rates: &Rates) {
        let known: BTreeSet<(usize, u32)> =
            self.queues.values().map(|(at, queue, _)| (*at, *queue)).collect();
        let mut napis: BTreeMap<(usize, CpuId), BTreeSet<NapiId>> = BTreeMap::new();
        let mut add = |napi: NapiId, cpu: CpuId| {
            if let Some(at) = self.devices.get(&napi).filter(|_| !self.queues.contains_key(&napi)) {
                napis.entry((*at, cpu)).or_default().insert(napi);
            }
        };
        for poll in attribution.polls.iter().filter(|poll| poll.packets > 0) {
            add(poll.napi, poll.cpu);
        }
        for row in attribution.consumption.iter().filter(|_| attribution.polls.is_empty()) {
            row.napi.zip(row.protocol_cpu).into_iter().for_each(|(napi, cpu)| add(napi, cpu));
        }
        let mut queues: BTreeMap<(usize, CpuId), BTreeSet<u32>> = BTreeMap::new();
        for (at, netdev) in self.snapshot.netdevs.iter().enumerate() {
            let steered = |rx: &RxQueue| rx.rps_cpus.as_ref().is_some_and(|cpus| !cpus.is_empty());
            let threaded = netdev.napis.iter().any(|napi| napi.thread.is_some());
            let is_open =
                |rx: &&RxQueue| !threaded && !known.contains(&(at, rx.index)) && !steered(rx);
            for rx in netdev.rx_queues.iter().filter(is_open) {
                let irq = rx.irq.as_ref().and_then(|edge| rates.irqs.get(&edge.to));
                for cpu in irq.iter().flat_map(|irq| irq.per_s.keys()) {
                    queues.entry((at, *cpu)).or_default().insert(rx.index);
                }
            }
        }
        for (place @ (at, _), napis) in napis {
            let queues = queues.get(&place).map(|queues| queues.iter().collect::<Vec<_>>());
            if let (Some(&napi), 1, Some([queue])) = (napis.first(), napis.len(), queues.as_deref())
            {
                let (source, confidence) = (AssociationSource::Observed, Confidence::Guess);
                let edge = Association { to: napi, source, confidence };
                self.queues.entry(napi).or_insert((at, **queue, edge));
            }
        }
    }

    /// The NAPI of a queue.
    pub fn napi_of(&self, netdev: &Netdev, queue: &RxQueue) -> Option<Association<NapiId>> {
        queue.napi.clone().or_else(|| self.napis.get(&(netdev.ifindex, queue.index)).cloned())
    }

    /// NAPIs that polled packets and whose queue is unknown, with their netdev.
    pub fn queueless(&self) -> impl Iterator<Item = (&'a Netdev, Association<NapiId>)> + '_ {
        let snapshot = self.snapshot;
        self.origins.iter().filter_map(move |origin| match origin {
            Origin::Napi(at, napi) => {
                let edge = Association {
                    to: *napi,
                    source: AssociationSource::Observed,
                    confidence: Confidence::Certain,
                };
                Some((&snapshot.netdevs[*at], edge))
            }
            _ => None,
        })
    }

    /// The origin of the silo at this position.
    pub fn origin_at(&self, index: usize) -> Origin {
        self.origins.get(index).copied().unwrap_or(Origin::Unresolved)
    }

    /// Polls by queue or NAPI.
    pub fn polls_by_origin<'p>(
        &self,
        attribution: &'p Attribution,
    ) -> BTreeMap<Origin, Vec<&'p Poll>> {
        let mut polls: BTreeMap<Origin, Vec<&Poll>> = BTreeMap::new();
        for poll in &attribution.polls {
            let has_id = poll.napi.0 != 0 || !self.snapshot.machine.is_own_netns(poll.netns);
            let without_id = || self.without_id.get(&poll.ifindex).filter(|_| !has_id).copied();
            if let Some(origin) = self.origin_of_napi(poll.napi).or_else(without_id) {
                polls.entry(origin).or_default().push(poll);
            }
        }
        polls
    }

    /// The queue or NAPI on which a consumption's data arrived; unresolved without evidence,
    /// however few queues it may be of.
    pub fn origin_of(&self, row: &Consumption) -> Origin {
        match (row.resolved, self.origin_of_packets(row.napi, row.rx_queue)) {
            (QueueResolution::Local, _) => Origin::Local,
            (QueueResolution::Toeplitz, Origin::Unresolved) => {
                self.computed(row.rx_queue).unwrap_or(Origin::Unresolved)
            }
            (QueueResolution::Unresolved, Origin::Unresolved) => {
                let found = self.by_cpu.iter().find(|(cpu, _)| Some(*cpu) == row.protocol_cpu);
                found.map_or(Origin::Unresolved, |(_, origin)| *origin)
            }
            (_, origin) => origin,
        }
    }

    /// The queue or NAPI on which forwarded packets arrived.
    pub fn origin_of_forwarded(&self, row: &Forwarded) -> Origin {
        self.origin_of_packets(row.napi, row.rx_queue)
    }

    fn origin_of_packets(&self, napi: Option<NapiId>, queue: Option<u32>) -> Origin {
        let by_napi = napi.and_then(|napi| match self.origin_of_napi(napi)? {
            Origin::Napi(at, _) if queue.is_some_and(|queue| self.may_record(at, queue)) => {
                Some(Origin::Queue(at, queue?))
            }
            origin => Some(origin),
        });
        match (by_napi, napi) {
            (Some(origin), _) => origin,
            (None, Some(napi)) if self.foreign.contains(&napi) => Origin::Foreign,
            _ => Origin::Unresolved,
        }
    }

    /// Resolves a queue number that was computed from the indirection table of this namespace's
    /// netdev that has the socket's address; `None` if several could be that netdev.
    fn computed(&self, queue: Option<u32>) -> Option<Origin> {
        let queue = queue?;
        let hashes = |dev: &Netdev| dev.ethtool.as_ref().is_some_and(|it| it.rss.value().is_some());
        let mut devices = self.snapshot.netdevs.iter().enumerate();
        let mut devices = devices.by_ref().filter(|(_, dev)| !dev.irqs.is_empty() || hashes(dev));
        let (only, _) = devices.next().filter(|_| devices.next().is_none())?;
        self.has_queue(only, queue).then_some(Origin::Queue(only, queue))
    }

    fn has_queue(&self, at: usize, queue: u32) -> bool {
        self.rx_queues.contains(&(at, queue))
    }

    /// Whether packets of a netdev that record this queue arrived on it.
    fn may_record(&self, at: usize, queue: u32) -> bool {
        self.has_queue(at, queue) && !keeps_queue_of_sender(&self.snapshot.netdevs[at])
    }

    /// The queue of a NAPI, with its netdev's position, and how that is known.
    pub fn queue_of(&self, napi: NapiId) -> Option<(usize, u32, &Association<NapiId>)> {
        self.queues.get(&napi).map(|(at, queue, edge)| (*at, *queue, edge))
    }

    fn origin_of_napi(&self, napi: NapiId) -> Option<Origin> {
        match self.queues.get(&napi) {
            Some((at, queue, _)) => Some(Origin::Queue(*at, *queue)),
            None => Some(Origin::Napi(*self.devices.get(&napi)?, napi)),
        }
    }
}
