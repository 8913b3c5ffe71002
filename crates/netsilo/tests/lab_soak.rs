//! The daemon over a long time, while everything that it follows changes: the load moves; links,
//! channels, CPUs and netdevs come and go; irqbalance starts and ends; the configuration is
//! reloaded. Whatever happens, the daemon returns to the right placement, and its memory,
//! descriptors and writes stay within limits. `make soak HOURS=N` runs it longer.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "clippy lets only functions marked as tests do so, and figures are shown"
)]

#[allow(dead_code, reason = "for lab_run")]
#[path = "lab_run/guest.rs"]
mod guest;

use std::time::{Duration, Instant};

use netsilo_lab::{Job, Kernel};
use serde_json::Value as Json;

use guest::{Guest, Workload, array};

/// Number of rounds before the daemon's memory and descriptors are compared.
const WARM_UP: usize = 1;

/// Maximum growth of its memory afterwards, in bytes. Caches of the allocator may grow this much; a
/// leak in each round would grow more.
const MOST_GROWTH: u64 = 4 << 20;

/// Number of changes of the machine per round. After each change, every knob may be written once.
const CHANGES: u64 = 10;

/// What the daemon uses after a round.
#[derive(Debug, Clone, Copy)]
struct Use {
    resident_bytes: u64,
    descriptors: u64,
    threads: u64,
    journal_bytes: u64,
    /// Writes since its start.
    writes: u64,
}

#[test]
#[ignore = "too slow for make test: make test-long"]
fn memory_descriptors_and_writes_stay_bounded_while_everything_changes() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let minutes = std::env::var("SOAK_MINUTES").map_or(10, |text| text.parse().unwrap());
    let until = Instant::now() + Duration::from_secs(60 * minutes);
    let guest = Guest::boot(Kernel::V6_12);
    guest.all_on(7);
    let daemon = guest.start();
    let (mut uses, mut work) = (Vec::new(), None);
    while Instant::now() < until || uses.len() < WARM_UP + 2 {
        work = Some(round(&guest, &daemon, work));
        let now = used(&guest, &daemon);
        println!("round {}: {now:?}", uses.len() + 1);
        uses.push(now);
    }
    drop(work);
    let knobs = guest.knobs().len() as u64;
    assert_bounded(&uses, knobs);
    daemon.stop().unwrap();
    assert_eq!(guest.lab.sh("ls /run/netsilo").unwrap(), "journal\nlock\nrun.lock\n");
    guest.lab.sh(&format!("{} undo", guest::NETSILO)).unwrap();
}

/// Changes everything once. Ends with the load on socket 1, and each interrupt there.
fn round(guest: &Guest, daemon: &Job, before: Option<Workload>) -> Workload {
    let lab = &guest.lab;
    drop(before);
    let work = guest.workload(7000, "1");
    guest.until_placed("the load is on socket 0", "0-3");
    drop(work);
    let work = guest.workload(7100, "5");
    guest.until_placed("the load is on socket 1", "4-7");
    lab.sh("ip link set eth0 down; ip link set eth0 up").unwrap();
    guest.until_placed("the link was down", "4-7");
    for queues in [2, 4] {
        lab.sh(&format!("ethtool -L eth0 combined {queues}")).unwrap();
        guest.until_placed(&format!("{queues} queues"), "4-7");
    }
    for (online, allowed) in [(0, "4-6"), (1, "4-7")] {
        lab.sh(&format!("echo {online} >/sys/devices/system/cpu/cpu7/online")).unwrap();
        guest.until_placed(&format!("cpu 7 online: {online}"), allowed);
    }
    let netdevs = "for n in 1 2 3 4 5; do ip link add soak$n type veth; done; \
                   for n in 1 2 3 4 5; do ip link del soak$n; done";
    lab.sh(netdevs).unwrap();
    guest.until_placed("netdevs came and went", "4-7");
    let program = netsilo_lab::irqbalance().unwrap();
    let balancer =
        lab.spawn(&format!("exec {} --foreground --interval=1", program.display())).unwrap();
    windows(guest, 3);
    balancer.stop().unwrap();
    for (bad, config) in [(true, "intervall = \"1s\""), (false, "")] {
        guest.configure(config);
        let reload = |status: &Json, key: &str| status["totals"][key].as_u64().unwrap();
        let key = if bad { "bad_reloads" } else { "reloads" };
        let before = reload(&guest.status().unwrap(), key);
        lab.sh(&format!("kill -HUP {}", daemon.pid().unwrap())).unwrap();
        guest.until("the configuration is read", |status| reload(status, key) > before);
    }
    guest.until_placed("irqbalance has ended and the configuration was read", "4-7");
    guest.until("nothing is wrong", |status| {
        let none = |list| array(status, list).is_empty();
        status["mode"] == "placing" && ["conflicts", "pending", "refusals"].into_iter().all(none)
    });
    work
}

/// Waits for this many windows.
fn windows(guest: &Guest, more: u64) {
    let done = |status: &Json| status["windows"].as_u64().unwrap();
    let before = done(&guest.status().unwrap());
    guest.until("more windows", |status| done(status) >= before + more);
}

fn used(guest: &Guest, daemon: &Job) -> Use {
    let pid = daemon.pid().unwrap();
    let counts = format!(
        "ls /proc/{pid}/fd | wc -l; ls /proc/{pid}/task | wc -l; wc -c </run/netsilo/journal"
    );
    let counts = guest.lab.sh(&counts).unwrap();
    let counts: Vec<u64> = counts.lines().map(|line| line.trim().parse().unwrap()).collect();
    let status = guest.status().unwrap();
    Use {
        resident_bytes: status["own"]["resident_bytes"].as_u64().unwrap(),
        descriptors: counts[0],
        threads: counts[1],
        journal_bytes: counts[2],
        writes: status["totals"]["changes"].as_u64().unwrap(),
    }
}

fn assert_bounded(uses: &[Use], knobs: u64) {
    let (first, last) = (uses[WARM_UP], uses[uses.len() - 1]);
    assert!(last.resident_bytes <= first.resident_bytes + MOST_GROWTH, "memory: {uses:#?}");
    assert_eq!(last.threads, first.threads, "threads: {uses:#?}");
    // When the descriptors are counted, the eBPF programs of a window may or may not be attached.
    let most = uses[..=WARM_UP].iter().map(|it| it.descriptors).max().unwrap();
    assert!(last.descriptors <= most, "descriptors: {uses:#?}");
    // Sixteen transactions of the daemon become one in the journal (docs/daemon.md).
    assert!(last.journal_bytes <= 1 << 20, "journal: {uses:#?}");
    for round in uses.windows(2) {
        let writes = round[1].writes - round[0].writes;
        assert!(writes > 0, "the daemon followed: {uses:#?}");
        assert!(writes <= CHANGES * knobs, "{writes} writes for {knobs} knobs: {uses:#?}");
    }
}
