//! What one cycle of the daemon costs, in CPU time and memory, beside a cycle of irqbalance on the same made-up host.
//!
//! `scripts/bench-irqbalance` runs it. A cycle is a refreshed snapshot, the controller's decision (rates, silos, plan) and the
//! report; what eBPF counted is given. irqbalance runs in a mount namespace of its own where `/sys`, `/proc/irq`,
//! `/proc/interrupts` and `/proc/stat` are the made-up host's and the rest of `/proc` is read-only.

#![allow(missing_docs, clippy::panic, clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

#[path = "made_up/big_host.rs"]
mod big_host;
#[path = "made_up/counted.rs"]
mod counted;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use big_host::BigHost;
use netsilo_core::controller::{Controller, Policy};
use netsilo_core::host::{Observation, Snapshot};
use netsilo_core::plan::Placement;
use netsilo_core::report::Report;
use netsilo_sys::refresh::Refresher;
use netsilo_sys::root::Root;
use rustix::time::{ClockId, clock_gettime};

/// Both in turns, so often.
const ROUNDS: usize = 3;
const CYCLES: usize = 15;
const IRQBALANCE_CYCLES: usize = 3;
/// The daemon's window.
const WINDOW: Duration = Duration::from_secs(10);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["cycles", tree] => cycles(Path::new(tree)),
        ["tree", tree, cpus, irqs] => {
            host(cpus.parse().unwrap(), irqs.parse().unwrap()).write(Path::new(tree)).unwrap()
        }
        [] => table(None),
        [irqbalance] => table(Some(irqbalance)),
        _ => panic!("arguments: [IRQBALANCE]"),
    }
}

/// Netdevs have an interrupt a queue: 2, 32 or 256 in all, 8 at most where there are few interrupts.
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

/// What cycles of one program cost.
struct Cost {
    /// Median CPU time of a cycle.
    cycle: Duration,
    /// The part of it that reads; zero where that is not known.
    reading: Duration,
    /// CPU time until the first cycle.
    start: Duration,
    /// VmHWM.
    peak_kb: u64,
}

