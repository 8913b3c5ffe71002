//! CPU time and memory of a daemon cycle, compared with an irqbalance cycle on the same synthetic
//! host.
//!
//! `scripts/bench-irqbalance` runs it. A cycle is a refreshed snapshot and the controller's
//! decision (rates, silos, and a plan if requested). The eBPF counts are synthetic, with 5% of
//! noise on each. irqbalance runs in its own mount namespace, where `/sys`, `/proc/irq`,
//! `/proc/interrupts` and `/proc/stat` are the synthetic host's and the rest of `/proc` is
//! read-only.
//!
//! `heap CPUS IRQS` prints the peak heap use of these cycles in bytes.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "only the library is pure; this reads files"
)]
#![allow(
    missing_docs,
    clippy::panic,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark"
)]

#[path = "../../sys/tests/trees/big_host.rs"]
mod big_host;
#[path = "synthetic/counted.rs"]
mod counted;
#[path = "synthetic/heap.rs"]
mod heap;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use big_host::BigHost;
use netsilo_decide::control::{Controller, Policy};
use netsilo_decide::plan::Placement;
use netsilo_decide::plan::find_outcome::FoundOutcome;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::snapshot::attribution::Attribution;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::files::root::Root;
use netsilo_sys::read::refresh::Refresher;
use rustix::time::{ClockId, clock_gettime};

/// Rounds in which both programs run alternately.
const ROUNDS: usize = 3;
/// Number of cycles until everything is placed, and of idle cycles.
const SETTLING: usize = 5;
const CYCLES: usize = 15;
/// How often all readers then move. A move is detected in one cycle and followed in the next.
const MOVES: usize = 4;
const IRQBALANCE_CYCLES: usize = 3;
/// The daemon's window.
const WINDOW: Duration = Duration::from_secs(10);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["cycles", tree] => {
            let Cost { cycle, moving, reading, start, peak_kb } = cycles(Path::new(tree));
            let [cycle, moving, reading, start] =
                [cycle, moving, reading, start].map(|it| it.as_nanos());
            println!("{cycle} {moving} {reading} {start} {peak_kb}");
        }
        ["heap", cpus, irqs] => {
            let dir = tempfile::tempdir().unwrap();
            host(cpus.parse().unwrap(), irqs.parse().unwrap()).write(dir.path()).unwrap();
            println!("{}", heap::used(|| cycles(dir.path())).0);
        }
        ["tree", tree, cpus, irqs] => {
            host(cpus.parse().unwrap(), irqs.parse().unwrap()).write(Path::new(tree)).unwrap()
        }
        [] => table(None),
        [irqbalance] => table(Some(irqbalance)),
        _ => panic!("arguments: [IRQBALANCE], or heap CPUS IRQS"),
    }
}

/// A host whose netdevs have one interrupt per queue: 2, 32 or 256 in total, at most 8 if it has
/// few interrupts.
fn host(cpus: u32, irqs: u32) -> BigHost {
    let (netdevs, queues) = match cpus {
        ..8 => (1, 2),
        8..128 => (2, 16),
        _ => (4, 64),
    };
    if netdevs * queues * 2 > irqs {
        return BigHost { cpus, irqs, netdevs: 1, queues: queues.min(8) };
    }
    BigHost { cpus, irqs, netdevs, queues }
}

/// The costs of cycles of one program.
struct Cost {
    /// Median CPU time of a cycle.
    cycle: Duration,
    /// The same while all queues' readers move; zero if unknown.
    moving: Duration,
    /// The part for reading; zero if unknown.
    reading: Duration,
    /// CPU time until the first cycle.
    start: Duration,
    /// Peak resident memory in kB (VmHWM).
    peak_kb: u64,
}

