//! CPU time and waiting time of this machine between two moments.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// Microseconds of the unit of `/proc/stat` (`USER_HZ` is 100).
const TICK_US: f64 = 10_000.0;

/// Counters at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    at: Instant,
    busy_us: f64,
    waited_us: f64,
}

/// What was used between two moments, per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Passed {
    /// CPU time of all CPUs, in microseconds.
    pub(crate) busy_us: f64,
    /// Time that the threads waited in run queues, in microseconds.
    pub(crate) waited_us: f64,
}

impl Times {
    /// Reads the CPU time of the whole machine, and the waiting times of these processes' threads.
    pub(crate) fn read(pids: &[u32]) -> Result<Self> {
        let stat = std::fs::read_to_string("/proc/stat").context("/proc/stat")?;
        let at = Instant::now();
        let busy_us = busy_ticks(&stat).context("/proc/stat has no row of all CPUs")? * TICK_US;
        let waited_us = pids.iter().map(|pid| waited_us(*pid)).sum::<Result<f64>>()?;
        Ok(Self { at, busy_us, waited_us })
    }

    /// What was used since an earlier moment.
    pub(crate) fn since(&self, before: &Self) -> Passed {
        let seconds = (self.at - before.at).max(Duration::from_millis(1)).as_secs_f64();
        Passed {
            busy_us: (self.busy_us - before.busy_us) / seconds,
            waited_us: (self.waited_us - before.waited_us) / seconds,
        }
    }
}

/// Share of a CPU that other programs may use while a veth is measured.
const QUIET: f64 = 0.1;

/// How long to wait for a quiet machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// How many CPUs of this machine are busy, over a second.
pub(crate) fn busy_cpus() -> Result<f64> {
    let before = Times::read(&[])?;
    std::thread::sleep(Duration::from_secs(1));
    Ok(Times::read(&[])?.since(&before).busy_us / 1e6)
}

/// Waits until this machine has done nothing for a second, because times measured during other work
/// mean nothing.
pub(crate) fn until_quiet() -> Result<()> {
    let begun = Instant::now();
    loop {
        let cpus = busy_cpus()?;
        if cpus <= QUIET {
            return Ok(());
        }
        ensure!(
            begun.elapsed() < PATIENCE,
            "other programs use {:.0}% of a CPU: what is measured now means nothing",
            cpus * 100.0
        );
    }
}

/// A process and its children.
pub(crate) fn family(pid: u32) -> Vec<u32> {
    let children = format!("/proc/{pid}/task/{pid}/children");
    let children = std::fs::read_to_string(children).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    [pid].into_iter().chain(children).collect()
}

/// User, nice, system, irq and softirq time of all CPUs together.
fn busy_ticks(stat: &str) -> Option<f64> {
    let row = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let cells: Vec<f64> = row.split_whitespace().filter_map(|cell| cell.parse().ok()).collect();
    (cells.len() >= 7).then(|| [0, 1, 2, 5, 6].iter().map(|at| cells[*at]).sum())
}

/// The second number of `schedstat` of each thread.
fn waited_us(pid: u32) -> Result<f64> {
    let tasks = format!("/proc/{pid}/task");
    let mut waited = 0.0;
    for task in Path::new(&tasks).read_dir().with_context(|| tasks.clone())? {
        // A thread may end meanwhile.
        let text = std::fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        let ns = text.split_whitespace().nth(1).and_then(|ns| ns.parse::<f64>().ok());
        waited += ns.unwrap_or(0.0) / 1e3;
    }
    Ok(waited)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_and_what_the_hypervisor_took_are_not_busy() {
        let stat = "cpu  1 2 4 100 100 8 16 100 0 0\ncpu0 9 9 9 9 9 9 9 9 9 9\n";
        assert_eq!(busy_ticks(stat), Some(31.0));
        assert_eq!(busy_ticks("cpu0 1 2 3\n"), None);
    }

    #[test]
    fn times_of_this_process_are_read() {
        let pid = std::process::id();
        assert_eq!(family(pid)[0], pid);
        let before = Times::read(&[pid]).unwrap();
        let passed = Times::read(&[pid]).unwrap().since(&before);
        assert!(passed.busy_us >= 0.0 && passed.waited_us >= 0.0, "{passed:?}");
    }
}
