//! The machine: its CPUs and vectors, and what each event does to them. Softirqs and threads of a
//! CPU have files of their own.

use fastrand::Rng;

use crate::parameters::Values;
use crate::prediction::CpuTime;
use crate::scenario::{Scenario, Setting};
use crate::shares::irq_cpu;
use crate::simulate::costs::{Costs, Work};
use crate::simulate::cpu::{Cause, Cpu, Job, Napi, Piece, Thread};
use crate::simulate::events::{Events, Time, time};
use crate::simulate::scheduler::Domain;
use crate::simulate::timeline::Collector;
use crate::simulate::vector::{Packet, Signal, Vector};

/// A packet's or a reader's work is this share more or less than its mean, evenly distributed:
/// caches and branches differ each time.
const VARIATION: f64 = 0.5;

/// Something that happens at a time.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Event {
    /// A CPU ends the piece of work with this number.
    Done { cpu: u32, number: u32 },
    /// A vector's coalescing time is over.
    Timer { queue: u32, timer: u32 },
    /// Frames have left by a queue.
    Sent { queue: u32, frames: u32 },
    /// A frame of a request arrives; so many are left with it.
    Frame { flow: u32, left: u32 },
    /// The client of an instance sends a request.
    Ask { flow: u32 },
    /// A packet to forward arrives.
    Arrive { port: u32 },
}

/// What happened so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Packets that arrived, and packets that reached the end of their way.
    pub(crate) arrived: u64,
    pub(crate) handled: u64,
    /// Packets that found a ring, a backlog or a port's queue full.
    pub(crate) lost: u64,
    pub(crate) ipis: u64,
    pub(crate) interrupts: u64,
}

/// The machine with its load.
pub(crate) struct Host {
    pub(crate) now: Time,
    pub(crate) events: Events<Event>,
    pub(crate) cpus: Vec<Cpu>,
    pub(crate) vectors: Vec<Vector>,
    pub(crate) work: Work,
    pub(crate) counts: Counts,
    pub(crate) collector: Collector,
    pub(super) domain: Domain,
    pub(super) costs: Costs,
    pub(super) rng: Rng,
}

impl Host {
    pub(crate) fn new(
        scenario: &Scenario,
        setting: &Setting,
        values: &Values,
        (work, domain, collector): (Work, Domain, Collector),
        rng: Rng,
    ) -> Self {
        let costs = Costs::new(scenario, values, &work);
        let vector = |queue| Vector::new(irq_cpu(setting, queue));
        Self {
            now: 0,
            events: Events::new(),
            cpus: (0..scenario.machine.cpu_count()).map(|_| Cpu::new()).collect(),
            vectors: (0..costs.completion.len()).map(vector).collect(),
            work,
            counts: Counts::default(),
            collector,
            domain,
            costs,
            rng,
        }
    }

    /// Schedules the first request of each instance within `spread` (s), or the first packets.
    pub(crate) fn begin(&mut self, spread: f64) {
        let first: Vec<(Time, Event)> = match &self.work {
            Work::RequestResponse(instances) => (0..instances.list.len() as u32)
                .map(|flow| (time(spread * self.rng.f64()), Event::Ask { flow }))
                .collect(),
            Work::Forward(ports) => (0..2)
                .filter_map(|port| {
                    let at = ports.next(port, 0, &mut self.rng)?;
                    Some((at, Event::Arrive { port }))
                })
                .collect(),
        };
        for (at, event) in first {
            self.events.at(at, event);
        }
    }

