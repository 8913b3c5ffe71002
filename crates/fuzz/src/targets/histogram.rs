//! Histograms of latencies in received records, without their compression: no header makes the
//! library allocate or count more than a histogram of netsilo has.

use std::io::{Read as _, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer as _, V2DeflateSerializer};
use netsilo_trial::experiment::latency::MergedLatency;
use netsilo_trial::traffic::Latency;

use crate::target::FuzzTarget;

pub(crate) const TARGET: FuzzTarget =
    FuzzTarget { seeds, inputs: 5_000, ..FuzzTarget::bytes(holds) };

fn holds(bytes: &[u8]) {
    let mut packed = vec![0x1c, 0x84, 0x93, 0x14];
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("memory");
    let compressed = encoder.finish().expect("memory");
    packed.extend((compressed.len() as u32).to_be_bytes());
    packed.extend(compressed);
    let latency = Latency { histogram: STANDARD.encode(packed), ..Latency::default() };
    // Twice, because a sum of two may be larger than a counter.
    let Some(merged) = MergedLatency::merge([&latency, &latency].into_iter()) else { return };
    assert!(merged.unreadable == 0 || merged.count == 0, "both are equal: {merged:?}");
    assert!(merged.percentiles_ns.is_sorted_by(|a, b| a.1 <= b.1), "{merged:?}");
}

fn seeds() -> Vec<Vec<u8>> {
    let latencies: [&[u64]; 3] = [&[1], &[1000, 1000, 5_000_000], &[1, 3_600_000_000_000]];
    let overflowing = unpacked_histogram(&[1000, 1001, 1002], i64::MAX as u64);
    latencies.map(|it| unpacked_histogram(it, 1)).into_iter().chain([overflowing]).collect()
}

fn unpacked_histogram(latencies: &[u64], count: u64) -> Vec<u8> {
    let mut histogram =
        Histogram::<u64>::new_with_bounds(1, 3_600_000_000_000, 3).expect("these bounds");
    latencies.iter().for_each(|ns| histogram.record_n(*ns, count).expect("within the bounds"));
    let mut packed = Vec::new();
    V2DeflateSerializer::new().serialize(&histogram, &mut packed).expect("memory");
    let mut bytes = Vec::new();
    ZlibDecoder::new(&packed[8..]).read_to_end(&mut bytes).expect("what was just packed");
    bytes
}
