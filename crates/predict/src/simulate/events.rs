//! The event queue: events by time, and those of one time in the order in which they were
//! scheduled.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Simulated time since the start (ps), fine enough for single cycles.
pub(crate) type Time = u64;

/// Picoseconds in a second.
pub(crate) const SECOND: f64 = 1e12;

/// The last time of an event: the sum of a few such times is still a time.
pub(crate) const LAST: Time = Time::MAX / 4;

/// Returns `seconds` as simulated time.
pub(crate) fn time(seconds: f64) -> Time {
    ((seconds * SECOND) as Time).min(LAST)
}

/// Events that have not happened yet.
#[derive(Debug)]
pub(crate) struct Events<E> {
    heap: BinaryHeap<Scheduled<E>>,
    /// Events scheduled so far.
    count: u64,
}

#[derive(Debug)]
struct Scheduled<E> {
    at: Time,
    order: u64,
    event: E,
}

impl<E> Events<E> {
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new(), count: 0 }
    }

    /// Schedules `event`.
    pub(crate) fn at(&mut self, at: Time, event: E) {
        self.count += 1;
        self.heap.push(Scheduled { at, order: self.count, event });
    }

    /// Takes the next event that happens before `end`.
    pub(crate) fn next_before(&mut self, end: Time) -> Option<(Time, E)> {
        self.heap.peek().filter(|next| next.at < end)?;
        self.heap.pop().map(|next| (next.at, next.event))
    }
}

impl<E> Ord for Scheduled<E> {
    // A heap has its greatest element first: here the earliest is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl<E> PartialOrd for Scheduled<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Scheduled<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Scheduled<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_by_the_order_in_which_they_were_scheduled() {
        let mut events = Events::new();
        for (at, event) in [(5, "c"), (2, "a"), (5, "d"), (2, "b"), (9, "e")] {
            events.at(at, event);
        }
        let mut came = Vec::new();
        while let Some((_, event)) = events.next_before(9) {
            came.push(event);
        }
        assert_eq!(came, ["a", "b", "c", "d"]);
        assert_eq!(events.next_before(10), Some((9, "e")));
        assert_eq!(events.next_before(Time::MAX), None);
    }
}
