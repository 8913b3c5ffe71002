//! The client: agrees on a load with a server, generates it, and collects the counts of both.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use netsilo_sys::files::root::Root;
use netsilo_trial::traffic::{EndMachine, InstancesAs, LoadResult, Spec, Totals};

use crate::client::Control;
use crate::control::{Reply, Request};
use crate::error::LoadError;
use crate::process::Instance;
use crate::share::{STACK, Share, work};
use crate::shared_counters::SharedCounters;
use crate::side::{PriorityBoost, StartCounters};
use crate::socket::{Socket, allow_many_sockets};
use crate::tally::{Latencies, Tally};
use crate::tick::{Tick, Watch};

/// Options of a run that are not part of the load.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Measure hardirq and softirq times with eBPF, at both ends.
    pub bpf: bool,
}

/// Generates a load and measures it.
pub fn run(
    spec: &Spec,
    server: SocketAddr,
    options: Options,
    watch: &mut Watch<'_>,
) -> Result<LoadResult, LoadError> {
    spec.check().map_err(LoadError::Spec)?;
    allow_many_sockets();
    let mut control = Control::connect(server)?;
    let ports = control.prepare(spec)?;
    let mut to = ports.iter().map(|port| SocketAddr::new(server.ip(), *port)).cycle();
    let targets: Vec<SocketAddr> = to.by_ref().take(spec.instances).collect();
    let rows = if spec.instances_as == InstancesAs::Multiplexed {
        spec.workers.min(spec.instances)
    } else {
        spec.instances
    };
    let counters = SharedCounters::new(rows).map_err(LoadError::SharedCounters)?;
    let latencies = Latencies::new()
        .ok_or_else(|| LoadError::SharedCounters(io::ErrorKind::OutOfMemory.into()))?;
    let made = if spec.instances_as == InstancesAs::Processes {
        processes(spec, &targets, &counters, &latencies, || {
            count(spec, options, &counters, &mut control, watch)
        })?
    } else {
        threads(spec, &targets, &counters, &latencies, || {
            count(spec, options, &counters, &mut control, watch)
        })?
    };
    let mut counted = made.counted;
    counted.client.netsilo_cpus += made.children_cpu.as_secs_f64() / counted.seconds;
    let done = control.ask(&Request::Stop)?;
    let Reply::Done(served) = done else { return Err(LoadError::NotNetsilo(server)) };
    Ok(LoadResult {
        schema: 1,
        spec: spec.clone(),
        address: server.to_string(),
        seconds: counted.seconds,
        totals: counters.totals(),
        counted: counted.totals,
        per_second: counted.per_second,
        latency: latencies.summary(),
        client: counted.client,
        server: *served,
    })
}

/// The counts of the measured interval.
struct Counted {
    seconds: f64,
    totals: Totals,
    per_second: Vec<u64>,
    client: EndMachine,
}

/// The result of all instances.
struct Finished {
    counted: Counted,
    children_cpu: Duration,
}

/// Warms up, counts for the given time, and reports each second. The instances keep running.
fn count(
    spec: &Spec,
    options: Options,
    counters: &SharedCounters,
    control: &mut Control,
    watch: &mut Watch<'_>,
) -> Result<Counted, LoadError> {
    let _boost = PriorityBoost::new();
    let mut tell = |tick| if watch(tick).is_break() { Err(LoadError::Interrupted) } else { Ok(()) };
    let warming_up = Instant::now();
    tell(Tick { counted: None, last_second: 0 })?;
    while let Some(left) =
        spec.warm_up.checked_sub(warming_up.elapsed()).filter(|left| !left.is_zero())
    {
        if counters.is_stopped() {
            break;
        }
        wait_unless_failed(left.min(Duration::from_secs(1)), counters);
        tell(Tick { counted: None, last_second: 0 })?;
    }
    control.ask(&Request::Begin { bpf: options.bpf })?;
    let before = StartCounters::take(&Root::live(), options.bpf)?;
    let phase = counters.phase();
    phase.counting.store(true, Ordering::Relaxed);
    let (started, first) = (Instant::now(), counters.totals());
    let done = |totals: &Totals| {
        if spec.test.has_responses() { totals.responses } else { totals.sent_bytes }
    };
    let (mut per_second, mut last) = (Vec::new(), done(&first));
    tell(Tick { counted: Some(Duration::ZERO), last_second: 0 })?;
    for second in 1.. {
        let until = Duration::from_secs(second).min(spec.duration);
        wait_unless_failed(until.saturating_sub(started.elapsed()), counters);
        let now = done(&counters.totals());
        if until == Duration::from_secs(second) {
            per_second.push(now - last);
        }
        tell(Tick { counted: Some(until), last_second: now - last })?;
        last = now;
        if until >= spec.duration || counters.is_stopped() {
            break;
        }
    }
    let (seconds, totals) = (started.elapsed().as_secs_f64(), counters.totals().since(&first));
    phase.counting.store(false, Ordering::Relaxed);
    let client = before.end()?;
    control.ask(&Request::End)?;
    Ok(Counted { seconds, totals, per_second, client })
}

