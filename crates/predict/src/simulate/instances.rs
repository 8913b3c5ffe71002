//! Requests and responses: instances, their packets, the link both ways, and the client.

use fastrand::Rng;
use hdrhistogram::Histogram;

use crate::parameters::Values;
use crate::scenario::{RequestResponse, Scenario, Setting};
use crate::shares::{Shares, irq_cpu, receiving_queues, siblings};
use crate::simulate::cpu::Job;
use crate::simulate::events::{SECOND, Time, time};
use crate::simulate::latency::latencies;
use crate::simulate::link::Link;
use crate::simulate::pool::Pool;
use crate::transaction::{Transaction, client_contention};

/// Time after which a lost frame is sent again if nothing follows it (s): `TCP_RTO_MIN`. Clients
/// that use UDP have such a time, too.
const RETRY: f64 = 0.2;

/// Requests of this many frames notice a loss by those that follow, after a round trip.
const FAST_RETRY: f64 = 4.0;

/// One instance: a connection with its reader.
#[derive(Debug, Clone)]
pub(crate) struct Instance {
    /// Queues of its requests and responses.
    pub(crate) rx: usize,
    pub(crate) tx: usize,
    /// CPU that RPS chooses by the flow's hash.
    hash_cpu: Option<usize>,
    /// CPU that RFS steers it to.
    steered_to: usize,
    /// Packets of it in a backlog: RFS does not move it before these are handled.
    pub(crate) in_backlog: u32,
    /// CPU of its reader, and of the protocol's work for its last packet.
    pub(crate) reader_cpu: usize,
    protocol_cpu: usize,
    /// Packets of the present request that the protocol has handled.
    received: u32,
    /// When the present transaction began.
    began: Option<Time>,
}

/// All instances, and what is between them and the server.
pub(crate) struct Instances {
    pub(crate) list: Vec<Instance>,
    pub(crate) latencies: Histogram<u64>,
    pub(crate) to_server: Link,
    pub(crate) to_client: Link,
    pub(crate) client: Pool,
    /// Packets in each direction of a transaction.
    pub(crate) packets: u32,
    /// Whether RPS is on, and whether RFS brings packets to their readers.
    is_steered: bool,
    steers: bool,
    /// The core of each CPU.
    cores: Vec<u32>,
    costs: Costs,
    rng: Rng,
}

/// Times of a transaction (ps).
struct Costs {
    /// Poll of a packet, by CPU.
    poll: Vec<f64>,
    /// Protocol of a packet.
    input: f64,
    /// More for the last packet: the wakeup.
    wakeup: f64,
    /// The reader, the part of it in user mode, and what may be added to it.
    reader: f64,
    user: f64,
    lines: f64,
    by_ipi: f64,
    idle_switch: f64,
    /// Completion of a sent frame.
    completion: f64,
    /// The client; how much slower hardware threads make it; its pause after each transaction as a
    /// share of it; its delay if it is idle.
    client: f64,
    contention: f64,
    pause: f64,
    idle_client: Time,
    frame: Time,
    one_way: Time,
}

impl Costs {
    fn new(
        scenario: &Scenario,
        load: &RequestResponse,
        setting: &Setting,
        values: &Values,
    ) -> Self {
        let machine = &scenario.machine;
        let transaction = Transaction::new(scenario, load, setting, values);
        let shares = Shares::new(scenario, load, setting);
        let cycle = values.ns_per_cycle(machine) * 1e-9 * SECOND;
        let packets = transaction.packets;
        // Those of a CPU's packets whose buffers another CPU frees.
        let far = |cpu: usize| {
            if shares.poll[cpu] > 0.0 {
                shares.far_of(cpu) / shares.poll[cpu] * values.far_buffer
            } else {
                0.0
            }
        };
        let poll = |cpu| (transaction.poll() + far(cpu) * values.far_buffer_poll) / packets;
        let far_protocol = shares.far() * values.far_buffer * (1.0 - values.far_buffer_poll);
        let work = load.work_us * 1e-6 * SECOND;
        Self {
            poll: (0..machine.cpu_count()).map(|cpu| poll(cpu) * cycle).collect(),
            input: (transaction.input() + far_protocol / packets) * cycle,
            wakeup: values.wakeup * cycle,
            reader: transaction.reader() * cycle + work,
            user: values.user * cycle + work,
            lines: transaction.lines() * cycle,
            by_ipi: values.ipi_factor(machine) * values.ipi_receive * cycle,
            idle_switch: values.idle_switch * cycle,
            completion: transaction.completion() * cycle,
            client: transaction.client() * cycle,
            contention: client_contention(values, &siblings(machine)),
            pause: (1.0 / values.balance - 1.0).max(0.0),
            idle_client: time((scenario.nic.coalesce_us + 2.0 * values.idle_exit) * 1e-6),
            frame: time(transaction.frame_time),
            one_way: time(values.round_trip * 1e-6 / 2.0),
        }
    }
}

