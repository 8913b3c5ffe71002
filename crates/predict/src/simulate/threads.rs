//! Threads of a CPU: wakeups, turns, and what a reader does at its end.

use crate::simulate::costs::Work;
use crate::simulate::cpu::{Job, Piece, Running, SLICE, Thread};
use crate::simulate::events::Time;
use crate::simulate::host::{Event, Host};

impl Host {
    /// Wakes the reader of an instance up (`try_to_wake_up`).
    pub(super) fn wake(&mut self, waker: usize, flow: u32) {
        let Work::RequestResponse(instances) = &self.work else { return };
        let previous = instances.list[flow as usize].reader_cpu;
        let target = self.domain.choose(&self.cpus, previous, waker);
        let by_ipi = self.cpus[target].piece == Piece::Idle;
        let job = Job { flow, by_ipi, left: None, usr: 0.0 };
        self.cpus[target].ready.push_back(Thread::Reader(job));
        if by_ipi {
            self.counts.ipis += 1;
            self.cpus[waker].owed += self.costs.reschedule;
            self.wake_up(target);
        }
    }

    /// A thread has run to the end of its work or of its slice.
    pub(super) fn ran(&mut self, cpu: usize) {
        let state = &mut self.cpus[cpu];
        let Some(Running { thread: Thread::Reader(job), used }) = state.current else { return };
        if job.left.is_some_and(|left| left < 1.0) {
            state.current = None;
            state.gap_until = self.now + std::mem::take(&mut state.gap) as Time;
            self.answer(job.flow);
        } else if used >= SLICE {
            self.rotate(cpu);
        }
    }

    /// Lets the next ready thread run, if there is one.
    pub(super) fn rotate(&mut self, cpu: usize) {
        let state = &mut self.cpus[cpu];
        if let Some(running) = &mut state.current {
            running.used = 0;
            if !state.ready.is_empty() {
                state.ready.push_back(running.thread);
                state.current = None;
            }
        }
    }

    /// A reader has sent its answer.
    pub(super) fn answer(&mut self, flow: u32) {
        let factor = self.varied();
        let Work::RequestResponse(instances) = &mut self.work else { return };
        let (sent, asks) = instances.answer(self.now, factor);
        let (queue, frames) = (instances.list[flow as usize].tx as u32, instances.packets);
        self.events.at(sent, Event::Sent { queue, frames });
        self.events.at(asks, Event::Ask { flow });
    }

    /// Lets a thread run, or the CPU sleep.
    pub(super) fn run_thread(&mut self, cpu: usize) {
        if self.cpus[cpu].current.is_none() && !self.pick(cpu) {
            return;
        }
        let Some(running) = self.cpus[cpu].current else { return };
        let Thread::Reader(job) = running.thread else {
            // `ksoftirqd` has just got the CPU.
            return self.next(cpu);
        };
        let work = job.left.unwrap_or_default() * self.set_slow(cpu);
        let length = (work.ceil() as Time).min(SLICE.saturating_sub(running.used));
        self.start(cpu, Piece::Task, length);
    }

    /// Chooses the next thread; `false`: there is none now.
    pub(super) fn pick(&mut self, cpu: usize) -> bool {
        let state = &mut self.cpus[cpu];
        if state.ready.is_empty() && !state.is_tickless {
            let stolen = self.domain.steal(&mut self.cpus, cpu);
            self.cpus[cpu].ready.extend(stolen);
        }
        let state = &mut self.cpus[cpu];
        let Some(mut thread) = state.ready.front().copied() else {
            state.piece = Piece::Idle;
            state.since = self.now;
            return false;
        };
        if let Thread::Reader(job) = &mut thread {
            if let Some(wait) = state.gap_until.checked_sub(self.now).filter(|wait| *wait > 0) {
                self.start(cpu, Piece::Gap, wait);
                return false;
            }
            self.run_on(cpu, job);
        }
        let state = &mut self.cpus[cpu];
        state.ready.pop_front();
        state.is_tickless = false;
        state.current = Some(Running { thread, used: 0 });
        true
    }

    /// A reader runs on `cpu` from now on.
    pub(super) fn run_on(&mut self, cpu: usize, job: &mut Job) {
        let (factor, from_idle) = (self.varied(), self.cpus[cpu].is_tickless);
        if let Work::RequestResponse(instances) = &mut self.work {
            instances.run_on(job, cpu, from_idle, factor);
        }
    }
}
