//! Clients that were refused or left early. Each reason is reported at most once a second.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::event::Event;

/// Minimum time between two reports of the same reason.
const PAUSE: Duration = Duration::from_secs(1);

/// Maximum number of reasons that are distinguished at a time, because clients can cause any number
/// of new ones.
const REASONS: usize = 16;

/// Stands for all reasons beyond [`REASONS`].
const OTHERS: &str = "refused for other reasons";

/// Clients that ended since the last report, by reason.
#[derive(Debug, Default)]
pub(crate) struct Ended(BTreeMap<String, Reason>);

#[derive(Debug, Default)]
struct Reason {
    /// The first client that has not been reported yet, and how many followed.
    waiting: Option<(SocketAddr, usize)>,
    reported: Option<Instant>,
}

impl Ended {
    /// Notes that a client ended.
    pub(crate) fn add(&mut self, from: SocketAddr, why: String) {
        let is_full = self.0.len() >= REASONS && !self.0.contains_key(&why);
        let reason = self.0.entry(if is_full { OTHERS.to_owned() } else { why }).or_default();
        let others = reason.waiting.map(|(first, others)| (first, others + 1));
        reason.waiting = others.or(Some((from, 0)));
    }

    /// The reasons to report now: those that were last reported at least a second ago.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<Event> {
        let is_due = |it: &Reason| it.reported.is_none_or(|at| now.duration_since(at) >= PAUSE);
        self.0.retain(|_, it| it.waiting.is_some() || !is_due(it));
        let mut due = Vec::new();
        for (why, it) in self.0.iter_mut().filter(|(_, it)| is_due(it)) {
            if let Some((from, others)) = it.waiting.take() {
                due.push(Event::Ended { from, why: why.clone(), others });
                it.reported = Some(now);
            }
        }
        due
    }

    /// The reasons that were not reported yet.
    pub(crate) fn rest(self) -> impl Iterator<Item = Event> {
        self.0.into_iter().filter_map(|(why, it)| {
            it.waiting.map(|(from, others)| Event::Ended { from, why, others })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    fn text(events: impl IntoIterator<Item = Event>) -> Vec<String> {
        let line = |event| match event {
            Event::Ended { from, why, others } => format!("{} {why} {others}", from.port()),
            other => format!("{other:?}"),
        };
        events.into_iter().map(line).collect()
    }

    #[test]
    fn a_reason_is_reported_at_once_and_then_once_a_second_with_all_that_came_meanwhile() {
        let (mut ended, start) = (Ended::default(), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        ended.add(client(1), "busy".into());
        assert_eq!(text(ended.due(at(0))), ["1 busy 0"]);
        for port in 2..=500 {
            ended.add(client(port), "busy".into());
            assert_eq!(text(ended.due(at(u64::from(port)))), [""; 0]);
        }
        ended.add(client(7), "silent".into());
        assert_eq!(text(ended.due(at(900))), ["7 silent 0"]);
        assert_eq!(text(ended.due(at(1000))), ["2 busy 498"]);
        assert_eq!(text(ended.due(at(5000))), [""; 0]);
        ended.add(client(8), "busy".into());
        assert_eq!(text(ended.due(at(5001))), ["8 busy 0"]);
    }

    #[test]
    fn reasons_that_clients_make_up_are_bounded_and_none_is_lost() {
        let (mut ended, now) = (Ended::default(), Instant::now());
        for n in 0..10_000 {
            ended.add(client(n), format!("invalid request {n}"));
        }
        let due = text(ended.due(now));
        assert_eq!(due.len(), REASONS + 1);
        assert!(due.contains(&format!("16 {OTHERS} {}", 10_000 - REASONS - 1)), "{due:?}");
        ended.add(client(1), OTHERS.into());
        ended.add(client(2), OTHERS.into());
        assert_eq!(text(ended.rest()), [format!("1 {OTHERS} 1")]);
    }
}
