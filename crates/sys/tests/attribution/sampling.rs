//! Tests of sampling: the sample represents all events, within the reported error.

use std::net::{Ipv4Addr, UdpSocket};

use netsilo_model::snapshot::attribution::{Attribution, Examined};
use netsilo_sys::bpf::tracer::{Options, Tracer};

use super::reader::{Reader, send};
use super::{at, bytes, in_own_netns, of};

/// One event per tick: so few that a load of some thousand events is sampled on any machine.
fn few() -> Options {
    Options { examined_per_s: Some(1), ..Options::default() }
}

/// A reader answers each datagram. Returns what the reader read, and what was counted.
fn ping(options: Options, datagrams: usize) -> (Reader, u64, Attribution) {
    let mut reader = Reader::start("udp-unconnected", 65536);
    let mut tracer = Tracer::attach(options);
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    for size in std::iter::repeat_n(100, datagrams).chain([0]) {
        socket.send_to(&vec![0; size], at(reader.port)).unwrap();
        socket.recv(&mut []).unwrap();
    }
    let truth = reader.said("read");
    (reader, truth, tracer.read().unwrap())
}

fn lies_within(counted: u64, truth: u64, all: Examined, share: f64) -> bool {
    // twice the 95 % interval: one run in ten thousand is outside
    (counted as f64 / truth as f64 - 1.0).abs() <= 2.0 * all.error(share)
}

#[test]
fn sampled_datagrams_are_estimated_within_the_stated_error() {
    in_own_netns(|| {
        let (reader, truth, attribution) = ping(few(), 20_000);
        let reads = attribution.sampling.reads;
        assert!(reads.examined > 300 && reads.examined < reads.events / 4, "{reads:?}");
        // the reader and this thread read about equally often
        let counted = bytes(&attribution, reader.tgid());
        assert!(lies_within(counted, truth, reads, 0.5), "{counted} of {truth}, {reads:?}");
        let events: u64 = of(&attribution, reader.tgid()).iter().map(|read| read.events).sum();
        assert!(lies_within(events, 20_001, reads, 0.5), "{events}, {reads:?}");
    });
}

#[test]
fn sampled_softirqs_give_polls_wakeups_and_time() {
    in_own_netns(|| {
        let (_, _, exact) = ping(Options::exact(), 10_000);
        let (_, _, sampled) = ping(few(), 10_000);
        let softirqs = sampled.sampling.softirqs;
        assert!(softirqs.examined < softirqs.events / 4, "{softirqs:?}");
        let packets = |it: &Attribution| it.polls.iter().map(|poll| poll.packets).sum::<u64>();
        let time = |it: &Attribution| it.cpu_time.values().map(|cpu| cpu.net_rx_ns).sum::<u64>();
        // at least those of this test, because others use this kernel too
        assert!(packets(&exact) >= 20_002);
        assert!(packets(&sampled) as f64 >= 20_002.0 * (1.0 - 2.0 * softirqs.error(0.5)));
        assert!(time(&sampled) > 0 && sampled.polls.iter().any(|poll| poll.ns.is_some()));
        assert!(sampled.wakeups.iter().any(|wakeup| wakeup.count > 1));
    });
}

/// The bytes come from the socket's own counters, and its last read is always examined.
#[test]
fn bytes_of_a_closed_connection_are_exact_although_its_reads_are_sampled() {
    in_own_netns(|| {
        let mut reader = Reader::start("recv", 1);
        let mut tracer = Tracer::attach(few());
        send(at(reader.port), 30_000_017);
        assert_eq!(reader.said("read"), 30_000_017);
        let attribution = tracer.read().unwrap();
        assert_eq!(bytes(&attribution, reader.tgid()), 30_000_017);
        let reads = attribution.sampling.reads;
        assert!(reads.examined < reads.events, "{reads:?}");
    });
}

#[test]
fn without_sampling_each_event_is_examined() {
    in_own_netns(|| {
        let (_, _, attribution) = ping(Options::exact(), 1_000);
        let sampling = attribution.sampling;
        assert!(sampling.reads.is_complete() && sampling.softirqs.is_complete(), "{sampling:?}");
        assert!(sampling.reads.events >= 2_002, "{sampling:?}");
    });
}

#[test]
fn the_cost_of_counting_is_known() {
    in_own_netns(|| {
        let (_, _, attribution) = ping(Options::default(), 1_000);
        let cost = attribution.cost.unwrap();
        // two reads and two softirqs for each datagram, some tens of ns each
        assert!(cost.ns > 50_000, "{cost:?}");
    });
}
