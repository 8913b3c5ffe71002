//! The counters of one worker: its row of the shared counters, and the shared latencies.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2DeflateSerializer};
use netsilo_trial::traffic::Latency;

use crate::shared_counters::{SharedCounters, ThreadCounters, add};

/// Number of latencies that are buffered before they are added to the histogram under one lock.
const BATCH: usize = 256;

/// Upper limit of the histogram: one hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// The reported percentiles.
const PERCENTILES: [&str; 8] = ["1", "25", "50", "75", "90", "99", "99.9", "99.99"];

/// The latencies of all workers.
#[derive(Debug)]
pub(super) struct Latencies(Mutex<Histogram<u64>>);

impl Latencies {
    /// Three significant digits, from a nanosecond to an hour.
    pub(super) fn new() -> Option<Self> {
        Histogram::new_with_bounds(1, LONGEST_NS, 3)
            .ok()
            .map(|histogram| Self(Mutex::new(histogram)))
    }

    fn take(&self, batch: &mut Vec<u64>) {
        let mut histogram = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        batch.drain(..).for_each(|latency| histogram.saturating_record(latency));
    }

    /// Adds the latencies of another process. Returns false if the text is not a histogram.
    pub(super) fn add(&self, histogram: &str) -> bool {
        let Some(bytes) = base64::decode(histogram) else { return false };
        let Ok(other) = Deserializer::new().deserialize::<u64, _>(&mut bytes.as_slice()) else {
            return false;
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(other).is_ok()
    }

    /// The summary of the latencies; `None` if there are none.
    pub(super) fn summary(&self) -> Option<Latency> {
        let histogram = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = Vec::new();
        V2DeflateSerializer::new().serialize(&histogram, &mut bytes).ok()?;
        let at = |percent: &str| {
            Some((percent.to_owned(), histogram.value_at_percentile(percent.parse().ok()?)))
        };
        (!histogram.is_empty()).then(|| Latency {
            count: histogram.len(),
            mean_ns: histogram.mean(),
            max_ns: histogram.max(),
            percentiles_ns: PERCENTILES.into_iter().filter_map(at).collect(),
            histogram: base64::encode(&bytes),
        })
    }
}

mod base64 {
    //! The interchange form's alphabet.

    use ::base64::Engine as _;
    use ::base64::engine::general_purpose::STANDARD;

    pub(super) fn encode(bytes: &[u8]) -> String {
        STANDARD.encode(bytes)
    }

    pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
        STANDARD.decode(text).ok()
    }
}

/// The counters of one worker.
pub(super) struct Tally<'a> {
    counters: &'a SharedCounters,
    pub(super) row: &'a ThreadCounters,
    latencies: &'a Latencies,
    batch: Vec<u64>,
}

impl<'a> Tally<'a> {
    pub(super) fn new(
        counters: &'a SharedCounters,
        row: &'a ThreadCounters,
        latencies: &'a Latencies,
    ) -> Self {
        Self { counters, row, latencies, batch: Vec::new() }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.counters.is_stopped()
    }

    /// Counts a request before it is sent.
    pub(super) fn request(&self) {
        add(&self.row.requests, 1);
    }

    pub(super) fn sent(&self, bytes: usize) {
        add(&self.row.sent_bytes, bytes);
    }

    pub(super) fn received(&self, bytes: usize) {
        add(&self.row.received_bytes, bytes);
    }

    /// Counts a response and its latency.
    pub(super) fn response(&mut self, sent_at: Instant, now: Instant) {
        add(&self.row.responses, 1);
        if self.counters.phase().counting.load(Ordering::Relaxed) {
            self.batch.push(now.duration_since(sent_at).as_nanos() as u64);
            if self.batch.len() >= BATCH {
                self.latencies.take(&mut self.batch);
            }
        }
    }
}

impl Drop for Tally<'_> {
    fn drop(&mut self) {
        self.latencies.take(&mut self.batch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_of_two_processes_are_merged() {
        let (here, there) = (Latencies::new().unwrap(), Latencies::new().unwrap());
        assert_eq!(here.summary(), None);
        here.take(&mut vec![1000; 99]);
        there.take(&mut vec![1_000_000]);
        assert!(here.add(&there.summary().unwrap().histogram));
        assert!(!here.add("not a histogram") && !here.add("AAAA"));
        let summary = here.summary().unwrap();
        let close = |ns: u64, to: u64| ns.abs_diff(to) <= to / 500;
        assert!(
            summary.count == 100
                && close(summary.max_ns, 1_000_000)
                && close(summary.percentiles_ns["50"], 1000),
            "{summary:?}"
        );
    }
}
