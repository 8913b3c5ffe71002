//! Requests and responses: a closed network of the link, the softirq work of each CPU, the readers
//! on what remains of the CPUs, and the client.

use crate::parameters::Values;
use crate::prediction::{Bottleneck, CpuTime, Prediction};
use crate::scenario::{Kernel, RequestResponse, Scenario, Setting};
use crate::shares::{Shares, siblings};
use crate::station::Station;
use crate::transaction::{Transaction, client_contention, contention};

/// Rounds of the fixed point at most.
const ROUNDS: usize = 400;

/// Share of a CPU's time that readers get from its softirqs at least: ksoftirqd is a thread like
/// them, so they are never locked out.
const LEAST_ROOM: f64 = 1e-4;

/// Smallest share of the way that a round goes.
const LEAST_STEP: f64 = 0.02;

/// CPUs that share a cache, where a woken reader's CPU is searched.
const SHARE_CACHE: i32 = 8;

/// Relative change of the rate at which the fixed point is found.
const PRECISION: f64 = 1e-6;

/// Packets that one `net_rx_action` handles at most (`net.core.netdev_budget`).
const BUDGET: f64 = 300.0;

/// Returns what `load` gets under `setting`.
pub fn predict(
    scenario: &Scenario,
    load: &RequestResponse,
    setting: &Setting,
    values: &Values,
) -> Prediction {
    let mut network = Network::new(scenario, load, setting, values);
    for _ in 0..ROUNDS {
        if network.round() < PRECISION {
            break;
        }
    }
    network.keep_to_the_link();
    network.prediction()
}

/// One CPU in the fixed point.
#[derive(Debug, Clone, Copy, Default)]
struct CpuState {
    /// Its softirq work as a station.
    softirq: Station,
    /// Softirq time of one transaction (s).
    demand: f64,
    /// The same with waiting (s).
    residence: f64,
    /// Share of its time that readers take.
    task: f64,
    /// Packets that one `net_rx_action` handles.
    batch: f64,
}

impl CpuState {
    fn busy(&self) -> f64 {
        (self.softirq.busy + self.task).min(1.0)
    }
}

/// What RPS's inter-processor interrupts find and cost.
struct Steering {
    /// One of them, for the CPU that sends it (cycles).
    send: f64,
    /// Share of the backlogs that are not scheduled already; others need no interrupt.
    unscheduled: f64,
    /// The same if no other CPU's interrupts were under way.
    alone: f64,
}

struct Network<'a> {
    scenario: &'a Scenario,
    load: &'a RequestResponse,
    setting: &'a Setting,
    values: &'a Values,
    shares: Shares,
    transaction: Transaction<'a>,
    /// For each CPU, the others of its core.
    siblings: Vec<Vec<usize>>,
    may_read: Vec<bool>,
    /// For each CPU, on how many other CPUs RPS may put packets.
    targets: Vec<f64>,
    /// For each CPU, how much slower it is because others of its core are busy.
    slow: Vec<f64>,
    /// For each CPU, the share of its time that softirqs leave to readers.
    room: Vec<f64>,
    rate: f64,
    /// Relative change of the rate in the last round.
    change: f64,
    /// Share of the way to its result that a round goes.
    step: f64,
    latency: f64,
    cpus: Vec<CpuState>,
    link: Station,
    readers: Station,
    client: Station,
    /// Share of the requests that are read on the core that runs their protocol.
    near: f64,
    /// CPU time of a reader for one transaction (s).
    task: f64,
    /// RPS's interrupts for one transaction, if all backlogs that do not run needed one.
    ipis_alone: f64,
    /// Mean time until RPS's interrupts leave, after a packet was polled (s).
    burst_wait: f64,
    ipis: f64,
    interrupts: f64,
}

impl<'a> Network<'a> {
    fn new(
        scenario: &'a Scenario,
        load: &'a RequestResponse,
        setting: &'a Setting,
        values: &'a Values,
    ) -> Self {
        let cpu_count = scenario.machine.cpu_count();
        let may_read = (0..cpu_count)
            .map(|cpu| load.cpus.is_empty() || load.cpus.iter().any(|own| own.0 as usize == cpu))
            .collect();
        Self {
            scenario,
            load,
            setting,
            values,
            shares: Shares::new(scenario, load, setting),
            transaction: Transaction::new(scenario, load, setting, values),
            siblings: siblings(&scenario.machine),
            may_read,
            targets: (0..cpu_count)
                .map(|cpu| setting.rps.iter().filter(|target| **target != cpu).count() as f64)
                .collect(),
            slow: vec![1.0; cpu_count],
            room: vec![1.0; cpu_count],
            rate: load.instances / (values.round_trip * 1e-6 + 1e-4),
            change: 0.0,
            step: 0.5,
            latency: 0.0,
            cpus: vec![CpuState::default(); cpu_count],
            link: Station::default(),
            readers: Station::default(),
            client: Station::default(),
            near: 0.0,
            task: 0.0,
            ipis_alone: 0.0,
            burst_wait: 0.0,
            ipis: 0.0,
            interrupts: 0.0,
        }
    }

