//! What a scenario's load gets: the rate at which its demands, which depend on how busy each CPU
//! is, fit the machine.
//!
//! An offered load gets what fits until something is full. A closed one, of instances with one
//! request under way each, is a network of the link, the softirq work of each CPU, the threads on
//! what remains of the CPUs, and the client: the rate follows from the time that a transaction
//! takes, and the time from how busy each of them is. Both are one fixed point.

use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::topology::Distance;

use crate::demands::{Amount, Demands};
use crate::layout::{Layout, Polled};
use crate::limit::FULL;
use crate::limit::{Limit, Used, fullest};
use crate::loads::{Cpus, Loads, Route, Steps};
use crate::placement::MOST_BATCH;
use crate::prediction::{CpuTime, Prediction};
use crate::scenario::{Kernel, Scenario};
use crate::station::Station;

/// Rounds of the fixed point at most.
const ROUNDS: usize = 400;

/// Share of a CPU's time that threads get from its softirqs at least: ksoftirqd is a thread like
/// them, so they are never locked out.
const LEAST_ROOM: f64 = 1e-4;

/// Smallest share of the way that a round goes.
const LEAST_STEP: f64 = 0.02;

/// CPUs that share a cache, where a woken reader's CPU is searched.
const SHARE_CACHE: i32 = 8;

/// Relative change at which the fixed point is found: the fit takes derivatives.
const PRECISION: f64 = 1e-9;

/// Packets that one `net_rx_action` handles at most (`net.core.netdev_budget`).
const BUDGET: f64 = 300.0;

/// Returns what `demands` get.
pub(crate) fn solve(scenario: &Scenario, demands: Demands) -> Prediction {
    let mut network = Network::new(scenario, demands);
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
    /// Share of its time that threads take.
    task: f64,
    /// The same that softirqs leave to threads.
    room: f64,
    /// Packets that one `net_rx_action` handles; 0 where nothing polls.
    batch: f64,
    /// Whether threads may run here.
    may_run: bool,
    /// How busy the busiest other CPU of its core is.
    sibling: f64,
}

impl CpuState {
    fn busy(&self) -> f64 {
        (self.softirq.busy + self.task).min(1.0)
    }
}

/// The change that is further from 0.
fn greater(a: f64, b: f64) -> f64 {
    if b.abs() > a.abs() { b } else { a }
}

/// What a unit takes in one round.
struct Taken {
    loads: Loads,
    /// CPU time of its thread (s).
    task: f64,
    /// Interrupts of the NIC, and inter-processor interrupts.
    interrupts: f64,
    ipis: f64,
    /// Mean time until RPS's interrupts leave, after a packet was polled (s).
    burst_wait: f64,
}

struct Network<'a> {
    scenario: &'a Scenario,
    demands: Demands,
    layout: Layout,
    cpus: Vec<CpuState>,
    link: Station,
    threads: Station,
    client: Station,
    rate: f64,
    limit: Limit,
    /// Relative change of the rate in the last round.
    change: f64,
    /// Share of the way to its result that a round goes.
    step: f64,
    most_step: f64,
    latency: f64,
    ipis: f64,
    interrupts: f64,
    burst_wait: f64,
    /// CPU time of a thread for one unit (s).
    task: f64,
}

impl<'a> Network<'a> {
    fn new(scenario: &'a Scenario, demands: Demands) -> Self {
        let cpus = scenario.machine.cpu_count();
        let may = &demands.tasks.cpus;
        let rate = match demands.amount {
            Amount::UnderWay { instances, .. } => {
                instances / (demands.prices.values.round_trip * 1e-6)
            }
            Amount::Offered(rate) => rate.min(1.0 / demands.link),
        };
        let state = |cpu| CpuState {
            may_run: may.is_empty() || may.contains(CpuId(cpu as u32)),
            room: 1.0,
            ..CpuState::default()
        };
        Self {
            layout: Layout::new(&scenario.machine.cores, &demands),
            cpus: (0..cpus).map(state).collect(),
            scenario,
            demands,
            link: Station::default(),
            threads: Station::default(),
            client: Station::default(),
            rate,
            limit: Limit::Load,
            change: 0.0,
            step: 0.5,
            most_step: 0.5,
            latency: 0.0,
            ipis: 0.0,
            interrupts: 0.0,
            burst_wait: 0.0,
            task: 0.0,
        }
    }

