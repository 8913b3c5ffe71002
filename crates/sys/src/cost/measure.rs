//! Measures communication between CPU pairs: cache line transfer, thread wakeup, IPI.
//!
//! [`netsilo_model::cost::calibration`] selects the pairs and interprets the samples. No setting of
//! the machine is changed. Each measuring thread is pinned, runs for a few milliseconds, and ends.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{io, thread};

use netsilo_model::cost::calibration::{self, Calibration, Measured, Wakeup, evenly};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::topology::{Distance, Topology};
use netsilo_trial::stats;
use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{ClockId, clock_gettime};

use crate::transaction::kernel::{allowed_cpus, set_thread_cpus};

/// Rounds over all pairs in the given time. A busy machine gets as many again.
const ROUNDS: usize = 5;

/// Cache line round trips between two clock reads.
const TRIPS: u64 = 100;

/// How long the waker sleeps before each wakeup. By then the sleeper is asleep and its CPU is idle.
const SETTLE: Duration = Duration::from_micros(60);

/// Why a machine could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// The process's CPU affinity cannot be read.
    #[error("cannot read this process's cpu affinity: {0}")]
    Allowed(io::Error),
    /// No CPU may be measured on.
    #[error(
        "no cpu may be used: {allowed} are allowed, and those not isolated (isolcpus, nohz_full) \
         are {housekeeping}"
    )]
    NoCpu {
        /// The CPUs that this process may run on.
        allowed: CpuSet,
        /// The CPUs that are online and not isolated.
        housekeeping: CpuSet,
    },
    /// A measuring thread could not be pinned to its CPU.
    #[error("cannot run on cpu {cpu}: {source}")]
    Pin {
        /// The CPU.
        cpu: CpuId,
        /// The kernel's error.
        source: io::Error,
    },
    /// An eventfd could not be created or used.
    #[error("cannot measure wakeups: {0}")]
    EventFd(io::Error),
}

/// The CPUs to measure on: allowed for this process, online and not isolated.
pub fn usable_cpus(topology: &Topology) -> Result<CpuSet, CalibrateError> {
    let status =
        std::fs::read_to_string("/proc/thread-self/status").map_err(CalibrateError::Allowed)?;
    let mask = allowed_cpus(&status).map_err(CalibrateError::Allowed)?;
    let allowed =
        CpuSet::parse_mask(&mask).map_err(|e| CalibrateError::Allowed(io::Error::other(e)))?;
    let housekeeping = topology.housekeeping();
    let cpus = allowed.and(&housekeeping);
    if cpus.is_empty() { Err(CalibrateError::NoCpu { allowed, housekeeping }) } else { Ok(cpus) }
}

/// Measures a few pairs of CPUs of each distance for about `time`. Takes twice as long if the
/// values vary widely.
///
/// `watch` receives the share of the time that has passed.
pub fn calibrate(
    topology: &Topology,
    cpus: &CpuSet,
    time: Duration,
    watch: &mut dyn FnMut(f64),
) -> Result<Calibration, CalibrateError> {
    let all: Vec<CpuId> = cpus.iter().collect();
    let mut pairs = calibration::pairs(topology, cpus);
    pairs.insert(
        Distance::SameCpu,
        evenly(&all, calibration::PAIRS).into_iter().map(|cpu| (cpu, cpu)).collect(),
    );
    let slots: usize = pairs.iter().map(|(distance, pairs)| pairs.len() * kinds(*distance)).sum();
    let slot = time / (ROUNDS * slots).max(1) as u32;
    let mut samples = Samples::default();
    let mut calibration = Calibration::default();
    let start = Instant::now();
    for half in 0..2 {
        for round in 0..ROUNDS {
            // If threads wait long for their CPU, slots take longer than planned. So stop early,
            // but after at least one round.
            if round > 0 && start.elapsed() > time * (half as u32 + 1) {
                break;
            }
            watch((half * ROUNDS + round) as f64 / (2 * ROUNDS) as f64);
            samples.round(&pairs, slot)?;
        }
        calibration = samples.sum(&pairs);
        if !calibration.is_wide() {
            break;
        }
    }
    watch(1.0);
    Ok(calibration)
}

/// Number of quantities measured at a distance. Within one CPU there is no transfer.
fn kinds(distance: Distance) -> usize {
    if distance == Distance::SameCpu { 1 } else { 3 }
}

/// Medians of the slots, in nanoseconds.
#[derive(Debug, Default)]
struct Samples {
    transfer: BTreeMap<Distance, Vec<f64>>,
    waker: BTreeMap<Distance, Vec<f64>>,
    latency: BTreeMap<Distance, Vec<f64>>,
    interrupted: BTreeMap<Distance, Vec<f64>>,
}