fn table(irqbalance: Option<&str>) {
    println!(
        "CPU time of a cycle (median of {ROUNDS} rounds) and peak memory; \
         the ratio with its range over the rounds"
    );
    println!(
        "| CPUs | IRQs | of netdevs | netsilo at rest | of that reading | while all moves | \
         first look | peak | irqbalance | peak | CPU ratio at rest |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let sizes = [2, 64, 512]
        .into_iter()
        .flat_map(|cpus| [19, 500, 2000, 4000].map(|irqs| host(cpus, irqs)));
    let one_netdev = BigHost { cpus: 512, irqs: 4000, netdevs: 1, queues: 64 };
    for host in sizes.chain([one_netdev]) {
        let dir = tempfile::tempdir().unwrap();
        host.write(dir.path()).unwrap();
        println!("{}", row(&host, dir.path(), irqbalance));
    }
}

fn row(host: &BigHost, tree: &Path, irqbalance: Option<&str>) -> String {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(netsilo(tree));
        theirs.extend(irqbalance.map(|program| balanced(program, tree, host)));
    }
    let mut ratios: Vec<f64> = ours
        .iter()
        .zip(&theirs)
        .map(|(our, their)| our.cycle.as_secs_f64() / their.cycle.as_secs_f64())
        .collect();
    ratios.sort_by(f64::total_cmp);
    let ms =
        |costs: &[Cost], of: fn(&Cost) -> Duration| match median(costs.iter().map(of).collect()) {
            Some(time) => format!("{:.2} ms", time.as_secs_f64() * 1e3),
            None => "-".to_owned(),
        };
    let peak = |costs: &[Cost]| match median(costs.iter().map(|cost| cost.peak_kb).collect()) {
        Some(kb) => format!("{:.1} MB", kb as f64 / 1024.0),
        None => "-".to_owned(),
    };
    let ratio = match ratios[..] {
        [least, .., most] => format!("{:.3} ({least:.3} .. {most:.3})", ratios[ratios.len() / 2]),
        _ => "-".to_owned(),
    };
    format!(
        "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {ratio} |",
        host.cpus,
        host.irqs,
        host.netdevs * host.queues,
        ms(&ours, |cost| cost.cycle),
        ms(&ours, |cost| cost.reading),
        ms(&ours, |cost| cost.moving),
        ms(&ours, |cost| cost.start),
        peak(&ours),
        ms(&theirs, |cost| cost.cycle),
        peak(&theirs),
    )
}

fn median<T: Ord>(mut values: Vec<T>) -> Option<T> {
    values.sort();
    let middle = values.len() / 2;
    values.into_iter().nth(middle)
}

/// Runs cycles in a separate process, to measure its memory.
fn netsilo(tree: &Path) -> Cost {
    let output =
        Command::new(std::env::current_exe().unwrap()).arg("cycles").arg(tree).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let numbers: Vec<u64> =
        text.split_ascii_whitespace().map(|word| word.parse().unwrap()).collect();
    let [cycle, moving, reading, start, peak_kb] = numbers[..] else { panic!("{text}") };
    let [cycle, moving, reading, start] = [cycle, moving, reading, start].map(Duration::from_nanos);
    Cost { cycle, moving, reading, start, peak_kb }
}

/// Runs idle cycles, then some while all readers move.
fn cycles(tree: &Path) -> Cost {
    let root = Root::at(tree).unwrap();
    let mut now = Duration::from_secs(1000);
    fs::write(tree.join("proc/uptime"), format!("{} 0\n", now.as_secs())).unwrap();
    let mut refresher = Refresher::default();
    let (mut last, start) = measured(|| refresher.first(&root).unwrap());
    let mut controller = Controller::new(Policy::default());
    let mut noise = Noise(1);
    let (mut at_rest, mut moving, mut readings) = (Vec::new(), Vec::new(), Vec::new());
    for cycle in 0..SETTLING + CYCLES + 2 * MOVES {
        now += WINDOW;
        fs::write(tree.join("proc/uptime"), format!("{} 0\n", now.as_secs())).unwrap();
        let (after, reading) = measured(|| refresher.next(&root, &last).unwrap());
        let moves = (cycle + 2).saturating_sub(SETTLING + CYCLES) / 2;
        let attribution = noise.attribution(&after, moves as u32);
        let before = noise.a_window_earlier(last, &after);
        let observation = Observation { before, after, attribution };
        let (decision, deciding) =
            measured(|| controller.tick(now, &observation, &|_| FoundOutcome::Nothing));
        settle(tree, &decision.plan.placements);
        // the observer keeps the start of the next observation
        last = observation.after;
        match cycle {
            ..SETTLING => {}
            _ if moves == 0 => {
                assert!(decision.writes.changes.is_empty(), "this cycle is not at rest");
                at_rest.push(reading + deciding);
                readings.push(reading);
            }
            _ => moving.push(reading + deciding),
        }
    }
    assert_eq!(refresher.full_reads(), 1);
    let [cycle, moving, reading] = [at_rest, moving, readings].map(|times| median(times).unwrap());
    Cost { cycle, moving, reading, start, peak_kb: peak_kb("self") }
}

/// Sets each interrupt's affinity as planned, so that the next cycles are idle.
fn settle(tree: &Path, placements: &[Placement]) {
    for (irq, cpus) in placements.iter().filter_map(|it| Some((it.irq?, &it.cpus))) {
        for name in ["smp_affinity_list", "effective_affinity_list"] {
            fs::write(tree.join(format!("proc/irq/{irq}/{name}")), format!("{cpus}\n")).unwrap();
        }
    }
}