    /// Runs until `end`.
    pub(crate) fn run(&mut self, end: Time) {
        while let Some((at, event)) = self.events.next_before(end) {
            self.now = at;
            self.handle(event);
        }
        self.now = end;
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Done { cpu, number } => {
                if self.cpus[cpu as usize].number == number {
                    self.done(cpu as usize);
                }
            }
            Event::Timer { queue, timer } => {
                if self.vectors[queue as usize].time_out(timer) {
                    self.interrupt_by(queue as usize);
                }
            }
            Event::Sent { queue, frames } => {
                let most = self.costs.coalesce_frames;
                let signal = self.vectors[queue as usize].send(frames, most);
                self.signal(queue as usize, signal);
            }
            Event::Frame { flow, left } => self.frame(flow, left),
            Event::Ask { flow } => self.ask(flow),
            Event::Arrive { port } => self.arrive(port),
        }
    }

    fn ask(&mut self, flow: u32) {
        let Work::RequestResponse(instances) = &mut self.work else { return };
        let arrives = instances.ask(flow, self.now);
        self.events.at(arrives, Event::Frame { flow, left: instances.packets });
        self.collector.complete(self.now);
    }

    fn frame(&mut self, flow: u32, left: u32) {
        let Work::RequestResponse(instances) = &mut self.work else { return };
        if left > 1 {
            let next = self.now + instances.frame();
            self.events.at(next, Event::Frame { flow, left: left - 1 });
        }
        let queue = instances.list[flow as usize].rx;
        self.receive(queue, flow);
    }

    fn arrive(&mut self, port: u32) {
        let Work::Forward(ports) = &mut self.work else { return };
        if let Some(next) = ports.next(port, self.now, &mut self.rng) {
            self.events.at(next, Event::Arrive { port });
        }
        self.receive(port as usize, port);
    }

    fn receive(&mut self, queue: usize, flow: u32) {
        self.counts.arrived += 1;
        let packet = Packet { flow, at: self.now };
        match self.vectors[queue].receive(packet, self.costs.coalesce_frames) {
            Some(signal) => self.signal(queue, signal),
            None => self.lose(packet),
        }
    }

    pub(super) fn lose(&mut self, packet: Packet) {
        self.counts.lost += 1;
        if let Work::RequestResponse(instances) = &mut self.work {
            let again = instances.retry(self.now);
            self.events.at(again, Event::Frame { flow: packet.flow, left: 1 });
        }
    }

    fn signal(&mut self, queue: usize, signal: Signal) {
        match signal {
            Signal::Nothing => {}
            Signal::Timer(timer) => {
                let at = self.now + self.costs.coalesce;
                self.events.at(at, Event::Timer { queue: queue as u32, timer });
            }
            Signal::Interrupt => self.interrupt_by(queue),
        }
    }

    fn interrupt_by(&mut self, queue: usize) {
        self.counts.interrupts += 1;
        self.interrupt(self.vectors[queue].cpu, Cause::Queue(queue));
    }

    /// Interrupts a CPU. One that works for softirqs takes it after its present packet.
    pub(super) fn interrupt(&mut self, cpu: usize, cause: Cause) {
        self.cpus[cpu].causes.push_back(cause);
        match self.cpus[cpu].piece {
            Piece::Idle => self.wake_up(cpu),
            Piece::Task | Piece::Gap => {
                self.end_piece(cpu);
                self.next(cpu);
            }
            _ => {}
        }
    }

    /// Starts to leave the idle state.
    pub(super) fn wake_up(&mut self, cpu: usize) {
        self.account(cpu);
        self.cpus[cpu].is_tickless = true;
        self.start(cpu, Piece::Exit, self.costs.idle_exit);
    }

    /// Adds the time since the start of the present piece to the timeline.
    pub(crate) fn account(&mut self, cpu: usize) {
        let state = &mut self.cpus[cpu];
        self.collector.add(cpu, state.since, self.now, state.used_for());
        state.since = self.now;
    }

    /// Ends the present piece, whether it is finished or not.
    fn end_piece(&mut self, cpu: usize) -> Piece {
        let passed = self.now - self.cpus[cpu].since;
        self.account(cpu);
        let state = &mut self.cpus[cpu];
        let piece = std::mem::replace(&mut state.piece, Piece::Between);
        state.number = state.number.wrapping_add(1);
        if let Some(running) = &mut state.current
            && (piece == Piece::Task || running.thread == Thread::Ksoftirqd)
        {
            running.used += passed;
            if let Thread::Reader(Job { left: Some(left), .. }) = &mut running.thread {
                *left -= passed as f64 / state.slow;
                state.gap += passed as f64 * self.costs.gap;
            }
        }
        piece
    }

    /// Starts a piece that takes `length`.
    pub(super) fn start(&mut self, cpu: usize, piece: Piece, length: Time) {
        let state = &mut self.cpus[cpu];
        state.piece = piece;
        state.since = self.now;
        state.number = state.number.wrapping_add(1);
        let done = Event::Done { cpu: cpu as u32, number: state.number };
        self.events.at(self.now + length.max(1), done);
    }

    /// Starts a piece of `work` (ps of a CPU whose core does nothing else), and what the CPU owes.
    pub(super) fn start_work(&mut self, cpu: usize, piece: Piece, work: f64) {
        let work = work + std::mem::take(&mut self.cpus[cpu].owed);
        let length = work * self.set_slow(cpu);
        self.start(cpu, piece, length as Time);
    }

    /// Sets how much slower the CPU is now, and returns it.
    pub(super) fn set_slow(&mut self, cpu: usize) -> f64 {
        let is_shared = self.domain.siblings[cpu].iter().any(|other| self.cpus[*other].is_busy());
        let slow = if is_shared { 1.0 + self.costs.contention } else { 1.0 };
        self.cpus[cpu].slow = slow;
        slow
    }

    /// A factor on work, because work varies.
    pub(super) fn varied(&mut self) -> f64 {
        1.0 + VARIATION * (2.0 * self.rng.f64() - 1.0)
    }

    /// A piece is finished.
    fn done(&mut self, cpu: usize) {
        match self.end_piece(cpu) {
            Piece::Interrupt(Cause::Queue(queue)) => {
                self.cpus[cpu].poll_list.push_back(Napi::Queue(queue));
            }
            Piece::Interrupt(Cause::Rps) => self.cpus[cpu].poll_list.push_back(Napi::Backlog),
            Piece::Poll(packet) => self.polled(cpu, packet),
            Piece::Backlog(packet) => {
                if let Work::RequestResponse(instances) = &mut self.work {
                    instances.list[packet.flow as usize].in_backlog -= 1;
                }
                self.deliver(cpu, packet);
            }
            Piece::Task => self.ran(cpu),
            _ => {}
        }
        self.next(cpu);
    }

    /// Starts what a CPU does next.
    pub(super) fn next(&mut self, cpu: usize) {
        if let Some(cause) = self.cpus[cpu].causes.pop_front() {
            let cost = match cause {
                Cause::Queue(_) => self.costs.interrupt,
                Cause::Rps => self.costs.ipi_receive,
            };
            return self.start_work(cpu, Piece::Interrupt(cause), cost);
        }
        if self.softirq(cpu) {
            return;
        }
        if self.cpus[cpu].owed > 0.0 {
            return self.start_work(cpu, Piece::Send, 0.0);
        }
        self.run_thread(cpu);
    }

    /// Packets in rings, in backlogs, and in work.
    pub(crate) fn inside(&self) -> u64 {
        let in_rings: usize = self.vectors.iter().map(|vector| vector.ring.len()).sum();
        let in_work = |cpu: &Cpu| matches!(cpu.piece, Piece::Poll(_) | Piece::Backlog(_));
        let at_cpus = |cpu: &Cpu| cpu.backlog.len() + usize::from(in_work(cpu));
        (in_rings + self.cpus.iter().map(at_cpus).sum::<usize>()) as u64
    }

    /// Share of the readers' CPUs that they use, of what softirqs and the scheduler leave to them.
    pub(crate) fn readers_busy(&self, cpus: &[CpuTime]) -> f64 {
        let readable = || cpus.iter().zip(&self.domain.may_read).filter(|(_, may_read)| **may_read);
        let used: f64 = readable().map(|(cpu, _)| cpu.usr + cpu.sys).sum();
        let room: f64 = readable().map(|(cpu, _)| 1.0 - cpu.softirq).sum();
        used * (1.0 + self.costs.gap) / room.max(f64::MIN_POSITIVE)
    }
}