    /// One round of the fixed point; returns the greatest relative change.
    fn round(&mut self) -> f64 {
        for at in 0..self.cpus.len() {
            let others = self.layout.siblings[at].iter().map(|other| self.cpus[*other].busy());
            let (sibling, cpu) = (others.fold(0.0, f64::max), &mut self.cpus[at]);
            let room = (1.0 - cpu.softirq.busy).max(LEAST_ROOM);
            (cpu.sibling, cpu.room) = (sibling, if cpu.may_run { room } else { 0.0 });
        }
        let room: f64 = self.cpus.iter().map(|cpu| cpu.room).sum();
        let taken = self.take(room);
        let change = match self.demands.amount {
            Amount::UnderWay { instances, client } => self.closed(&taken, room, instances, client),
            Amount::Offered(rate) => self.open(&taken, room, rate),
        };
        (self.task, self.burst_wait) = (taken.task, taken.burst_wait);
        (self.ipis, self.interrupts) = (self.rate * taken.ipis, self.rate * taken.interrupts);
        change
    }

    /// Goes a part of the way to a new rate, and returns the greater relative change: the rate's or
    /// the other one.
    fn go_to(&mut self, new: f64, other: f64) -> f64 {
        let change = greater((new - self.rate) / new, other);
        if change * self.change < 0.0 {
            // The change of direction is an oscillation: take smaller steps from here on.
            self.most_step = (self.most_step * 0.95).max(LEAST_STEP);
            self.step = (self.step * 0.6).max(LEAST_STEP);
        } else {
            self.step = (self.step * 1.1).min(self.most_step);
        }
        self.change = change;
        self.rate += self.step * (new - self.rate);
        change.abs()
    }

    /// A load that is offered gets what fits.
    fn open(&mut self, taken: &Taken, room: f64, offered: f64) -> f64 {
        let (rate, demands) = (self.rate, &self.demands);
        let threads = demands.tasks.threads.unwrap_or(f64::INFINITY).min(self.cpus.len() as f64);
        let balanced = (room * demands.tasks.balance).max(0.05);
        let others = [
            (rate * taken.task / balanced, self.threads_limit()),
            (rate * demands.link, Limit::Link(String::new())),
            (rate * demands.bus, Limit::Bus),
            (rate * taken.task / threads, Limit::Threads),
        ];
        let times: Vec<CpuTime> = (self.cpus.iter().zip(0..))
            .map(|(cpu, at)| CpuTime {
                sys: rate * taken.task * cpu.room / room,
                softirq: rate * taken.loads.on(CpuId(at)).softirq,
                ..CpuTime::default()
            })
            .collect();
        let (full, limit) = self.fullest(&times, others.into_iter());
        self.limit = if full < FULL { Limit::Load } else { limit };
        let new = (rate / full.max(f64::MIN_POSITIVE)).min(offered);
        let busier = |(cpu, it): (&CpuState, &CpuTime)| it.softirq.min(1.0) - cpu.softirq.busy;
        let busier = self.cpus.iter().zip(&times).map(busier).fold(0.0, greater);
        let change = self.go_to(new, busier);
        let step = self.step;
        for ((cpu, time), at) in self.cpus.iter_mut().zip(times).zip(0..) {
            let demand = taken.loads.on(CpuId(at)).softirq;
            let wait = demand / (1.0 - cpu.softirq.busy).max(1.0 / MOST_BATCH);
            cpu.softirq.update(self.rate, demand, 1.0, wait, step);
            cpu.task = time.sys.min(cpu.room);
        }
        change
    }

    /// What limits the threads that are ready to run.
    fn threads_limit(&self) -> Limit {
        let cpus = &self.demands.tasks.cpus;
        if cpus.is_empty() { Limit::Cpus } else { Limit::Pinned(cpus.clone()) }
    }

