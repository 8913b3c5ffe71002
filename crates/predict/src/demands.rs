//! What one transaction, packet or bit of a scenario's load takes, and where: the same placements
//! and prices as for an observed machine, with absolute costs.

use netsilo_model::machine::cpuset::{CpuId, CpuSet};

use crate::loads::Parts;
use crate::parameters::Values;
use crate::prices::Prices;
use crate::scenario::{
    Filter, Forward, Kernel, Load, Nic, Protocol, RequestResponse, Scenario, Send, Service, Setting,
};

/// Preamble, start delimiter, checksum and gap of an Ethernet frame (bytes).
const FRAMING: f64 = 24.0;

/// Ethernet header (bytes).
const HEADER: f64 = 14.0;

/// Smallest frame without its checksum (bytes).
const LEAST_FRAME: f64 = 60.0;

/// Frames up to this are copied into a small buffer by the driver (bytes): `RX_COPY_THRESH` of
/// bnx2, other drivers have up to 256.
const COPIED: f64 = 128.0;

/// Largest segment that TCP hands to a NIC (`GSO_MAX_SIZE`, bytes).
const SEGMENT: f64 = 65536.0;

/// Packets that are polled on one CPU.
#[derive(Clone, Copy)]
pub(crate) struct Stream {
    /// For each unit of work.
    pub(crate) packets: f64,
    /// The CPU that polls them.
    pub(crate) cpu: usize,
    pub(crate) parts: Parts,
}

/// The threads that do the rest.
#[derive(Default)]
pub(crate) struct Tasks {
    /// Time of each unit in system calls (ns).
    pub(crate) sys: f64,
    /// The same in user mode.
    pub(crate) user: f64,
    /// More for the thread, and as much for the protocol, where these run on different cores.
    pub(crate) lines: f64,
    /// Whether each unit wakes a thread.
    pub(crate) sleep: bool,
    /// Whether RFS brings the protocol to the thread's CPU.
    pub(crate) are_steered_to: bool,
    /// CPUs that they may use; empty: all.
    pub(crate) cpus: CpuSet,
    /// How many there are, if that limits them.
    pub(crate) threads: Option<f64>,
    /// Share of their CPUs' time that the scheduler fills with them.
    pub(crate) balance: f64,
}

/// How much of the load there is.
#[derive(Clone, Copy)]
pub(crate) enum Amount {
    /// So many instances, each with one unit under way; CPU time of the client for a unit (ns).
    UnderWay { instances: f64, client: f64 },
    /// Units per second, whatever becomes of them.
    Offered(f64),
}

/// What a unit of a load takes.
pub(crate) struct Demands {
    pub(crate) prices: Prices,
    /// Packets of a unit in each direction.
    pub(crate) packets: f64,
    pub(crate) streams: Vec<Stream>,
    /// The CPUs that run the protocol of packets from any CPU; empty: the CPU that polls does.
    pub(crate) targets: Vec<CpuId>,
    pub(crate) tasks: Tasks,
    /// Time of the link, and of the bus (s).
    pub(crate) link: f64,
    pub(crate) bus: f64,
    /// Longest time that the NIC holds an interrupt back (us).
    pub(crate) coalesce_us: f64,
    pub(crate) amount: Amount,
}

impl Demands {
    pub(crate) fn new(scenario: &Scenario, setting: &Setting, values: &Values) -> Self {
        let prices = Prices::new(&scenario.machine, *values);
        match &scenario.load {
            Load::RequestResponse(load) => requests(scenario, load, setting, prices),
            Load::Forward(load) => forward(scenario, load, setting, prices),
            Load::Send(load) => send(scenario, load, prices),
            Load::Service(load) => service(scenario, load, setting, prices),
        }
    }
}

/// The CPU of a vector's interrupt.
fn irq_cpu(setting: &Setting, vector: usize) -> usize {
    setting.irq[vector % setting.irq.len()]
}

/// The CPU of each queue's interrupt, and its share of the packets.
fn polled(setting: &Setting, queues: std::ops::Range<usize>) -> Vec<(usize, f64)> {
    let share = 1.0 / queues.len() as f64;
    let mut cpus: Vec<(usize, f64)> = Vec::new();
    for cpu in queues.map(|queue| irq_cpu(setting, queue)) {
        match cpus.iter_mut().find(|(it, _)| *it == cpu) {
            Some((_, all)) => *all += share,
            None => cpus.push((cpu, share)),
        }
    }
    cpus
}

