//! Prints the cost per event of each eBPF program, by the kernel's own statistics, under external
//! traffic.
//!
//!     cost 5           for 5 seconds
//!     cost 5 stages    also sampling stages
//!     cost 5 arrivals  also flows by rx queue
//!     cost 5 runqueue  also waits of readers
//!     cost 5 exact     without sampling
#![allow(clippy::print_stdout, reason = "an example speaks to its user")]

use std::error::Error;
use std::time::Duration;

use netsilo_sys::bpf::statistics::Statistics;
use netsilo_sys::bpf::tracer::{Options, Tracer};

fn main() -> Result<(), Box<dyn Error>> {
    let seconds: f64 = std::env::args().nth(1).ok_or("for how many seconds?")?.parse()?;
    let asked = |what: &str| std::env::args().skip(2).any(|word| word == what);
    let (stages, arrivals, runqueue) = (asked("stages"), asked("arrivals"), asked("runqueue"));
    let sampling = if asked("exact") { Options::exact() } else { Options::default() };
    let options = Options { stages, arrivals, runqueue, ..sampling };
    let statistics = Statistics::enable()?;
    let mut tracer = Tracer::attach(options);
    let before = statistics.runs();
    std::thread::sleep(Duration::from_secs_f64(seconds));
    println!("{:<28} {:>10} {:>8} {:>10}", "program", "events", "ns each", "% of a cpu");
    for runs in statistics.since(&before) {
        let (each, share) = (runs.ns / runs.count, runs.ns as f64 / seconds / 1e7);
        println!("{:<28} {:>10} {each:>8} {share:>10.3}", runs.name, runs.count);
    }
    let attribution = tracer.read()?;
    println!("{} events lost, {:?}", attribution.lost_events, attribution.sampling);
    Ok(())
}
