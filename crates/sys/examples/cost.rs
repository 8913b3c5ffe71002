//! Prints the cost per event of each eBPF program, by the kernel's own statistics, under external
//! traffic.
//!
//!     cost 5           for 5 seconds
//!     cost 5 stages    also sampling stages
//!     cost 5 arrivals  also flows by rx queue
//!     cost 5 runqueue  also waits of readers
#![allow(clippy::print_stdout, reason = "an example speaks to its user")]

use std::collections::BTreeMap;
use std::error::Error;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

use libbpf_rs::query::ProgInfoIter;
use netsilo_sys::bpf::tracer::{Options, Tracer};

fn main() -> Result<(), Box<dyn Error>> {
    let seconds: f64 = std::env::args().nth(1).ok_or("for how many seconds?")?.parse()?;
    let asked = |what: &str| std::env::args().skip(2).any(|word| word == what);
    let (stages, arrivals, runqueue) = (asked("stages"), asked("arrivals"), asked("runqueue"));
    let options = Options { stages, arrivals, runqueue, ..Options::default() };
    let others: Vec<u32> = ProgInfoIter::default().map(|program| program.id).collect();
    let _statistics = enable()?;
    let mut tracer = Tracer::attach(options);
    let before = runs(&others);
    std::thread::sleep(Duration::from_secs_f64(seconds));
    println!("{:<28} {:>10} {:>8} {:>10}", "program", "events", "ns each", "% of a cpu");
    for (id, (name, time, count)) in runs(&others) {
        let (_, time_before, count_before) = before.get(&id).cloned().unwrap_or_default();
        let (time, count) = (time - time_before, count - count_before);
        if let Some(each) = time.checked_div(count) {
            println!("{name:<28} {count:>10} {each:>8} {:>10.3}", time as f64 / seconds / 1e7);
        }
    }
    println!("{} events lost", tracer.read()?.lost_events);
    Ok(())
}

/// Name, nanoseconds and runs of each program, except these ids.
fn runs(others: &[u32]) -> BTreeMap<u32, (String, u64, u64)> {
    let ours = ProgInfoIter::default().filter(|program| !others.contains(&program.id));
    ours.map(|p| (p.id, (p.name.to_string_lossy().into_owned(), p.run_time_ns, p.run_cnt)))
        .collect()
}

/// Enables the kernel's statistics while the descriptor is open.
fn enable() -> Result<OwnedFd, std::io::Error> {
    // SAFETY: takes a number, returns a descriptor or an error.
    #[allow(unsafe_code)]
    let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened and has no other owner.
    #[allow(unsafe_code)]
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