/// The CPUs of RPS.
fn rps(setting: &Setting) -> Vec<CpuId> {
    setting.rps.iter().map(|cpu| CpuId(*cpu as u32)).collect()
}

/// Packets that are polled on one CPU and take these cycles.
fn stream(prices: &Prices, (cpu, packets): (usize, f64), (poll, protocol): (f64, f64)) -> Stream {
    let parts = Parts { poll: prices.ns(poll), begin: 0.0, protocol: prices.ns(protocol) };
    Stream { packets, cpu, parts }
}

/// The queues that RSS spreads a load over.
fn receiving_queues(nic: &Nic, protocol: Protocol) -> std::ops::Range<usize> {
    let hashed = protocol == Protocol::Tcp || nic.hashes_udp_ports;
    let first = nic.first_rss_queue.min(nic.queue_count - 1);
    if hashed { first..nic.queue_count } else { first..first + 1 }
}

/// A request with its answer.
fn requests(
    scenario: &Scenario,
    load: &RequestResponse,
    setting: &Setting,
    prices: Prices,
) -> Demands {
    let (values, nic) = (prices.values, &scenario.nic);
    let is_tcp = load.protocol == Protocol::Tcp;
    let of = |tcp: f64, udp: f64| if is_tcp { tcp } else { udp };
    let headers = HEADER + of(20.0 + 32.0, 20.0 + 8.0);
    let packets = (load.bytes / (nic.mtu + HEADER - headers)).ceil().max(1.0);
    let frame = (load.bytes / packets + headers).max(LEAST_FRAME);
    let new_buffer = if frame > COPIED { values.new_buffer } else { 0.0 };
    let poll = values.poll + new_buffer + prices.of_bytes(values.poll_byte * load.bytes) / packets;
    let protocol = of(values.tcp, values.udp) + values.wakeup / packets;
    let completion = of(values.completion, values.completion_udp);

    // `get_rps_cpu` looks at the flow tables even without a mask.
    let are_steered_to = setting.rfs && (is_tcp || load.connected);
    let everywhere = CpuSet::first(scenario.machine.cpu_count() as u32);
    let readers = if load.cpus.is_empty() { &everywhere } else { &load.cpus };
    let targets = if are_steered_to { readers.iter().collect() } else { rps(setting) };
    let received = polled(setting, receiving_queues(nic, load.protocol));
    let completed = polled(setting, 0..nic.queue_count);
    // The part of a CPU's packets whose buffers are freed by CPUs that poll fewer.
    let far = |(cpu, share): (usize, f64)| {
        let completes = completed.iter().find(|(it, _)| *it == cpu).map_or(0.0, |it| it.1);
        (share - completes).max(0.0) * values.far_buffer / packets
    };
    let all_far: f64 = received.iter().map(|it| far(*it)).sum();
    let rx = received.iter().map(|&(cpu, share)| {
        let poll = poll + far((cpu, share)) / share * values.far_buffer_poll;
        let protocol = protocol + all_far * (1.0 - values.far_buffer_poll);
        stream(&prices, (cpu, packets * share), (poll, protocol))
    });
    let tx = completed
        .iter()
        .map(|&(cpu, share)| stream(&prices, (cpu, packets * share), (completion, 0.0)));
    let streams = rx.chain(tx).collect();

    let call = of(values.syscall_tcp, values.syscall_udp);
    let sys = call + prices.of_bytes(2.0 * load.bytes * values.copy_byte);
    let lines = packets * values.lines;
    // It does what the server does.
    let client = packets * (poll + protocol + completion)
        + sys
        + values.user
        + if are_steered_to { 0.0 } else { lines };
    Demands {
        packets,
        streams,
        targets,
        tasks: Tasks {
            sys: prices.ns(sys),
            user: prices.ns(values.user) + load.work_us * 1e3,
            lines: prices.ns(lines),
            sleep: true,
            are_steered_to,
            cpus: load.cpus.clone(),
            threads: None,
            balance: values.balance,
        },
        link: packets * (frame + FRAMING) * 8.0 / (nic.gbit * 1e9),
        bus: 0.0,
        coalesce_us: nic.coalesce_us,
        amount: Amount::UnderWay {
            instances: load.instances,
            client: prices.ns(values.client * client),
        },
        prices,
    }
}