    /// One round of the fixed point; returns the relative change of the rate.
    fn round(&mut self) -> f64 {
        let (machine, values, customers) =
            (&self.scenario.machine, self.values, self.load.instances);
        let unit = self.unit();
        let contention = contention(values);
        for (slow, others) in self.slow.iter_mut().zip(&self.siblings) {
            let busiest = others.iter().map(|&cpu| self.cpus[cpu].busy()).fold(0.0, f64::max);
            *slow = 1.0 + contention * busiest;
        }
        for ((room, cpu), may_read) in self.room.iter_mut().zip(&self.cpus).zip(&self.may_read) {
            *room = if *may_read { (1.0 - cpu.softirq.busy).max(LEAST_ROOM) } else { 0.0 };
        }
        let all_room: f64 = self.room.iter().sum();
        let (mut reader_idle, mut reader_slow) = (0.0, 0.0);
        for ((cpu, slow), room) in self.cpus.iter().zip(&self.slow).zip(&self.room) {
            reader_idle += room / all_room * (1.0 - cpu.busy());
            reader_slow += room / all_room * slow;
        }
        self.near = self.near_share();
        let ipis = self.wakeup_ipis(reader_idle);
        let softirq_ipis = self.demands(unit, ipis);
        let base = self.task_cycles(ipis) + reader_idle * values.idle_switch;
        let task = (base * unit + self.work()) * reader_slow;
        self.task = task;
        let servers = (all_room * values.balance).max(0.05);

        let mut time = self.delay();
        for cpu in &mut self.cpus {
            cpu.residence = cpu.softirq.residence(cpu.demand, 1.0, customers);
            time += cpu.residence;
        }
        // A station of less than one server's speed is one slower server.
        let task_demand = task / servers.min(1.0);
        let reading = self.readers.residence(task_demand, servers, customers);
        let client_demand = self.client_demand(unit);
        let client_cpus = machine.cpu_count() as f64 * values.balance;
        let asking = self.client.residence(client_demand, client_cpus, customers);
        let link_time = self.transaction.packets * self.transaction.frame_time;
        let link = self.link.residence_of_constant(link_time, customers);
        time += reading + asking + 2.0 * link;

        let new = customers / time;
        let change = (new - self.rate) / new;
        // Where two stations depend on each other the rate may swing: then smaller steps.
        self.step = if change * self.change < 0.0 {
            (self.step * 0.6).max(LEAST_STEP)
        } else {
            (self.step * 1.1).min(0.5)
        };
        self.change = change;
        let step = self.step;
        self.rate += step * (new - self.rate);
        let rate = self.rate;
        self.latency = time;
        for (cpu, room) in self.cpus.iter_mut().zip(&self.room) {
            cpu.softirq.update(rate, cpu.demand, 1.0, cpu.residence, step);
            cpu.task += step * ((rate * task * room / all_room).min(*room) - cpu.task);
        }
        self.readers.update(rate, task_demand, servers, reading, step);
        self.client.update(rate, client_demand, client_cpus, asking, step);
        self.link.update(rate, link_time, 1.0, link, step);
        self.ipis = rate * (ipis + softirq_ipis);
        change.abs()
    }

    /// Share of the requests that are read on the core that runs their protocol: RFS sees to that.
    /// Else `select_idle_sibling` of old kernels searches the core first that wakes the reader
    /// (`kernel/sched_fair.c`); kernels from 4.8 on search an idle core. Where no CPU that shares
    /// the cache is idle, the reader stays.
    fn near_share(&self) -> f64 {
        if self.transaction.steers {
            return 1.0;
        }
        if self.scenario.machine.kernel == Kernel::Recent {
            return 0.0;
        }
        let of_core = |cpu: usize, of: &dyn Fn(usize) -> f64| {
            of(cpu) + self.siblings[cpu].iter().map(|other| of(*other)).sum::<f64>()
        };
        let (mut idle, mut busy, mut readers) = (0.0, 0.0, 0.0);
        for (cpu, share) in self.shares.protocol.iter().enumerate().filter(|(_, it)| **it > 0.0) {
            let room = of_core(cpu, &|cpu| self.room[cpu]);
            let wanted = self.rate * self.task * of_core(cpu, &|cpu| self.shares.protocol[cpu]);
            idle += share * room / (room + wanted).max(f64::MIN_POSITIVE);
        }
        for (cpu, may_read) in self.cpus.iter().zip(&self.may_read) {
            busy += if *may_read { cpu.busy() } else { 0.0 };
            readers += f64::from(u8::from(*may_read));
        }
        idle + (1.0 - idle) * (busy / readers.max(1.0)).powi(SHARE_CACHE)
    }