impl Samples {
    /// Measures each pair once.
    fn round(
        &mut self,
        pairs: &BTreeMap<Distance, Vec<(CpuId, CpuId)>>,
        slot: Duration,
    ) -> Result<(), CalibrateError> {
        for (distance, pairs) in pairs {
            for &(a, b) in pairs {
                if *distance != Distance::SameCpu {
                    self.transfer
                        .entry(*distance)
                        .or_default()
                        .extend(median(transfers(a, b, slot)?));
                    self.interrupted
                        .entry(*distance)
                        .or_default()
                        .extend(median(interrupts(a, b, slot)?));
                }
                let (waker, latency) = wakeups(a, b, slot)?;
                self.waker.entry(*distance).or_default().extend(median(waker));
                self.latency.entry(*distance).or_default().extend(median(latency));
            }
        }
        Ok(())
    }

    fn sum(&self, pairs: &BTreeMap<Distance, Vec<(CpuId, CpuId)>>) -> Calibration {
        let sum = |all: &BTreeMap<Distance, Vec<f64>>, distance: Distance| {
            measured(all.get(&distance)?, pairs.get(&distance)?.len())
        };
        let transfer = |distance: &Distance| Some((*distance, sum(&self.transfer, *distance)?));
        let wakeup = |distance: &Distance| {
            let (waker, latency) = (sum(&self.waker, *distance)?, sum(&self.latency, *distance)?);
            Some((*distance, Wakeup { waker, latency }))
        };
        let interrupted =
            |distance: &Distance| Some((*distance, sum(&self.interrupted, *distance)?));
        Calibration {
            transfer: pairs.keys().filter_map(transfer).collect(),
            wakeup: pairs.keys().filter_map(wakeup).collect(),
            interrupted: pairs.keys().filter_map(interrupted).collect(),
        }
    }
}

/// Summarizes samples in nanoseconds, one per pair and round. Returns `None` if there are none.
fn measured(samples: &[f64], pairs: usize) -> Option<Measured> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let quartile = |share| stats::quantile(&sorted, share);
    let (low, median_ns, high) = (quartile(0.25)?, quartile(0.5)?, quartile(0.75)?);
    let rounds = sorted.len() / pairs.max(1);
    Some(Measured { median_ns, spread_ns: high - low, pairs, rounds })
}

fn median(mut samples: Vec<f64>) -> Option<f64> {
    samples.sort_unstable_by(f64::total_cmp);
    stats::quantile(&samples, 0.5)
}

/// Two cache lines wide, because x86 prefetches the adjacent line.
#[repr(align(128))]
struct Line(AtomicU64);

/// Nanoseconds for one transfer of a modified line, one value per batch.
///
/// A transfer is half a round trip, in which each side waits for the other's write.
fn transfers(a: CpuId, b: CpuId, slot: Duration) -> Result<Vec<f64>, CalibrateError> {
    let (line, over) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let start = Barrier::new(2);
    thread::scope(|scope| {
        let answerer = scope.spawn(|| {
            let pinned = pin(b);
            start.wait();
            // No pause instruction: it takes as long as a transfer, and in a virtual machine it may
            // exit to the host. The end flag has its own line, because a late answer would
            // overwrite it.
            while pinned.is_ok() {
                match line.0.load(Ordering::Acquire) {
                    n if n % 2 == 1 => line.0.store(n + 1, Ordering::Release),
                    _ if over.0.load(Ordering::Acquire) == 1 => break,
                    _ => {}
                }
            }
            pinned
        });
        let asker = scope.spawn(|| {
            let pinned = pin(a);
            start.wait();
            let batches = if pinned.is_ok() { play(&line, slot) } else { Vec::new() };
            over.0.store(1, Ordering::Release);
            pinned.map(|()| batches)
        });
        let batches = joined(asker)?;
        joined(answerer)?;
        Ok(batches)
    })
}

/// Sends and waits for the answer, in batches, until the slot is over.
fn play(line: &Line, slot: Duration) -> Vec<f64> {
    let end = Instant::now() + slot;
    let mut batches = Vec::new();
    let mut n = 0;
    loop {
        let start = Instant::now();
        let mut spins = 0u32;
        for _ in 0..TRIPS {
            line.0.store(n + 1, Ordering::Release);
            n += 2;
            while line.0.load(Ordering::Acquire) != n {
                spins = spins.wrapping_add(1);
                // The other side may be descheduled repeatedly and for long.
                if spins.is_multiple_of(1 << 16) && Instant::now() > end {
                    return batches;
                }
            }
        }
        batches.push(start.elapsed().as_nanos() as f64 / (2 * TRIPS) as f64);
        if Instant::now() > end {
            return batches;
        }
    }
}