/// Instances whose flows are spread evenly over queues, CPUs of RPS and readers' CPUs.
fn instances(
    scenario: &Scenario,
    load: &RequestResponse,
    setting: &Setting,
    rng: &mut Rng,
) -> Vec<Instance> {
    let count = load.instances.round().max(1.0) as usize;
    let mut spread = |over: &[usize]| -> Vec<usize> {
        let mut list: Vec<usize> = over.iter().copied().cycle().take(count).collect();
        rng.shuffle(&mut list);
        list
    };
    let nic = &scenario.nic;
    let rx = spread(&receiving_queues(nic, load.protocol).collect::<Vec<_>>());
    let tx = spread(&(0..nic.queue_count).collect::<Vec<_>>());
    let hashed = spread(&setting.rps);
    let readers = spread(&reader_cpus(scenario, load));
    (0..count)
        .map(|index| Instance {
            rx: rx[index],
            tx: tx[index],
            hash_cpu: hashed.get(index).copied(),
            steered_to: readers[index],
            in_backlog: 0,
            reader_cpu: readers[index],
            protocol_cpu: irq_cpu(setting, rx[index]),
            received: 0,
            began: None,
        })
        .collect()
}

/// The CPUs that readers may use.
pub(crate) fn reader_cpus(scenario: &Scenario, load: &RequestResponse) -> Vec<usize> {
    let all = 0..scenario.machine.cpu_count();
    let may_read = |cpu: &usize| load.cpus.iter().any(|own| own.0 as usize == *cpu);
    if load.cpus.is_empty() { all.collect() } else { all.filter(may_read).collect() }
}

impl Instances {
    pub(crate) fn new(
        scenario: &Scenario,
        load: &RequestResponse,
        setting: &Setting,
        values: &Values,
        rng: &mut Rng,
    ) -> Self {
        let transaction = Transaction::new(scenario, load, setting, values);
        Self {
            list: instances(scenario, load, setting, rng),
            latencies: latencies(),
            to_server: Link::default(),
            to_client: Link::default(),
            client: Pool::new(scenario.machine.cpu_count()),
            packets: transaction.packets as u32,
            is_steered: !setting.rps.is_empty(),
            steers: transaction.steers,
            cores: scenario.machine.cores.clone(),
            costs: Costs::new(scenario, load, setting, values),
            rng: rng.fork(),
        }
    }

    /// The client of an instance sends a request; returns when its first frame arrives.
    pub(crate) fn ask(&mut self, flow: u32, now: Time) -> Time {
        let instance = &mut self.list[flow as usize];
        if let Some(began) = instance.began.replace(now) {
            self.latencies.saturating_record((now - began) / 1000);
        }
        let sent = self.to_server.send(now, self.packets, self.costs.frame);
        let first = sent - self.costs.frame.saturating_mul(Time::from(self.packets - 1)).min(sent);
        first + self.costs.one_way
    }

    /// Time between two frames of a request.
    pub(crate) fn frame(&self) -> Time {
        self.costs.frame
    }