/// Noise of up to 5%, the same in each run.
struct Noise(u64);

impl Noise {
    fn on(&mut self, value: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        value * (950 + (self.0 >> 33) % 101) / 1000
    }

    /// The synthetic eBPF counts after the readers have moved `moves` times.
    fn attribution(&mut self, after: &Snapshot, moves: u32) -> Attribution {
        let mut attribution = counted::attribution(after, WINDOW);
        let cpus = after.topology.online.len() as u32;
        attribution.polls.iter_mut().for_each(|poll| poll.packets = self.on(poll.packets));
        for row in &mut attribution.consumption {
            row.bytes = self.on(row.bytes);
            row.consumer_cpu = CpuId((row.consumer_cpu.0 + moves * (cpus / 4).max(1)) % cpus);
        }
        attribution
    }

    /// The counters one window earlier. Each interrupt has occurred 500 times since, on one CPU,
    /// and each CPU was busy for about 30% of its ticks.
    fn a_window_earlier(&mut self, mut before: Snapshot, after: &Snapshot) -> Snapshot {
        for (irq, state) in before.irqs.values_mut().zip(after.irqs.values()) {
            irq.counts.clone_from(&state.counts);
            irq.counts.values_mut().take(1).for_each(|count| *count = count.saturating_sub(500));
        }
        for (counters, now) in before.cpus.values_mut().zip(after.cpus.values()) {
            counters.stat = now.stat;
            counters.stat.user -= self.on(200);
            counters.stat.system -= self.on(100);
            counters.stat.idle -= 700;
        }
        before
    }
}

fn measured<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let clock = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let started = clock();
    let done = work();
    (done, clock() - started)
}

fn peak_kb(pid: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_ascii_whitespace().next().unwrap().parse().unwrap()
}

/// Run by a shell in its own mount namespace; exits if a file of the synthetic host is not mounted.
const IN_A_NAMESPACE: &str = r#"
mount --make-rprivate /
mount --bind /proc /proc
mount -o remount,bind,ro /proc
mount --bind "$1/sys" /sys
for path in irq interrupts stat; do mount --bind "$1/proc/$path" "/proc/$path"; done
for path in sys proc/irq proc/interrupts proc/stat; do [ "/$path" -ef "$1/$path" ]; done
exec "$2" --foreground --interval 1
"#;

struct Irqbalance(Child);

impl Drop for Irqbalance {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs irqbalance. Advances interrupts and CPU time while it sleeps.
///
/// Its first cycle, which places everything, is not counted.
fn balanced(program: &str, tree: &Path, host: &BigHost) -> Cost {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-eu", "-c", IN_A_NAMESPACE, "sh"]).arg(tree).arg(program);
    let mut running =
        Irqbalance(command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap());
    let pid = running.0.id().to_string();
    let mut at_rest: Vec<Duration> = Vec::new();
    let started = Instant::now();
    // the start, the first cycle, and the counted ones
    while at_rest.len() < IRQBALANCE_CYCLES + 2 {
        assert!(running.0.try_wait().unwrap().is_none(), "irqbalance has exited");
        assert!(
            started.elapsed() < Duration::from_secs(120),
            "irqbalance takes too long: {at_rest:?}"
        );
        let before = cpu_time(&pid);
        std::thread::sleep(Duration::from_millis(100));
        let settled = started.elapsed() > Duration::from_millis(500)
            && sleeps(&pid, program)
            && cpu_time(&pid) == before;
        if settled && at_rest.last() != Some(&before) {
            at_rest.push(before);
            host.pass(tree, at_rest.len() as u64).unwrap();
        }
    }
    let cycles = at_rest[1..].windows(2).map(|pair| pair[1] - pair[0]).collect();
    Cost {
        cycle: median(cycles).unwrap(),
        moving: Duration::ZERO,
        reading: Duration::ZERO,
        start: at_rest[0],
        peak_kb: peak_kb(&pid),
    }
}

fn cpu_time(pid: &str) -> Duration {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
    Duration::from_nanos(text.split_ascii_whitespace().next().unwrap().parse().unwrap())
}

/// Whether the process sleeps and is already irqbalance, not the shell that started it.
fn sleeps(pid: &str, program: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let name = Path::new(program).file_name().unwrap().to_str().unwrap();
    stat.contains(&format!("({name}) S"))
}