fn table(irqbalance: Option<&str>) {
    println!(
        "CPU time of a cycle (median of {ROUNDS} rounds) and peak memory; the ratio with its range over the rounds"
    );
    println!(
        "| CPUs | IRQs | of netdevs | netsilo | of that reading | first look | peak | irqbalance | peak | CPU ratio |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let sizes = [2, 64, 512].into_iter().flat_map(|cpus| [19, 500, 2000, 4000].map(|irqs| host(cpus, irqs)));
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
    let mut ratios: Vec<f64> =
        ours.iter().zip(&theirs).map(|(our, their)| our.cycle.as_secs_f64() / their.cycle.as_secs_f64()).collect();
    ratios.sort_by(f64::total_cmp);
    let ms = |costs: &[Cost], of: fn(&Cost) -> Duration| match median(costs.iter().map(of).collect()) {
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
        "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {ratio} |",
        host.cpus,
        host.irqs,
        host.netdevs * host.queues,
        ms(&ours, |cost| cost.cycle),
        ms(&ours, |cost| cost.reading),
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

/// A process of its own, for the memory.
fn netsilo(tree: &Path) -> Cost {
    let told = Command::new(std::env::current_exe().unwrap()).arg("cycles").arg(tree).output().unwrap();
    let text = String::from_utf8(told.stdout).unwrap();
    let numbers: Vec<u64> = text.split_ascii_whitespace().map(|word| word.parse().unwrap()).collect();
    let [cycle, reading, start, peak_kb] = numbers[..] else { panic!("{text}") };
    let [cycle, reading, start] = [cycle, reading, start].map(Duration::from_nanos);
    Cost { cycle, reading, start, peak_kb }
}

/// Prints the median CPU time of a cycle, of its reading, that of the first look (ns), and VmHWM (kB).
fn cycles(tree: &Path) {
    let root = Root::at(tree).unwrap();
    let mut now = Duration::from_secs(1000);
    fs::write(tree.join("proc/uptime"), format!("{} 0\n", now.as_secs())).unwrap();
    let mut refresher = Refresher::default();
    let (mut last, start) = measured(|| refresher.first(&root).unwrap());
    let mut controller = Controller::new(Policy::default());
    let (mut times, mut readings) = (Vec::new(), Vec::new());
    for _ in 0..CYCLES {
        now += WINDOW;
        fs::write(tree.join("proc/uptime"), format!("{} 0\n", now.as_secs())).unwrap();
        let (after, reading) = measured(|| refresher.next(&root, &last).unwrap());
        let attribution = counted::attribution(&after, WINDOW);
        let before = a_window_earlier(&after);
        // the observer keeps what it goes on from
        let (observation, keeping) = measured(|| {
            last = after.clone();
            Observation { before, after, attribution }
        });
        let ((decision, _), deciding) = measured(|| (controller.tick(now, &observation), Report::of(&observation)));
        settle(tree, &decision.plan.placements);
        times.push(reading + keeping + deciding);
        readings.push(reading);
    }
    assert_eq!(refresher.whole_looks(), 1);
    let [cycle, reading, start] =
        [median(times).unwrap(), median(readings).unwrap(), start].map(|time| time.as_nanos());
    println!("{cycle} {reading} {start} {}", peak_kb("self"));
}

/// Puts each interrupt where it is wanted, so that the next cycles are those of a host at rest.
fn settle(tree: &Path, placements: &[Placement]) {
    for (irq, cpus) in placements.iter().filter_map(|it| Some((it.irq?, &it.cpus))) {
        for name in ["smp_affinity_list", "effective_affinity_list"] {
            fs::write(tree.join(format!("proc/irq/{irq}/{name}")), format!("{cpus}\n")).unwrap();
        }
    }
}

/// As if each interrupt had come 500 times since, on one CPU; each CPU was busy for some of its ticks.
fn a_window_earlier(after: &Snapshot) -> Snapshot {
    let mut before = after.clone();
    before.at -= WINDOW;
    for count in before.irqs.values_mut().filter_map(|irq| irq.counts.values_mut().next()) {
        *count = count.saturating_sub(500);
    }
    before.cpus.values_mut().for_each(|counters| counters.stat = Default::default());
    before
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

/// Run by a shell in a mount namespace of its own; ends if anything of the made-up host is not in its place.
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

/// Interrupts and CPU time go on while it sleeps. Its first cycle places everything and is left out.
fn balanced(program: &str, tree: &Path, host: &BigHost) -> Cost {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-eu", "-c", IN_A_NAMESPACE, "sh"]).arg(tree).arg(program);
    let mut running = Irqbalance(command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap());
    let pid = running.0.id().to_string();
    let mut at_rest: Vec<Duration> = Vec::new();
    let started = Instant::now();
    // start, the first cycle, and those that count
    while at_rest.len() < IRQBALANCE_CYCLES + 2 {
        assert!(running.0.try_wait().unwrap().is_none(), "irqbalance ended by itself");
        assert!(started.elapsed() < Duration::from_secs(120), "irqbalance takes too long: {at_rest:?}");
        let before = cpu_time(&pid);
        std::thread::sleep(Duration::from_millis(100));
        let settled =
            started.elapsed() > Duration::from_millis(500) && sleeps(&pid, program) && cpu_time(&pid) == before;
        if settled && at_rest.last() != Some(&before) {
            at_rest.push(before);
            host.pass(tree, at_rest.len() as u64).unwrap();
        }
    }
    let cycles = at_rest[1..].windows(2).map(|pair| pair[1] - pair[0]).collect();
    Cost { cycle: median(cycles).unwrap(), reading: Duration::ZERO, start: at_rest[0], peak_kb: peak_kb(&pid) }
}

fn cpu_time(pid: &str) -> Duration {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
    Duration::from_nanos(text.split_ascii_whitespace().next().unwrap().parse().unwrap())
}

/// Whether it waits, being irqbalance by now and not the shell before it.
fn sleeps(pid: &str, program: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let name = Path::new(program).file_name().unwrap().to_str().unwrap();
    stat.contains(&format!("({name}) S"))
}