    /// Returns when a frame that was lost arrives again.
    pub(crate) fn retry(&mut self, now: Time) -> Time {
        let is_fast = f64::from(self.packets) >= FAST_RETRY;
        // Timers of instances that lost together do not end together again.
        let late = time(RETRY * (1.0 + 0.5 * self.rng.f64()));
        now + if is_fast { 2 * self.costs.one_way } else { late }
    }

    /// Forgets what was counted: the warm-up is over.
    pub(crate) fn forget(&mut self) {
        self.latencies.reset();
        for link in [&mut self.to_server, &mut self.to_client] {
            link.used = 0;
        }
        self.client.used = 0;
    }

    /// Whether RPS chooses the CPU of the protocol.
    pub(crate) fn is_steered(&self) -> bool {
        self.is_steered
    }

    /// The driver's poll of a packet on `cpu` (ps).
    pub(crate) fn poll(&self, cpu: usize) -> f64 {
        self.costs.poll[cpu]
    }

    /// Completion of a sent frame (ps).
    pub(crate) fn completion(&self) -> f64 {
        self.costs.completion
    }

    /// The protocol's work on `cpu` for the next packet of an instance (ps).
    pub(crate) fn protocol(&self, flow: u32, cpu: usize) -> f64 {
        let instance = &self.list[flow as usize];
        let is_last = instance.received + 1 == self.packets;
        let lines = if self.is_far(instance.reader_cpu, cpu) {
            self.costs.lines / f64::from(self.packets)
        } else {
            0.0
        };
        self.costs.input + lines + if is_last { self.costs.wakeup } else { 0.0 }
    }

    /// Whether the lines that `one` wrote must come to `other`. Where RFS steers, that is a start.
    fn is_far(&self, one: usize, other: usize) -> bool {
        !self.steers && self.cores[one] != self.cores[other]
    }

    /// The CPU that RPS and RFS choose for a packet (`get_rps_cpu`).
    pub(crate) fn steer(&mut self, flow: u32) -> Option<usize> {
        let instance = &mut self.list[flow as usize];
        if self.steers && instance.in_backlog == 0 {
            instance.steered_to = instance.reader_cpu;
        }
        if self.steers { Some(instance.steered_to) } else { instance.hash_cpu }
    }

    /// The protocol has handled a packet on `cpu`; returns whether the request is complete.
    pub(crate) fn receive(&mut self, flow: u32, cpu: usize) -> bool {
        let instance = &mut self.list[flow as usize];
        instance.protocol_cpu = cpu;
        instance.received = (instance.received + 1) % self.packets;
        instance.received == 0
    }

    /// A reader runs on `cpu` from now on, which comes from idle or not. Sets its work if it has
    /// just begun.
    pub(crate) fn run_on(&mut self, job: &mut Job, cpu: usize, from_idle: bool, factor: f64) {
        let protocol_cpu = self.list[job.flow as usize].protocol_cpu;
        self.list[job.flow as usize].reader_cpu = cpu;
        if job.left.is_some() {
            return;
        }
        let (costs, is_far) = (&self.costs, self.is_far(protocol_cpu, cpu));
        let more = [(is_far, costs.lines), (job.by_ipi, costs.by_ipi)]
            .into_iter()
            .chain([(from_idle, costs.idle_switch)]);
        let more: f64 = more.map(|(applies, cost)| if applies { cost } else { 0.0 }).sum();
        let work = costs.reader + more;
        job.usr = costs.user / work;
        job.left = Some(work * factor);
    }

    /// A reader has answered; returns when the response has left, and when the client sends the
    /// next request.
    pub(crate) fn answer(&mut self, now: Time, factor: f64) -> (Time, Time) {
        let costs = &self.costs;
        let sent = self.to_client.send(now, self.packets, costs.frame);
        let arrives = sent + costs.one_way;
        let busy = self.client.busy(arrives);
        let service = costs.client * (1.0 + costs.contention * busy) * factor;
        let pause = (service * costs.pause) as Time;
        let done = self.client.serve(arrives, service as Time, pause);
        let finds_idle = self.rng.f64() >= busy;
        (sent, done + if finds_idle { costs.idle_client } else { 0 })
    }
}