/// A packet from one port to the other: the receiving port's softirq does everything but the
/// completion, which the sending port's interrupt does, and what RPS takes to other CPUs.
fn forward(scenario: &Scenario, load: &Forward, setting: &Setting, prices: Prices) -> Demands {
    let (values, queues) = (prices.values, scenario.nic.queue_count);
    let (way, sends) = match load.filter {
        Filter::None => (values.forward, true),
        Filter::Conntrack => (values.forward + values.conntrack, true),
        Filter::RawDrop => (values.drop, false),
    };
    let ports = if load.two_way { 2 } else { 1 };
    let packets = 1.0 / (ports * queues) as f64;
    let mut streams = Vec::new();
    for (port, queue) in (0..ports).flat_map(|port| (0..queues).map(move |queue| (port, queue))) {
        // A queue sends by the same queue of the other port.
        let poll = irq_cpu(setting, port * queues + queue);
        let complete = irq_cpu(setting, (1 - port) * queues + queue);
        streams.push(stream(&prices, (poll, packets), (values.poll, way)));
        if sends {
            let far = if poll == complete { 0.0 } else { values.lines };
            let completion = values.completion + far;
            streams.push(stream(&prices, (complete, packets), (completion, 0.0)));
        }
    }
    let frame = load.frame_bytes.max(64.0) + 20.0;
    Demands {
        packets: 1.0,
        streams,
        targets: rps(setting),
        tasks: Tasks::default(),
        link: frame * 8.0 / (scenario.nic.gbit * 1e9) / ports as f64,
        bus: 0.0,
        coalesce_us: scenario.nic.coalesce_us,
        amount: Amount::Offered(load.offered * ports as f64),
        prices,
    }
}

/// A bit of payload.
fn send(scenario: &Scenario, load: &Send, prices: Prices) -> Demands {
    let (values, nic) = (prices.values, &scenario.nic);
    let headers = match load.protocol {
        Protocol::Tcp => 20.0 + 32.0,
        Protocol::Udp => 20.0 + 8.0,
    };
    // A TCP segment holds bytes of several calls; a UDP datagram is one call, in fragments.
    let room = nic.mtu - headers;
    let payload = match load.protocol {
        Protocol::Tcp => room,
        Protocol::Udp => load.call_bytes / (load.call_bytes / room).ceil(),
    };
    // Kernels of today give the NIC large segments to divide.
    let is_divided = load.protocol == Protocol::Tcp && scenario.machine.kernel == Kernel::Recent;
    let packet = if is_divided { SEGMENT } else { payload };
    let copy = if load.zero_copy { 0.0 } else { values.send_copy };
    let cycles = values.send_call / load.call_bytes
        + values.send_packet / packet
        + prices.of_bytes(values.send_byte + copy);
    let frame = payload + headers + HEADER + FRAMING;
    Demands {
        packets: 1.0,
        streams: Vec::new(),
        targets: Vec::new(),
        tasks: Tasks {
            sys: prices.ns(cycles) / 8.0,
            threads: Some(load.senders),
            balance: 1.0,
            ..Tasks::default()
        },
        link: frame / payload / (nic.gbit * 1e9),
        bus: 1.0 / (nic.bus_gbit * 1e9),
        coalesce_us: 0.0,
        amount: Amount::Offered(f64::INFINITY),
        prices,
    }
}

/// A packet of a service, which is known by its shares of CPU time alone.
fn service(scenario: &Scenario, load: &Service, setting: &Setting, prices: Prices) -> Demands {
    let (values, cpus) = (prices.values, scenario.machine.cpu_count() as f64);
    let received = polled(setting, 0..scenario.nic.queue_count);
    let (poll, protocol) = (values.poll + values.completion, values.tcp + values.wakeup);
    // Without a setting, the rate follows from one packet's softirq work; a poll waits for others.
    let busiest = received.iter().map(|it| it.1).fold(0.0, f64::max) * load.softirq * cpus;
    let interrupt = values.interrupt * (1.0 - busiest.min(0.95)).powi(2);
    let rate = load.softirq * cpus * 1e9 / prices.ns(interrupt + poll + protocol);
    let each = |share: f64| share * cpus * 1e9 / rate;
    // What the scheduler has filled, it can fill.
    let balance = values.balance.max((load.usr + load.sys) / (1.0 - load.softirq));
    let streams = received.iter().map(|it| stream(&prices, *it, (poll, protocol)));
    Demands {
        packets: 1.0,
        streams: streams.collect(),
        targets: rps(setting),
        tasks: Tasks { sys: each(load.sys), user: each(load.usr), balance, ..Tasks::default() },
        link: 0.0,
        bus: 0.0,
        coalesce_us: 0.0,
        amount: Amount::Offered(rate),
        prices,
    }
}
