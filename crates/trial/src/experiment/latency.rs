//! Merged latencies of several runs.

use std::io::Read as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use serde::{Deserialize, Serialize};

use crate::traffic::Latency;

/// The reported percentiles. A run of a few seconds cannot show more nines.
pub const PERCENTILES: [f64; 12] =
    [1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 99.999];

/// The responses of all rounds, each counted once. Merges the histograms and never averages
/// percentiles.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MergedLatency {
    /// Number of responses.
    pub count: u64,
    /// Mean.
    pub mean_ns: f64,
    /// Maximum.
    pub max_ns: u64,
    /// Percent and nanoseconds, to three digits. Leaves out a percentile if fewer than ten
    /// responses are above it.
    pub percentiles_ns: Vec<(f64, u64)>,
    /// Number of histograms that could not be read and are left out.
    pub unreadable: usize,
}

impl MergedLatency {
    /// Merges the latencies; `None` without responses.
    pub fn merge<'a>(latencies: impl Iterator<Item = &'a Latency>) -> Option<Self> {
        let mut all = Histogram::<u64>::new(3).ok()?;
        let unreadable =
            latencies.filter(|latency| read(latency).is_none_or(|it| all.add(it).is_err())).count();
        let count = all.len();
        let shown = |percent: &f64| count as f64 * (1.0 - percent / 100.0) >= 10.0;
        let at = |percent: f64| (percent, all.value_at_percentile(percent));
        (count > 0 || unreadable > 0).then(|| Self {
            count,
            mean_ns: all.mean(),
            max_ns: all.max(),
            percentiles_ns: PERCENTILES.into_iter().filter(shown).map(at).collect(),
            unreadable,
        })
    }
}

fn read(latency: &Latency) -> Option<Histogram<u64>> {
    let bytes = unpacked(&latency.histogram)?;
    let histogram = Deserializer::new().deserialize::<u64, _>(&mut bytes.as_slice()).ok()?;
    (histogram.len() <= MOST_RESPONSES).then_some(histogram)
}

/// Maximum number of responses in one record: a million a second for nine years. The library adds
/// up the counts of all records without checking for overflow.
const MOST_RESPONSES: u64 = 1 << 48;

/// Maximum size of an unpacked histogram in bytes. Those of netsilo have up to 300 KB.
const MOST_UNPACKED: u64 = 1 << 20;

/// Maximum latency in nanoseconds that a histogram may have: one hour, as in those of netsilo.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// The encoding of the smallest number. It is not a valid count: the library would negate it and
/// panic.
const LEAST_NUMBER: [u8; 9] = [0xff; 9];

/// A histogram without its compression; `None` unless its header fits a histogram of netsilo. The
/// library allocates as much as the header announces: up to 4 GiB for the counts of a record of 60
/// bytes.
fn unpacked(text: &str) -> Option<Vec<u8>> {
    // Two big-endian words before the compressed data: kind and length.
    let packed = STANDARD.decode(text).ok()?;
    let mut bytes = Vec::new();
    ZlibDecoder::new(packed.get(8..)?).take(MOST_UNPACKED).read_to_end(&mut bytes).ok()?;
    // Kind, length of the counts, offset, digits; lowest and highest value; a ratio; the counts.
    let number = |at: usize, length: usize| {
        let fold = |sum, byte: &u8| sum << 8 | u64::from(*byte);
        bytes.get(at..at + length).map(|word| word.iter().fold(0, fold))
    };
    let counts = bytes.len().checked_sub(40)? as u64;
    let fits = number(4, 4)? <= counts && number(12, 4)? <= 3 && number(24, 8)? <= LONGEST_NS;
    let negates = bytes.windows(LEAST_NUMBER.len()).skip(40).any(|it| it == LEAST_NUMBER);
    (fits && !negates).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::read::ZlibEncoder;
    use hdrhistogram::serialization::{Serializer as _, V2DeflateSerializer};

    use super::*;
    use crate::experiment::samples::latency;

    #[test]
    fn each_response_counts_once_in_any_number_of_rounds() {
        let (few, many) = (latency(vec![1_000_000; 100]), latency(vec![1000; 900]));
        let merged = MergedLatency::merge([&few, &many].into_iter()).unwrap();
        let at = |percent: f64| {
            merged.percentiles_ns.iter().find(|(it, _)| *it == percent).map(|(_, ns)| *ns)
        };
        let close = |ns: Option<u64>, to: u64| ns.is_some_and(|ns| ns.abs_diff(to) <= to / 500);
        assert!(
            merged.count == 1000 && close(at(75.0), 1000) && close(at(95.0), 1_000_000),
            "{merged:?}"
        );
        assert!(
            at(99.0).is_some() && at(99.9).is_none(),
            "the 99.9th percentile needs ten responses above it: {merged:?}"
        );
        let broken = Latency { histogram: "no histogram".into(), ..few.clone() };
        let merged = MergedLatency::merge([&few, &broken].into_iter()).unwrap();
        assert_eq!((merged.count, merged.unreadable), (100, 1));
        assert_eq!(MergedLatency::merge(std::iter::empty()), None);
    }

    #[test]
    fn counts_whose_sum_would_overflow_make_a_histogram_unreadable() {
        let mut histogram = Histogram::<u64>::new(3).unwrap();
        for ns in [1000, 1001, 1002] {
            histogram.record_n(ns, i64::MAX as u64).unwrap();
        }
        let mut packed = Vec::new();
        V2DeflateSerializer::new().serialize(&histogram, &mut packed).unwrap();
        let overflowing =
            Latency { histogram: STANDARD.encode(&packed), ..latency(vec![1000; 900]) };
        let merged = MergedLatency::merge([&latency(vec![1000; 900]), &overflowing].into_iter());
        let merged = merged.unwrap();
        assert_eq!((merged.count, merged.unreadable), (900, 1));
    }

    /// A histogram as in a record, with one byte of its header replaced.
    fn with_byte(at: usize, byte: u8) -> String {
        let mut bytes = unpacked(&latency(vec![1000; 900]).histogram).unwrap();
        bytes[at] = byte;
        let mut packed = vec![0x1c, 0x84, 0x93, 0x14, 0, 0, 1, 0];
        let mut encoder = ZlibEncoder::new(bytes.as_slice(), Compression::fast());
        encoder.read_to_end(&mut packed).unwrap();
        STANDARD.encode(packed)
    }

    #[test]
    fn a_header_that_announces_more_than_there_is_makes_a_histogram_unreadable() {
        assert!(unpacked(&with_byte(0, 0x1c)).is_some(), "only this byte's old value");
        for (what, at) in [("4 GiB of counts", 4), ("digits", 15), ("a highest value", 24)] {
            assert!(unpacked(&with_byte(at, 0xff)).is_none(), "{what}");
        }
        let mut packed = vec![0; 8];
        let least = [&unpacked(&with_byte(0, 0x1c)).unwrap()[..40], &LEAST_NUMBER].concat();
        ZlibEncoder::new(least.as_slice(), Compression::fast()).read_to_end(&mut packed).unwrap();
        assert!(unpacked(&STANDARD.encode(packed)).is_none(), "the least of all numbers");
        let mut packed = vec![0; 8];
        let mut bomb = ZlibEncoder::new(std::io::repeat(0).take(16 << 20), Compression::fast());
        bomb.read_to_end(&mut packed).unwrap();
        let unpacked = unpacked(&STANDARD.encode(packed)).map(|bytes| bytes.len() as u64);
        assert_eq!(unpacked, Some(MOST_UNPACKED), "a bomb is read up to the limit");
    }
}