    /// Cycles of a reader and of the protocol, each, for lines that the other wrote.
    fn lines(&self) -> f64 {
        (1.0 - self.near) * self.transaction.lines()
    }

    /// Inter-processor interrupts of wakeups for each transaction: a sleeping CPU elsewhere needs
    /// one.
    fn wakeup_ipis(&self, reader_idle: f64) -> f64 {
        if self.transaction.steers { 0.0 } else { reader_idle }
    }

    /// Sets each CPU's softirq time for one transaction; returns RPS's inter-processor interrupts
    /// for each.
    fn demands(&mut self, unit: f64, wakeup_ipis: f64) -> f64 {
        let (values, packets) = (self.values, self.transaction.packets);
        let steering = self.steering();
        let (mut ipis, mut interrupts) = (0.0, 0.0);
        (self.ipis_alone, self.burst_wait) = (0.0, 0.0);
        for (index, cpu) in self.cpus.iter_mut().enumerate() {
            let (poll, completion) = (self.shares.poll[index], self.shares.completion[index]);
            let frames = packets * (poll + completion);
            let held = self.rate * frames * self.scenario.nic.coalesce_us * 1e-6;
            let held = held.min(self.scenario.nic.coalesce_frames);
            cpu.batch = (1.0 + cpu.softirq.queue * packets + held).min(BUDGET);
            let interrupt = frames * (1.0 - cpu.softirq.busy) / cpu.batch;
            interrupts += interrupt;
            cpu.demand = interrupt * values.interrupt
                + completion * packets * self.transaction.completion()
                + poll * self.transaction.poll()
                + self.shares.far_of(index) * values.far_buffer * values.far_buffer_poll;
            if let Some(steering) = &steering
                && poll > 0.0
            {
                let clumped =
                    ipis_per_packet(self.setting.rps.len(), self.targets[index], cpu.batch);
                let per_packet = steering.unscheduled * clumped;
                ipis += poll * packets * per_packet;
                self.ipis_alone += poll * packets * steering.alone * clumped;
                cpu.demand += poll * packets * (values.rps_enqueue + per_packet * steering.send);
                let behind = (cpu.batch - packets).max(0.0) / 2.0;
                self.burst_wait += behind / packets * cpu.demand * unit * self.slow[index];
            }
        }
        let protocol = self.protocol_cycles(wakeup_ipis, ipis);
        for ((cpu, share), slow) in self.cpus.iter_mut().zip(&self.shares.protocol).zip(&self.slow)
        {
            cpu.demand = (cpu.demand + share * protocol) * unit * slow;
        }
        self.interrupts = self.rate * interrupts;
        ipis
    }

    /// What RPS's interrupts find and cost now; `None` without RPS.
    fn steering(&self) -> Option<Steering> {
        let targets = &self.setting.rps;
        if targets.is_empty() {
            return None;
        }
        let mean = |of: &dyn Fn(&CpuState) -> f64| {
            targets.iter().map(|cpu| of(&self.cpus[*cpu])).sum::<f64>() / targets.len() as f64
        };
        let alone = mean(&|cpu| 1.0 - cpu.softirq.busy);
        // A backlog is scheduled from its first packet on; the interrupt leaves at the end of
        // `net_rx_action`. Packets that other CPUs put there meanwhile need none.
        let pollers = self.shares.poll.iter().filter(|share| **share > 0.0).count() as f64;
        let under_way = self.rate * self.ipis_alone / targets.len() as f64
            * self.burst_wait
            * (1.0 - 1.0 / pollers.max(1.0));
        let unscheduled = alone / (1.0 + under_way);
        // A CPU that needs an interrupt is in no softirq, so it sleeps more often than CPUs do.
        let asleep = mean(&|cpu| 1.0 - cpu.busy()) / alone.max(LEAST_ROOM);
        let ipi = self.values.ipi_factor(&self.scenario.machine);
        let send = ipi * (self.values.ipi_send + asleep.min(1.0) * self.values.ipi_sleeper);
        Some(Steering { send, unscheduled, alone })
    }

    /// Cycles of the protocol for one transaction, where it runs.
    fn protocol_cycles(&self, wakeup_ipis: f64, rps_ipis: f64) -> f64 {
        let values = self.values;
        let ipi = values.ipi_factor(&self.scenario.machine);
        let mut cycles = self.transaction.packets * self.transaction.input()
            + self.lines()
            + values.wakeup
            + wakeup_ipis * ipi * values.reschedule
            + self.shares.far() * values.far_buffer * (1.0 - values.far_buffer_poll);
        if !self.setting.rps.is_empty() {
            cycles +=
                self.transaction.packets * values.backlog + rps_ipis * ipi * values.ipi_receive;
        }
        cycles
    }

