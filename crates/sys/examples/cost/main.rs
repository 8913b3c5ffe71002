//! Prints the cost per event of each eBPF program, by the kernel's own statistics, under external
//! traffic.
//!
//!     cost 5                 for 5 seconds
//!     cost 5 stages          also sampling stages
//!     cost 5 arrivals        also flows by rx queue
//!     cost 5 runqueue        also waits of readers
//!     cost 5 drops           also dropped packets
//!     cost 5 ip-packets      also IP packets that enter and leave, and reads of raw sockets
//!     cost 5 packet-sockets  also packet sockets: an event is an open file
//!     cost 5 exact           without sampling
//!     cost 5 tracepoints     without fentry and kprobes
//!
//! With a load of its own, in a network namespace of its own:
//!
//!     cost 5 drops flood=100000  an nftables rule drops 100,000 packets per second
//!     cost 5 drops flood to-socket  as fast as possible, to a socket that nobody reads
//!     cost 0.5 flood pairs=40    CPU time of a dropped packet in slices of half a second with and
//!                                without programs, without the kernel's statistics
#![allow(clippy::print_stdout, reason = "an example speaks to its user")]

mod flood;

use std::error::Error;
use std::thread::sleep;
use std::time::{Duration, Instant};

use netsilo_sys::bpf::statistics::Statistics;
use netsilo_sys::bpf::tracer::{Options, Tracer};
use netsilo_trial::stats::{median, signed_rank};

use crate::flood::Flood;

/// Probability that an interval does not contain the true value.
const DOUBT: f64 = 0.05;
/// Time from attaching programs to the beginning of a slice.
const SETTLE: Duration = Duration::from_millis(100);

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let seconds: f64 = words.first().ok_or("for how many seconds?")?.parse()?;
    let time = Duration::from_secs_f64(seconds);
    let asked = |what: &str| words.iter().any(|word| word == what);
    let number = |what: &str| words.iter().find_map(|word| word.strip_prefix(what));
    let per_s = number("flood=").map_or(Ok(0), str::parse)?;
    let flood = words
        .iter()
        .any(|word| word.starts_with("flood"))
        .then(|| Flood::start(per_s, asked("to-socket")))
        .transpose()?;
    if let Some(pairs) = number("pairs=") {
        return compare(&flood.ok_or("pairs of what? add flood")?, pairs.parse()?, time);
    }
    let sampling = if asked("exact") { Options::exact() } else { Options::default() };
    let options = Options {
        stages: asked("stages"),
        arrivals: asked("arrivals"),
        runqueue: asked("runqueue"),
        drops: asked("drops"),
        ip_packets: asked("ip-packets"),
        packet_sockets: asked("packet-sockets"),
        only_tracepoints: asked("tracepoints"),
        ..sampling
    };
    let statistics = Statistics::enable()?;
    let mut tracer = Tracer::attach(options);
    let (before, sent_before, start) =
        (statistics.runs(), flood.as_ref().map(Flood::sent), Instant::now());
    sleep(time);
    let (sent, elapsed) = (flood.as_ref().map(Flood::sent), start.elapsed().as_secs_f64());
    // Its programs run when it is read.
    let attribution = tracer.read()?;
    println!("{:<28} {:>10} {:>8} {:>10}", "program", "events", "ns each", "% of a cpu");
    for runs in statistics.since(&before) {
        let (each, share) = (runs.ns / runs.count, runs.ns as f64 / elapsed / 1e7);
        println!("{:<28} {:>10} {each:>8} {share:>10.3}", runs.name, runs.count);
    }
    if let (Some(sent), Some(before)) = (sent, sent_before) {
        println!("{:.0} packets per second sent", (sent - before) as f64 / elapsed);
    }
    let dropped: u64 = attribution.drops.iter().map(|row| row.packets).sum();
    println!("{} events lost, {:?}", attribution.lost_events, attribution.sampling);
    println!("{dropped} packets dropped, in {} rows", attribution.drops.len());
    Ok(())
}

/// Prints how much more CPU time a dropped packet takes with programs than without.
fn compare(flood: &Flood, pairs: usize, slice: Duration) -> Result<(), Box<dyn Error>> {
    let none = Options { time: false, containers: false, forwarding: false, ..Options::default() };
    let drops = Options { drops: true, ..none };
    let settings = [
        ("nothing, again", None, None),
        ("polls and reads", None, Some(none)),
        ("drops, in addition to polls and reads", Some(none), Some(drops)),
        ("all of netsilo check", None, Some(Options::of_check())),
    ];
    println!("{pairs} pairs of {slice:?}, medians, intervals by signed ranks (95 %)");
    let mut rng = fastrand::Rng::with_seed(1);
    for (name, without, with) in settings {
        let mut tracers = [without, with].map(|options| {
            let mut tracer = Tracer::attach(options?);
            tracer.pause();
            Some(tracer)
        });
        let mut costs = [Vec::new(), Vec::new()];
        for _ in 0..pairs {
            let first = usize::from(rng.bool());
            for side in [first, 1 - first] {
                if let Some(tracer) = &mut tracers[side] {
                    tracer.resume();
                }
                sleep(SETTLE);
                costs[side].push(flood.cpu_ns_of_a_packet(slice));
                if let Some(tracer) = &mut tracers[side] {
                    tracer.read()?;
                    tracer.pause();
                }
            }
        }
        let [without, with] = &costs;
        let ratios: Vec<f64> = without.iter().zip(with).map(|(a, b)| (b / a).ln()).collect();
        let differences: Vec<f64> = without.iter().zip(with).map(|(a, b)| b - a).collect();
        let percent = signed_rank::interval(&ratios, DOUBT)
            .map(|it| it.map(|ratio| (ratio.exp() - 1.0) * 100.0))
            .ok_or("too few pairs")?;
        let ns = signed_rank::interval(&differences, DOUBT).ok_or("too few pairs")?;
        println!(
            "{name:<40} {:.0} ns, {:+.0} ns ({:+.0} .. {:+.0}), {:+.1} % ({:+.1} .. {:+.1})",
            median(without).unwrap_or_default(),
            ns.value,
            ns.low,
            ns.high,
            percent.value,
            percent.low,
            percent.high
        );
    }
    Ok(())
}
