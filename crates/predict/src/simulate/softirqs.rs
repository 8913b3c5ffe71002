//! Softirqs of a CPU: polls, backlogs, RPS, and when `ksoftirqd` takes over.

use crate::simulate::costs::Work;
use crate::simulate::cpu::{
    BUDGET, Cause, MAX_BACKLOG, MAX_RESTART, MAX_SOFTIRQ_TIME, Napi, Piece, SLICE, Thread, WEIGHT,
};
use crate::simulate::host::{Event, Host};
use crate::simulate::ports::End;
use crate::simulate::vector::Packet;

impl Host {
    /// A packet has been polled: it goes on here or to the CPU that RPS chooses.
    pub(super) fn polled(&mut self, cpu: usize, packet: Packet) {
        match self.steer(packet) {
            None => self.deliver(cpu, packet),
            Some(target) => self.enqueue(cpu, target, packet),
        }
    }

    pub(super) fn steer(&mut self, packet: Packet) -> Option<usize> {
        match &mut self.work {
            Work::RequestResponse(instances) => instances.steer(packet.flow),
            Work::Forward(ports) => ports.steer(&mut self.rng),
        }
    }

    /// Puts a packet into a CPU's backlog (`enqueue_to_backlog`).
    pub(super) fn enqueue(&mut self, cpu: usize, target: usize, packet: Packet) {
        if self.cpus[target].backlog.len() >= MAX_BACKLOG {
            return self.lose(packet);
        }
        if let Work::RequestResponse(instances) = &mut self.work {
            instances.list[packet.flow as usize].in_backlog += 1;
        }
        let state = &mut self.cpus[target];
        state.backlog.push_back(packet);
        if std::mem::replace(&mut state.is_backlog_scheduled, true) {
            return;
        }
        if target == cpu {
            self.cpus[cpu].poll_list.push_back(Napi::Backlog)
        } else {
            self.cpus[cpu].ipi_targets.push(target)
        }
    }

    /// A packet reaches the end of its way through softirqs.
    pub(super) fn deliver(&mut self, cpu: usize, packet: Packet) {
        match &mut self.work {
            Work::RequestResponse(instances) => {
                self.counts.handled += 1;
                if instances.receive(packet.flow, cpu) {
                    self.wake(cpu, packet.flow);
                }
            }
            Work::Forward(ports) => match ports.send(packet, self.now) {
                End::Lost => self.counts.lost += 1,
                end => {
                    self.counts.handled += 1;
                    self.collector.complete(self.now);
                    if let End::Sent(port, left) = end {
                        self.events.at(left, Event::Sent { queue: port as u32, frames: 1 });
                    }
                }
            },
        }
    }

    /// Starts the next piece of softirq work; returns whether there is one that may run now.
    pub(super) fn softirq(&mut self, cpu: usize) -> bool {
        loop {
            if self.cpus[cpu].is_deferred && !self.cpus[cpu].runs_ksoftirqd() {
                return false;
            }
            let Some(&napi) = self.cpus[cpu].poll_list.front() else {
                self.end_softirqs(cpu);
                return false;
            };
            if self.cpus[cpu].budget == BUDGET && self.cpus[cpu].restarts == 0 {
                self.cpus[cpu].busy_since = self.now;
            }
            let started = match napi {
                Napi::Queue(queue) => self.poll(cpu, queue),
                Napi::Backlog => self.process_backlog(cpu),
            };
            if started {
                return true;
            }
        }
    }

    /// Starts a piece of a queue's poll; `false`: this poll is over.
    pub(super) fn poll(&mut self, cpu: usize, queue: usize) -> bool {
        let vector = &mut self.vectors[queue];
        if vector.sent > 0 {
            let frames = vector.sent.min(WEIGHT);
            vector.sent -= frames;
            let work = f64::from(frames) * self.costs.completion[queue];
            self.start_work(cpu, Piece::Complete, work);
            return true;
        }
        if self.cpus[cpu].weight > 0
            && let Some(packet) = vector.ring.pop_front()
        {
            let work = self.poll_work(cpu, packet) * self.varied();
            self.take_packet(cpu, Piece::Poll(packet), work);
            return true;
        }
        let is_empty = vector.ring.is_empty();
        if is_empty {
            vector.complete();
        }
        self.end_poll(cpu, is_empty);
        false
    }

