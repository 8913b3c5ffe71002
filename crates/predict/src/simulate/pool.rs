//! Servers that share one queue, first come, first served: the client's CPUs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::simulate::events::{LAST, Time};

/// Several servers with one queue.
///
/// The end of each service is known when its customer arrives, so the pool needs no events.
/// Arrivals must come in order of time.
#[derive(Debug)]
pub(crate) struct Pool {
    servers: usize,
    /// When each server that serves, or has served, is free again.
    free: BinaryHeap<Reverse<Time>>,
    /// Time in use.
    pub(crate) used: Time,
}

impl Pool {
    pub(crate) fn new(servers: usize) -> Self {
        Self { servers, free: BinaryHeap::with_capacity(servers), used: 0 }
    }

    /// Share of the servers that serve at the arrival time `now`.
    pub(crate) fn busy(&mut self, now: Time) -> f64 {
        while self.free.peek().is_some_and(|free| free.0 <= now) {
            self.free.pop();
        }
        self.free.len() as f64 / self.servers as f64
    }

    /// Serves a customer that arrives `now`, for `service`; the server needs `pause` more until it
    /// can serve another one. Returns when the service ends.
    pub(crate) fn serve(&mut self, now: Time, service: Time, pause: Time) -> Time {
        let start =
            if self.busy(now) < 1.0 { now } else { self.free.pop().map_or(now, |free| free.0) };
        let end = (start + service.min(LAST)).min(LAST);
        self.free.push(Reverse(end + pause.min(LAST)));
        self.used = self.used.saturating_add(service).saturating_add(pause);
        end
    }
}