/// Nanoseconds for a thread on `a` to wake a thread that sleeps on `b`.
///
/// Returns the waker's CPU time per wakeup, and the latency until the sleeper runs.
fn wakeups(a: CpuId, b: CpuId, slot: Duration) -> Result<(Vec<f64>, Vec<f64>), CalibrateError> {
    let counter =
        || eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| CalibrateError::EventFd(e.into()));
    let (call, answer) = (counter()?, counter()?);
    let (awake, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let begin = Instant::now();
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let pinned = pin(b).and_then(|()| give_way().map_err(CalibrateError::EventFd));
            // Answers even if pinning failed, so that the waker ends.
            loop {
                let woken = take(&call);
                awake.store(begin.elapsed().as_nanos() as u64, Ordering::Release);
                let answered = woken.and_then(|()| add(&answer));
                if over.load(Ordering::Acquire) || answered.is_err() {
                    return pinned.and(answered.map_err(CalibrateError::EventFd));
                }
            }
        });
        let waker = scope.spawn(|| {
            let pinned = pin(a);
            let samples = pinned.and_then(|()| {
                wake(&call, &answer, &awake, begin, slot).map_err(CalibrateError::EventFd)
            });
            over.store(true, Ordering::Release);
            // The last call. If it fails, the sleeper's result reports it.
            let _ = add(&call);
            samples
        });
        let samples = joined(waker)?;
        joined(sleeper)?;
        Ok(samples)
    })
}

/// Wakes the sleeper repeatedly until the slot is over.
fn wake(
    call: &OwnedFd,
    answer: &OwnedFd,
    awake: &AtomicU64,
    begin: Instant,
    slot: Duration,
) -> io::Result<(Vec<f64>, Vec<f64>)> {
    let end = Instant::now() + slot;
    let (mut waker, mut latency) = (Vec::new(), Vec::new());
    while Instant::now() < end {
        thread::sleep(SETTLE);
        let called = begin.elapsed().as_nanos() as u64;
        let before = cpu_time();
        add(call)?;
        let after = cpu_time();
        take(answer)?;
        waker.push(after.saturating_sub(before).as_nanos() as f64);
        latency.push(awake.load(Ordering::Acquire).saturating_sub(called) as f64);
    }
    Ok((waker, latency))
}

/// Nanoseconds that an inter-processor interrupt from `a` takes from a thread that runs on `b`.
///
/// Empty if the kernel sends no IPI for this process. `membarrier` interrupts each CPU that runs a
/// thread of this process, and its handler does almost nothing. A thread on `b` reads the clock
/// continuously. The sample is the gap between two readings, beyond the usual one.
fn interrupts(a: CpuId, b: CpuId, slot: Duration) -> Result<Vec<f64>, CalibrateError> {
    let (gap, over, start) = (AtomicU64::new(0), AtomicBool::new(false), Barrier::new(2));
    thread::scope(|scope| {
        let interrupted = scope.spawn(|| {
            let pinned = pin(b);
            start.wait();
            if pinned.is_ok() {
                watch_the_clock(&gap, &over);
            }
            pinned
        });
        let interrupter = scope.spawn(|| {
            let pinned = pin(a);
            start.wait();
            let gaps = if pinned.is_ok() { interrupt(&gap, slot) } else { Vec::new() };
            over.store(true, Ordering::Release);
            pinned.map(|()| gaps)
        });
        let gaps = joined(interrupter)?;
        joined(interrupted)?;
        Ok(gaps)
    })
}

/// Records the longest time between two clock readings since `gap` was last set to 0.
fn watch_the_clock(gap: &AtomicU64, over: &AtomicBool) {
    let mut last = Instant::now();
    while !over.load(Ordering::Acquire) {
        let now = Instant::now();
        let passed = (now - last).as_nanos() as u64;
        if passed > gap.load(Ordering::Acquire) {
            gap.store(passed, Ordering::Release);
        }
        last = now;
    }
}

