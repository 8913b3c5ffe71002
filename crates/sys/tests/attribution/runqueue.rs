//! Compares the readers' waits for a CPU with the kernel's own statistics of each thread
//! (`/proc/PID/task/TID/schedstat`).
//!
//! The program counts readers of the whole machine, including those of other tests. So the kernel's
//! number is a lower bound.

use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use netsilo_model::snapshot::attribution::Attribution;
use netsilo_model::snapshot::runqueue::{QUANTITY, RunqueueLatency};
use netsilo_sys::bpf::tracer::{Options, Tracer};
use rustix::thread::{CpuSet, sched_getaffinity};

use super::at;
use super::in_own_netns;
use super::reader::Reader;

fn options() -> Options {
    Options { runqueue: true, ..Options::exact() }
}

/// Pins these threads to one CPU, or sets another policy.
fn run_command(arguments: &[&str]) {
    let output = Command::new(arguments[0]).args(&arguments[1..]).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Nanoseconds that a process's threads have waited on run queues, and how often they were
/// scheduled.
fn account(tgid: u32) -> [u64; 2] {
    let mut sums = [0; 2];
    for task in std::fs::read_dir(format!("/proc/{tgid}/task")).unwrap() {
        let text = std::fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap();
        let words: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
        sums[0] += words[1];
        sums[1] += words[2];
    }
    sums
}

fn grown(tgid: u32, before: [u64; 2]) -> [u64; 2] {
    let now = account(tgid);
    [now[0] - before[0], now[1] - before[1]]
}

/// Sends datagrams, each after the answer to the previous one. The sender is busy for a while
/// before it waits.
fn ask(reader: &Reader, times: usize, busy: Duration) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    for _ in 0..times {
        socket.send_to(&[0; 100], at(reader.port)).unwrap();
        let sent = Instant::now();
        while sent.elapsed() < busy {}
        socket.recv(&mut []).unwrap();
    }
}

fn latency(tracer: &mut Tracer) -> RunqueueLatency {
    read(tracer).runqueue_latency.unwrap()
}

fn read(tracer: &mut Tracer) -> Attribution {
    let attribution = tracer.read().unwrap();
    let hooks: Vec<_> = attribution.hooks.iter().filter(|hook| hook.quantity == QUANTITY).collect();
    assert!(hooks.len() == 2 && hooks.iter().all(|hook| hook.refused.is_none()), "{hooks:#?}");
    attribution
}

/// The reader may run on one CPU only. On that CPU, a non-preemptible thread sends to it and stays
/// for two milliseconds.
#[test]
fn a_delayed_reader_waits_as_often_and_as_long_as_schedstat_reports() {
    in_own_netns(|| {
        let reader = Reader::start("udp-unconnected", 65536);
        let mine = sched_getaffinity(None).unwrap();
        let cpu = (0..CpuSet::MAX_CPU).find(|cpu| mine.is_set(*cpu)).unwrap().to_string();
        let [pid, sender] = [reader.tgid().to_string(), rustix::thread::gettid().to_string()];
        run_command(&["taskset", "--all-tasks", "--pid", "--cpu-list", &cpu, &pid]);
        run_command(&["taskset", "--pid", "--cpu-list", &cpu, &sender]);
        run_command(&["chrt", "--fifo", "--pid", "1", &sender]);
        let mut tracer = Tracer::attach(options());
        // the reader is tracked from its first read
        ask(&reader, 10, Duration::ZERO);
        latency(&mut tracer);
        let before = account(reader.tgid());
        ask(&reader, 50, Duration::from_millis(2));
        let [waited_ns, waits] = grown(reader.tgid(), before);
        let attribution = read(&mut tracer);
        let (latency, lost) = (attribution.runqueue_latency.unwrap(), attribution.lost_events);
        let summary = format!("{waits} waits of {waited_ns} ns in all, {lost} lost: {latency:?}");
        assert!(waits >= 50 && latency.count() + lost >= waits, "{summary}");
        let sum_ns: u64 = latency.waits.iter().map(|(shortest, count)| shortest * count).sum();
        assert!(sum_ns >= waited_ns / 10 * 9, "{summary}");
        // The bucket of two milliseconds starts below. A datagram that waits for ksoftirqd is
        // delivered at the next tick, so its reader waits for a shorter time.
        let long: u64 = latency.waits.range(1_900_000..).map(|(_, count)| count).sum();
        assert!(long >= 45, "{summary}");
    });
}

#[test]
fn no_wait_is_counted_in_a_pause() {
    in_own_netns(|| {
        let reader = Reader::start("udp-unconnected", 65536);
        let mut tracer = Tracer::attach(options());
        ask(&reader, 10, Duration::ZERO);
        tracer.pause();
        latency(&mut tracer);
        ask(&reader, 100, Duration::ZERO);
        assert_eq!(latency(&mut tracer).count(), 0);
        tracer.resume();
        let before = account(reader.tgid());
        ask(&reader, 100, Duration::ZERO);
        let [_, waits] = grown(reader.tgid(), before);
        assert!(waits > 0 && latency(&mut tracer).count() >= waits * 19 / 20);
    });
}

#[test]
fn nothing_is_hooked_unless_requested() {
    in_own_netns(|| {
        let attribution = Tracer::attach(Options::exact()).read().unwrap();
        assert!(attribution.hooks.iter().all(|hook| hook.quantity != QUANTITY));
        assert_eq!(attribution.runqueue_latency, None);
    });
}
