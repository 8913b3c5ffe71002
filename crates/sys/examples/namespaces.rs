//! Prints what one look at many network namespaces costs: CPU time, and memory at its peak.
//!
//!     namespaces 1000 10    makes 1,000 namespaces, looks 10 times, and removes them
//!
//! A namespace has a loopback device that is up, a UDP socket and a listener.
#![allow(clippy::print_stdout, reason = "an example speaks to its user")]

use std::error::Error;
use std::fs::File;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsFd as _;
use std::process::Command;
use std::time::{Duration, Instant};

use netsilo_model::snapshot::namespaces::Namespaces;
use netsilo_sys::files::root::Root;
use netsilo_sys::read::namespaces::read;
use netsilo_trial::stats::median;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use rustix::time::{ClockId, clock_gettime};

/// Namespaces that end with this value.
struct Made {
    names: Vec<String>,
    sockets: Vec<(UdpSocket, TcpListener)>,
}

impl Made {
    fn new(count: usize) -> Result<Self, Box<dyn Error>> {
        let mut made = Self { names: Vec::new(), sockets: Vec::new() };
        for at in 0..count {
            let name = format!("netsilo-cost-{}-{at}", std::process::id());
            ip(&["netns", "add", &name])?;
            made.names.push(name.clone());
            ip(&["-n", &name, "link", "set", "lo", "up"])?;
            let file = File::open(format!("/run/netns/{name}"))?;
            let sockets = std::thread::spawn(move || -> Result<_, std::io::Error> {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok((UdpSocket::bind("127.0.0.1:53")?, TcpListener::bind("127.0.0.1:80")?))
            });
            made.sockets.push(sockets.join().map_err(|_| "a thread panicked")??);
        }
        Ok(made)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        self.sockets.clear();
        for name in &self.names {
            _ = ip(&["netns", "del", name]);
        }
    }
}

fn ip(words: &[&str]) -> Result<(), Box<dyn Error>> {
    let done = Command::new("ip").args(words).status()?.success();
    if done { Ok(()) } else { Err(format!("ip {words:?} failed").into()) }
}

fn cpu_time() -> Result<Duration, Box<dyn Error>> {
    Ok(Duration::try_from(clock_gettime(ClockId::ProcessCPUTime))?)
}

/// The largest resident size so far, in KiB.
fn peak() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1).map(|word| word.parse::<usize>());
    let count = words.next().ok_or("how many namespaces?")??;
    let looks = words.next().unwrap_or(Ok(10))?;
    let _made = Made::new(count)?;
    let (root, before) = (Root::live(), peak()?);
    let (mut cpu, mut took, mut last) = (Vec::new(), Vec::new(), Namespaces::default());
    for _ in 0..looks {
        let (started, used) = (Instant::now(), cpu_time()?);
        let now = read(&root, None);
        cpu.push((cpu_time()? - used).as_secs_f64() * 1e3);
        took.push(started.elapsed().as_secs_f64() * 1e3);
        // the last one is kept, as the snapshot before an interval is
        last = now.value().ok_or("not read")?.clone();
    }
    let counted = last.all.iter().filter(|it| it.counters.value().is_some()).count();
    println!("{counted} of {} namespaces read, {looks} looks", last.all.len());
    let cpu = median(&cpu).ok_or("no look")?;
    println!(
        "CPU time of a look: {cpu:.0} ms, {:.0} us for each namespace",
        cpu * 1e3 / count as f64
    );
    println!("time of a look: {:.0} ms", median(&took).ok_or("no look")?);
    println!("memory at the peak: {} KiB more than before", peak()? - before);
    println!("JSON in a bundle: {} KiB", serde_json::to_vec(&last)?.len() >> 10);
    Ok(())
}