    /// What the poll of a packet takes, with the protocol if no other CPU does that.
    pub(super) fn poll_work(&self, cpu: usize, packet: Packet) -> f64 {
        match &self.work {
            Work::RequestResponse(instances) => {
                let more = if instances.is_steered() {
                    self.costs.rps_enqueue
                } else {
                    instances.protocol(packet.flow, cpu)
                };
                instances.poll(cpu) + more
            }
            Work::Forward(ports) => {
                let more = if ports.is_steered() { self.costs.rps_enqueue } else { ports.way() };
                ports.poll() + more
            }
        }
    }

    /// Starts a piece of `process_backlog`; `false`: this poll is over.
    pub(super) fn process_backlog(&mut self, cpu: usize) -> bool {
        let state = &mut self.cpus[cpu];
        if state.weight > 0
            && let Some(packet) = state.backlog.pop_front()
        {
            let protocol = match &self.work {
                Work::RequestResponse(instances) => instances.protocol(packet.flow, cpu),
                Work::Forward(ports) => ports.way(),
            };
            let work = (self.costs.backlog + protocol) * self.varied();
            self.take_packet(cpu, Piece::Backlog(packet), work);
            return true;
        }
        let is_empty = state.backlog.is_empty();
        if is_empty {
            state.is_backlog_scheduled = false;
        }
        self.end_poll(cpu, is_empty);
        false
    }

    pub(super) fn take_packet(&mut self, cpu: usize, piece: Piece, work: f64) {
        self.cpus[cpu].weight -= 1;
        self.cpus[cpu].budget = self.cpus[cpu].budget.saturating_sub(1);
        self.start_work(cpu, piece, work);
    }

    /// Ends a poll: of an empty queue, or of one that is polled again after the others.
    pub(super) fn end_poll(&mut self, cpu: usize, is_empty: bool) {
        let state = &mut self.cpus[cpu];
        state.weight = WEIGHT;
        let napi = state.poll_list.pop_front();
        if !is_empty {
            state.poll_list.extend(napi);
        }
        if state.budget == 0 && !state.poll_list.is_empty() {
            self.restart(cpu);
        }
    }

    /// Ends a `net_rx_action` whose budget is used up. The next one follows at once, or
    /// `ksoftirqd` takes over (`__do_softirq`).
    pub(super) fn restart(&mut self, cpu: usize) {
        self.send_ipis(cpu);
        let state = &mut self.cpus[cpu];
        state.budget = BUDGET;
        state.restarts += 1;
        if state.runs_ksoftirqd() {
            if state.current.is_some_and(|running| running.used >= SLICE) {
                self.rotate(cpu);
            }
            return;
        }
        let is_long = self.now - state.busy_since >= MAX_SOFTIRQ_TIME;
        if state.restarts >= MAX_RESTART || is_long {
            state.is_deferred = true;
            state.ready.push_back(Thread::Ksoftirqd);
        }
    }

    /// Ends the last `net_rx_action`: nothing is left to poll.
    pub(super) fn end_softirqs(&mut self, cpu: usize) {
        self.send_ipis(cpu);
        let state = &mut self.cpus[cpu];
        state.budget = BUDGET;
        state.restarts = 0;
        if state.runs_ksoftirqd() {
            state.is_deferred = false;
            state.current = None;
        }
    }

    /// Interrupts the CPUs that got packets (`net_rps_send_ipi`).
    pub(super) fn send_ipis(&mut self, cpu: usize) {
        let mut targets = std::mem::take(&mut self.cpus[cpu].ipi_targets);
        for target in targets.drain(..) {
            self.counts.ipis += 1;
            let is_asleep = matches!(self.cpus[target].piece, Piece::Idle);
            let sleeper = if is_asleep { self.costs.ipi_sleeper } else { 0.0 };
            self.cpus[cpu].owed += self.costs.ipi_send + sleeper;
            self.interrupt(target, Cause::Rps);
        }
        self.cpus[cpu].ipi_targets = targets;
    }
}