/// Waits, but returns early if an instance has failed.
fn wait_unless_failed(time: Duration, counters: &SharedCounters) {
    let until = Instant::now() + time;
    while !counters.is_stopped() {
        let Some(left) =
            until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
        else {
            return;
        };
        sleep(left.min(Duration::from_millis(100)));
    }
}

/// Runs threads: one per instance, or a few with many instances each.
fn threads(
    spec: &Spec,
    targets: &[SocketAddr],
    counters: &SharedCounters,
    latencies: &Latencies,
    count: impl FnOnce() -> Result<Counted, LoadError>,
) -> Result<Finished, LoadError> {
    let start = |instance: usize| move |source| LoadError::Start { instance: instance + 1, source };
    let share = |(to, _): (&SocketAddr, _)| Share { to: *to, instances: 0, sockets: Vec::new() };
    let mut shares: Vec<Share> = targets.iter().zip(counters.rows()).map(share).collect();
    let workers = shares.len();
    for (n, to) in targets.iter().enumerate() {
        let share = &mut shares[n % workers];
        share.instances += 1;
        share.sockets.extend(Socket::open(spec, *to).map_err(start(n))?);
    }
    thread::scope(|scope| {
        let mut handles = Vec::new();
        for ((n, share), row) in shares.into_iter().enumerate().zip(counters.rows()) {
            let worker = move || {
                // all begin together, because running threads would leave little time to start the
                // others
                counters.wait();
                let done = work(share, spec, &mut Tally::new(counters, row, latencies));
                if done.is_err() {
                    counters.stop();
                }
                done
            };
            let builder = thread::Builder::new().name("bench-run".into()).stack_size(STACK);
            match builder.spawn_scoped(scope, worker) {
                Ok(handle) => handles.push(handle),
                Err(source) => {
                    counters.stop();
                    counters.go();
                    return Err(start(n)(source));
                }
            }
        }
        let _boost = PriorityBoost::new();
        counters.go();
        let counted = count();
        counters.stop();
        for handle in handles {
            let done = handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            done.map_err(|error| LoadError::Failed(error.to_string()))?;
        }
        Ok(Finished { counted: counted?, children_cpu: Duration::ZERO })
    })
}

/// Runs processes: one per instance.
fn processes(
    spec: &Spec,
    targets: &[SocketAddr],
    counters: &SharedCounters,
    latencies: &Latencies,
    count: impl FnOnce() -> Result<Counted, LoadError>,
) -> Result<Finished, LoadError> {
    let start = |instance: usize| move |source| LoadError::Start { instance: instance + 1, source };
    let mut instances = Vec::new();
    for (n, to) in targets.iter().enumerate() {
        instances.push(Instance::start(spec, *to, n, counters).map_err(start(n))?);
    }
    for (n, instance) in instances.iter_mut().enumerate() {
        instance.ready().map_err(start(n))?;
    }
    counters.go();
    let counted = count();
    counters.stop();
    let mut children_cpu = Duration::ZERO;
    for instance in instances {
        let result = instance
            .end()
            .map_err(|error| LoadError::Failed(format!("an instance has exited: {error}")))?;
        if let Some(error) = result.error {
            return Err(LoadError::Failed(error));
        }
        result.add_to(latencies);
        children_cpu += result.cpu;
    }
    Ok(Finished { counted: counted?, children_cpu })
}