    /// Seconds of one cycle of the parameters.
    fn unit(&self) -> f64 {
        self.values.ns_per_cycle(&self.scenario.machine) * 1e-9
    }

    /// What the server itself does for a request (s).
    fn work(&self) -> f64 {
        self.load.work_us * 1e-6
    }

    /// Cycles of a reader for one transaction.
    fn task_cycles(&self, wakeup_ipis: f64) -> f64 {
        let values = self.values;
        let ipi = wakeup_ipis * values.ipi_factor(&self.scenario.machine) * values.ipi_receive;
        self.transaction.reader() + self.lines() + ipi
    }

    /// CPU time of the client for one transaction, which is spread over all of its CPUs.
    fn client_demand(&self, unit: f64) -> f64 {
        let contention = client_contention(self.values, &self.siblings);
        unit * (1.0 + contention * self.client.busy) * self.transaction.client()
    }

    /// Time of a transaction in which no server works for it (s).
    fn delay(&self) -> f64 {
        let (values, nic) = (self.values, &self.scenario.nic);
        let at_poll: f64 = (self.cpus.iter().zip(&self.shares.poll))
            .map(|(cpu, share)| share * (1.0 - cpu.busy()))
            .sum();
        let at_protocol: f64 = (self.cpus.iter().zip(&self.shares.protocol))
            .map(|(cpu, share)| share * (1.0 - cpu.busy()))
            .sum();
        let polled = self.shares.poll.iter().filter(|share| **share > 0.0).count() as f64;
        let frames = self.rate * self.transaction.packets / polled.max(1.0);
        let held = nic.coalesce_us.min(nic.coalesce_frames / frames.max(1.0) * 1e6) * at_poll;
        let client_idle = 1.0 - self.client.busy;
        // The CPUs that poll here and there, those of the backlogs, and the readers' and clients',
        // unless the protocol runs where the reader does.
        let backlog = if self.setting.rps.is_empty() { 0.0 } else { at_protocol };
        let reader = if self.transaction.steers { 0.0 } else { at_protocol };
        let wakes = at_poll + backlog + reader + 2.0 * client_idle;
        let behind = self.steering().map_or(0.0, |it| it.unscheduled * self.burst_wait);
        let away = values.round_trip + held + nic.coalesce_us * client_idle;
        (away + wakes * values.idle_exit) * 1e-6 + behind
    }

    /// Where the rounds end before the fixed point the rate may be above the link's.
    fn keep_to_the_link(&mut self) {
        let most = 1.0 / (self.transaction.packets * self.transaction.frame_time);
        if self.rate > most {
            self.rate = most;
            self.latency = self.load.instances / most;
        }
    }

    fn prediction(&self) -> Prediction {
        let (unit, work) = (self.unit(), self.work());
        let user = (self.values.user * unit + work) / (self.task_cycles(0.0) * unit + work);
        let visible = |index: usize, cpu: &CpuState| {
            let clump = if self.setting.rps.is_empty() {
                1.0
            } else {
                let polling =
                    self.shares.poll.iter().zip(&self.cpus).map(|(share, cpu)| share * cpu.batch);
                (polling.sum::<f64>() / self.setting.rps.len() as f64).max(1.0)
            };
            let polls = self.shares.poll[index] + self.shares.completion[index];
            let exponent = if polls > 0.0 { 1.0 } else { 1.0 + clump.ln() };
            cpu.busy().powf(exponent)
        };
        let cpus = (self.cpus.iter().enumerate())
            .map(|(index, cpu)| CpuTime {
                usr: cpu.task * user,
                sys: cpu.task * (1.0 - user),
                softirq: cpu.softirq.busy,
                booked_softirq: cpu.softirq.busy * visible(index, cpu),
            })
            .collect();
        Prediction {
            rate: self.rate,
            latency_us: Some(self.latency * 1e6),
            cpus,
            ipis: Some(self.ipis),
            interrupts: Some(self.interrupts),
            bottleneck: self.bottleneck(),
        }
    }

    fn bottleneck(&self) -> Bottleneck {
        let softirqs = self.cpus.iter().map(|cpu| cpu.softirq.busy);
        Bottleneck::fullest(softirqs, self.link.busy, self.readers.busy, self.client.busy)
    }
}

/// Inter-processor interrupts that RPS sends for one packet of a batch, if it may put packets on
/// `targets` CPUs, `others` of them other ones: one to each that gets any (`net_rps_send_ipi` at
/// the end of `net_rx_action`).
pub(crate) fn ipis_per_packet(targets: usize, others: f64, batch: f64) -> f64 {
    if others == 0.0 {
        return 0.0;
    }
    let empty = (1.0 - 1.0 / targets as f64).powf(batch);
    others * (1.0 - empty) / batch
}