    /// What is fullest, of the CPUs and of other resources.
    fn fullest(
        &self,
        times: &[CpuTime],
        others: impl Iterator<Item = (f64, Limit)>,
    ) -> (f64, Limit) {
        let used = |(time, cpu): (&CpuTime, u32)| Used {
            cpu: CpuId(cpu),
            tasks: time.usr + time.sys,
            softirq: time.softirq,
            room: 1.0,
            stays: 0.0,
        };
        fullest(times.iter().zip(0..).map(used), &[], others)
    }

    /// Of a closed load each unit takes its time.
    fn closed(&mut self, taken: &Taken, room: f64, customers: f64, client: f64) -> f64 {
        let values = &self.demands.prices.values;
        let servers = (room * self.demands.tasks.balance).max(0.05);
        let mut time = self.delay();
        let residences: Vec<f64> = (self.cpus.iter().enumerate())
            .map(|(at, cpu)| {
                let demand = taken.loads.on(CpuId(at as u32)).softirq;
                cpu.softirq.residence(demand, 1.0, customers)
            })
            .collect();
        time += residences.iter().sum::<f64>();
        // A station of less than one server's speed is one slower server.
        let task_demand = taken.task / servers.min(1.0);
        let reading = self.threads.residence(task_demand, servers, customers);
        let has_threads = self.layout.siblings.iter().any(|others| !others.is_empty());
        let slow =
            self.demands.prices.slow(if has_threads { self.client.busy.min(1.0) } else { 0.0 });
        let client_demand = slow * client * 1e-9;
        let client_cpus = self.cpus.len() as f64 * values.balance;
        let asking = self.client.residence(client_demand, client_cpus, customers);
        let link = self.link.residence_of_constant(self.demands.link, customers);
        time += reading + asking + 2.0 * link;

        let change = self.go_to(customers / time, 0.0);
        let (rate, step) = (self.rate, self.step);
        self.latency = time;
        for ((at, cpu), residence) in self.cpus.iter_mut().enumerate().zip(residences) {
            let demand = taken.loads.on(CpuId(at as u32)).softirq;
            cpu.softirq.update(rate, demand, 1.0, residence, step);
            cpu.task += step * ((rate * taken.task * cpu.room / room).min(cpu.room) - cpu.task);
        }
        self.threads.update(rate, task_demand, servers, reading, step);
        self.client.update(rate, client_demand, client_cpus, asking, step);
        self.link.update(rate, self.demands.link, 1.0, link, step);
        change
    }

    /// What a unit takes now.
    fn take(&mut self, room: f64) -> Taken {
        let (mut idle, mut slow) = (0.0, 0.0);
        for (at, cpu) in self.cpus.iter().enumerate() {
            idle += cpu.room / room * (1.0 - cpu.busy());
            let slower = self.demands.prices.slow(self.sibling_busy(CpuId(at as u32)).min(1.0));
            slow += cpu.room / room * slower;
        }
        self.gather();
        let (prices, tasks) = (&self.demands.prices, &self.demands.tasks);
        let (mut task, mut protocol, mut wakeups) = (tasks.sys + tasks.user, 0.0, 0.0);
        if tasks.sleep {
            let lines = (1.0 - self.near_share()) * tasks.lines;
            wakeups = if tasks.are_steered_to { 0.0 } else { idle };
            task +=
                lines + prices.ns(idle * prices.values.idle_switch) + wakeups * prices.receive();
            protocol = lines + wakeups * prices.reschedule(Distance::Node).0;
        }
        let mut taken = Taken {
            loads: Loads::default(),
            task: task * slow / 1e9,
            interrupts: 0.0,
            ipis: wakeups,
            burst_wait: 0.0,
        };
        for Polled { parts, placed, packets, .. } in &self.layout.polled {
            let mut parts = *parts;
            if parts.protocol > 0.0 {
                parts.protocol += protocol / self.demands.packets;
            }
            let (packets, batch) = (*packets, placed.batch);
            let route = &Route::new(&*self, placed);
            let steps = Steps { route, prices, batch, packets, is_backlog: false };
            let before = taken.loads.path.poll;
            steps.add(&mut taken.loads, parts);
            if placed.protocol.is_some() {
                let behind = (placed.batch - self.demands.packets).max(0.0) / 2.0;
                let poll = taken.loads.path.poll - before;
                taken.burst_wait += behind / self.demands.packets * poll;
            }
            taken.interrupts += packets * placed.begun / placed.batch;
        }
        self.layout.polled.iter().for_each(|it| taken.loads.level(&it.cpus));
        taken.ipis += taken.loads.ipis;
        taken
    }