/// Repeatedly takes the longest gap with an interrupt, minus the longest gap in about the same time
/// without one.
fn interrupt(gap: &AtomicU64, slot: Duration) -> Vec<f64> {
    let longest = |action: &dyn Fn() -> bool| {
        gap.store(0, Ordering::Release);
        let done = action();
        let end = Instant::now() + Duration::from_micros(2);
        while Instant::now() < end {}
        done.then(|| gap.load(Ordering::Acquire) as f64)
    };
    let end = Instant::now() + slot;
    let mut gaps = Vec::new();
    if !membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) {
        return gaps;
    }
    while Instant::now() < end {
        let quiet = longest(&|| true);
        let Some((with, without)) =
            longest(&|| membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)).zip(quiet)
        else {
            return Vec::new();
        };
        // 0 if the other thread was descheduled: then there was no thread to interrupt.
        if with > 0.0 && without > 0.0 {
            gaps.push((with - without).max(0.0));
        }
    }
    gaps
}

/// Calls `membarrier`. Returns false if the kernel lacks it or does not allow it.
fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the system call takes three numbers and accesses no memory of this process.
    #[allow(unsafe_code)]
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    result == 0
}

/// CPU time of the calling thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

fn add(counter: &OwnedFd) -> io::Result<()> {
    rustix::io::write(counter, &1u64.to_ne_bytes())?;
    Ok(())
}

fn take(counter: &OwnedFd) -> io::Result<()> {
    rustix::io::read(counter, &mut [0; 8])?;
    Ok(())
}

fn pin(cpu: CpuId) -> Result<(), CalibrateError> {
    let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    set_thread_cpus(thread, &CpuSet::from_cpu(cpu))
        .map_err(|source| CalibrateError::Pin { cpu, source })
}

/// Sets `SCHED_BATCH`. A woken thread with this policy does not preempt its waker
/// (`check_preempt_wakeup_fair`).
///
/// With the default policy, the waker's time would include a context switch when both run on one
/// CPU.
fn give_way() -> io::Result<()> {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads one sched_param, which outlives the call.
    #[allow(unsafe_code)]
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const priority) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A thread's result; propagates its panic.
fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::root::Root;

    #[test]
    fn one_slow_sample_does_not_move_the_median() {
        let quiet = measured(&[100.0, 102.0, 101.0, 99.0, 9000.0], 5).unwrap();
        assert_eq!((quiet.median_ns, quiet.spread_ns, quiet.rounds), (101.0, 2.0, 1));
        let wide = measured(&[100.0, 200.0, 300.0, 400.0], 2).unwrap();
        assert_eq!((wide.median_ns, wide.spread_ns, wide.rounds), (250.0, 150.0, 2));
        assert_eq!(measured(&[], 0), None);
    }

    #[test]
    fn only_the_distances_of_this_machine_are_measured() {
        let topology = crate::read::topology::topology(&Root::live()).unwrap();
        let cpus = usable_cpus(&topology).unwrap();
        let mut heard = Vec::new();
        let measured =
            calibrate(&topology, &cpus, Duration::from_millis(200), &mut |share| heard.push(share))
                .unwrap();
        let pairs = calibration::pairs(&topology, &cpus);
        assert_eq!(measured.transfer.keys().collect::<Vec<_>>(), pairs.keys().collect::<Vec<_>>());
        assert_eq!(measured.wakeup.len(), pairs.len() + 1);
        let all = measured
            .transfer
            .values()
            .chain(measured.wakeup.values().flat_map(|it| [&it.waker, &it.latency]));
        assert!(all.clone().all(|it| it.median_ns > 0.0 && it.rounds >= 1), "{measured:?}");
        assert_eq!((heard[0], heard.last()), (0.0, Some(&1.0)));
    }

    #[test]
    fn a_missing_cpu_is_an_error_and_not_a_hang() {
        let (here, nowhere) =
            (usable_cpus(&crate::read::topology::topology(&Root::live()).unwrap()), CpuId(8191));
        let here = here.unwrap().lowest().unwrap();
        let slot = Duration::from_millis(5);
        for (a, b) in [(here, nowhere), (nowhere, here)] {
            assert!(matches!(transfers(a, b, slot),
                    Err(CalibrateError::Pin { cpu, .. }) if cpu == nowhere));
            assert!(matches!(interrupts(a, b, slot),
                    Err(CalibrateError::Pin { cpu, .. }) if cpu == nowhere));
            assert!(matches!(wakeups(a, b, slot),
                    Err(CalibrateError::Pin { cpu, .. }) if cpu == nowhere));
        }
    }

    #[test]
    fn an_error_without_a_usable_cpu_lists_the_candidates() {
        let topology = Topology { online: CpuSet::from_cpu(CpuId(8191)), ..Topology::default() };
        let error = usable_cpus(&topology).unwrap_err().to_string();
        assert!(
            error.starts_with("no cpu may be used: ") && error.ends_with(" are 8191"),
            "{error}"
        );
    }
}
