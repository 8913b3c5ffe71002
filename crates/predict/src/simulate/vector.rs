//! A queue pair of a NIC with its interrupt: finite ring, coalescing, NAPI.

use std::collections::VecDeque;

use crate::simulate::events::Time;

/// Descriptors of an rx ring: the default of most drivers, or the nearest to it.
pub(crate) const RING: usize = 512;

/// A received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packet {
    /// The instance, or the port that it arrived at.
    pub(crate) flow: u32,
    /// When it arrived at the ring.
    pub(crate) at: Time,
}

/// What a vector does after a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Nothing: its NAPI polls, or its timer runs.
    Nothing,
    /// Starts its timer, with this number.
    Timer(u32),
    /// Interrupts.
    Interrupt,
}

/// A queue pair with its interrupt.
#[derive(Debug)]
pub(crate) struct Vector {
    /// The CPU of its interrupt.
    pub(crate) cpu: usize,
    pub(crate) ring: VecDeque<Packet>,
    /// Sent frames that are not completed yet.
    pub(crate) sent: u32,
    /// Frames that its interrupt is held back for.
    held: u32,
    /// Whether NAPI is scheduled, which keeps interrupts off.
    scheduled: bool,
    /// Number of the timer that runs, or ran last.
    timer: u32,
}

impl Vector {
    pub(crate) fn new(cpu: usize) -> Self {
        Self { cpu, ring: VecDeque::new(), sent: 0, held: 0, scheduled: false, timer: 0 }
    }

    /// Puts a received frame into the ring; `None`: the ring is full, and the frame is lost.
    pub(crate) fn receive(&mut self, packet: Packet, most: u32) -> Option<Signal> {
        if self.ring.len() >= RING {
            return None;
        }
        self.ring.push_back(packet);
        Some(self.signal(1, most))
    }

    /// `frames` have been sent; the interrupt is held back for `most`.
    pub(crate) fn send(&mut self, frames: u32, most: u32) -> Signal {
        self.sent += frames;
        self.signal(frames, most)
    }

    fn signal(&mut self, frames: u32, most: u32) -> Signal {
        if self.scheduled {
            return Signal::Nothing;
        }
        let is_first = self.held == 0;
        self.held += frames;
        if self.held >= most {
            self.schedule();
            return Signal::Interrupt;
        }
        if is_first { Signal::Timer(self.timer) } else { Signal::Nothing }
    }

    /// The timer with this number is over; returns whether the vector interrupts.
    pub(crate) fn time_out(&mut self, timer: u32) -> bool {
        let is_due = timer == self.timer && !self.scheduled;
        if is_due {
            self.schedule();
        }
        is_due
    }

    fn schedule(&mut self) {
        self.scheduled = true;
        self.held = 0;
        self.timer = self.timer.wrapping_add(1);
    }

    /// Ends polling of an empty queue (`napi_complete_done`).
    pub(crate) fn complete(&mut self) {
        self.scheduled = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: Packet = Packet { flow: 0, at: 0 };

    #[test]
    fn an_interrupt_comes_after_the_time_or_the_frames_whichever_is_first() {
        let mut vector = Vector::new(0);
        assert_eq!(vector.receive(PACKET, 3), Some(Signal::Timer(0)));
        assert_eq!(vector.send(1, 3), Signal::Nothing);
        assert_eq!(vector.receive(PACKET, 3), Some(Signal::Interrupt));
        // the timer of an interrupt that came by its frames is void
        assert!(!vector.time_out(0));
        // polled: no interrupt
        assert_eq!(vector.receive(PACKET, 3), Some(Signal::Nothing));
        vector.complete();
        assert_eq!(vector.receive(PACKET, 3), Some(Signal::Timer(1)));
        assert!(!vector.time_out(0));
        assert!(vector.time_out(1));
        assert!(!vector.time_out(1));
    }

    #[test]
    fn a_full_ring_loses_what_arrives() {
        let mut vector = Vector::new(0);
        for _ in 0..RING {
            assert!(vector.receive(PACKET, 64).is_some());
        }
        assert_eq!(vector.receive(PACKET, 64), None);
        vector.ring.pop_front();
        assert!(vector.receive(PACKET, 64).is_some());
    }
}