    /// Computes how many packets each poll finds (packets that queue here or that the NIC delays),
    /// and which polls begin with an interrupt. A poll that begins while another runs does not.
    fn gather(&mut self) {
        let mut frames = vec![0.0; self.cpus.len()];
        for Polled { cpus, packets, .. } in &self.layout.polled {
            cpus.iter().for_each(|cpu| frames[*cpu] += packets / cpus.len() as f64);
        }
        let most_held = self.scenario.nic.coalesce_frames;
        for (cpu, frames) in self.cpus.iter_mut().zip(frames).filter(|(_, frames)| *frames > 0.0) {
            let held = self.rate * frames * self.demands.coalesce_us * 1e-6;
            let queued = cpu.softirq.queue * self.demands.packets;
            cpu.batch = (1.0 + queued + held.min(most_held)).min(BUDGET);
        }
        for Polled { cpus, placed, .. } in &mut self.layout.polled {
            placed.batch = self.cpus[cpus[0]].batch;
            placed.begun = 1.0 - self.cpus[cpus[0]].softirq.busy;
        }
    }

    /// Share of the requests that are read on the core that runs their protocol: RFS sees to that.
    /// Else `select_idle_sibling` of old kernels searches the core first that wakes the reader
    /// (`kernel/sched_fair.c`); kernels from 4.8 on search an idle core. Where no CPU that shares
    /// the cache is idle, the reader stays.
    fn near_share(&self) -> f64 {
        if self.demands.tasks.are_steered_to {
            return 1.0;
        }
        if self.scenario.machine.kernel == Kernel::Recent {
            return 0.0;
        }
        let of_core = |cpu: usize, of: &dyn Fn(usize) -> f64| {
            of(cpu) + self.layout.siblings[cpu].iter().map(|other| of(*other)).sum::<f64>()
        };
        let (mut idle, mut busy, mut readers) = (0.0, 0.0, 0.0);
        for (cpu, share) in self.layout.processes.iter().enumerate().filter(|(_, it)| **it > 0.0) {
            let room = of_core(cpu, &|cpu| self.cpus[cpu].room);
            let wanted = self.rate * self.task * of_core(cpu, &|cpu| self.layout.processes[cpu]);
            idle += share * room / (room + wanted).max(f64::MIN_POSITIVE);
        }
        for cpu in self.cpus.iter().filter(|cpu| cpu.may_run) {
            busy += cpu.busy();
            readers += 1.0;
        }
        idle + (1.0 - idle) * (busy / f64::max(readers, 1.0)).powi(SHARE_CACHE)
    }

    /// Time of a transaction in which no server works for it (s).
    fn delay(&self) -> f64 {
        let (values, nic) = (&self.demands.prices.values, &self.scenario.nic);
        let idle_of = |shares: &[f64]| -> f64 {
            self.cpus.iter().zip(shares).map(|(cpu, share)| share * (1.0 - cpu.busy())).sum()
        };
        let (at_poll, at_protocol) = (idle_of(&self.layout.polls), idle_of(&self.layout.processes));
        let polled = self.layout.polls.iter().filter(|share| **share > 0.0).count() as f64;
        let frames = self.rate * self.demands.packets / polled.max(1.0);
        let held = nic.coalesce_us.min(nic.coalesce_frames / frames.max(1.0) * 1e6) * at_poll;
        // The CPUs that poll here and there, those of the backlogs, and the readers' and clients',
        // unless the protocol runs where the reader does.
        let has_rps = !self.layout.targets.is_empty();
        let backlog = if has_rps { at_protocol } else { 0.0 };
        let reader = if self.demands.tasks.are_steered_to { 0.0 } else { at_protocol };
        let wakes = at_poll + backlog + reader + 2.0 * (1.0 - self.client.busy);
        // Of RPS's interrupts, those to backlogs that are not scheduled.
        let unscheduled = self.layout.targets.iter().map(|cpu| 1.0 - self.cpus[*cpu].softirq.busy);
        let behind = self.burst_wait * unscheduled.sum::<f64>()
            / f64::max(self.layout.targets.len() as f64, 1.0);
        let away = values.round_trip + held + nic.client_coalesce_us * (1.0 - self.client.busy);
        (away + wakes * values.idle_exit) * 1e-6 + behind
    }

    /// Where the rounds end before the fixed point the rate may be above the link's.
    fn keep_to_the_link(&mut self) {
        let most = 1.0 / self.demands.link;
        if self.rate > most {
            self.latency *= self.rate / most;
            self.rate = most;
        }
    }

    fn prediction(&self) -> Prediction {
        let tasks = &self.demands.tasks;
        let lines = (1.0 - self.near_share()) * tasks.lines;
        let user = tasks.user / (tasks.sys + tasks.user + lines).max(f64::MIN_POSITIVE);
        let targets = self.layout.targets.len() as f64;
        let polling =
            self.layout.polls.iter().zip(&self.cpus).map(|(share, cpu)| share * cpu.batch);
        let clump = (polling.sum::<f64>() / targets).max(1.0);
        let visible = |cpu: &CpuState| {
            let has_vector = cpu.batch > 0.0;
            let spread = if targets == 0.0 || has_vector { 0.0 } else { clump.ln() };
            // Without threads the figure is what was not idle.
            if tasks.sys == 0.0 { 1.0 } else { cpu.busy().powf(1.0 + spread) }
        };
        let cpus = self.cpus.iter().map(|cpu| CpuTime {
            usr: cpu.task * user,
            sys: cpu.task * (1.0 - user),
            softirq: cpu.softirq.busy,
            booked_softirq: cpu.softirq.busy * visible(cpu),
        });
        let cpus: Vec<CpuTime> = cpus.collect();
        let (limit, latency_us) = match self.demands.amount {
            Amount::Offered(_) => (self.limit.clone(), None),
            Amount::UnderWay { .. } => {
                let others = [
                    (self.link.busy, Limit::Link(String::new())),
                    (self.threads.busy, self.threads_limit()),
                    (self.client.busy, Limit::Client),
                    (FULL, Limit::Load),
                ];
                let limit = self.fullest(&cpus, others.into_iter()).1;
                (limit, Some(self.latency * 1e6))
            }
        };
        let has_packets = !self.layout.polled.is_empty();
        Prediction {
            rate: self.rate,
            latency_us,
            ipis: has_packets.then_some(self.ipis),
            interrupts: has_packets.then_some(self.interrupts),
            limit,
            cpus,
        }
    }
}

impl Cpus for Network<'_> {
    fn softirq(&self, cpu: CpuId) -> f64 {
        self.cpus[cpu.0 as usize].softirq.busy
    }

    /// A CPU that needs an interrupt is in no softirq, so it sleeps more often than CPUs do.
    fn idle(&self, cpu: CpuId) -> f64 {
        let cpu = &self.cpus[cpu.0 as usize];
        ((1.0 - cpu.busy()) / (1.0 - cpu.softirq.busy).max(LEAST_ROOM)).min(1.0)
    }

    fn sibling_busy(&self, cpu: CpuId) -> f64 {
        self.cpus[cpu.0 as usize].sibling
    }

    /// Not known.
    fn distance(&self, _: CpuId, _: CpuId) -> Distance {
        Distance::Node
    }

    /// All CPUs of a model are alike.
    fn slowdown(&self, _: CpuId) -> f64 {
        1.0
    }
}
