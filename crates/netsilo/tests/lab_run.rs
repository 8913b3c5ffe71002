//! The daemon on real kernels and real NIC queues. It follows the workload, repairs what drivers
//! reset, leaves knobs to other programs, and leaves nothing that undo does not restore. Counts and
//! affinities are asserted, never times.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy lets only functions marked as tests do so"
)]

#[path = "lab_run/guest.rs"]
mod guest;
#[path = "lab_run/killed.rs"]
mod killed;

use netsilo_lab::{Job, Kernel, Signal};
use netsilo_model::machine::cpuset::CpuSet;
use serde_json::Value as Json;

use guest::{Guest, NETSILO, Workload, array, placed};
use killed::{By, restores_every_byte};

#[test]
fn the_daemon_follows_repairs_yields_and_leaves_nothing_behind() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let (guest, daemon, _work) = a_daemon_that_follows(Kernel::V6_1);
    // Before the resets, because they would explain a changed knob for a while.
    yields_to_other_programs(&guest, &daemon);
    takes_its_interrupts_from_irqbalance(&guest);
    repairs_what_drivers_reset(&guest);
    leaves_only_what_it_wrote(&guest, daemon);
    // How kthreads are found depends on the kernel (`lab_read` of sys tests all kernels); the
    // journal does not.
    let written = is_undone_after_kill_9(&guest);
    // `make test-long` kills it in each of its writes.
    let sample = [(written[0], By::Daemon), (written[written.len() - 1], By::Undo)];
    for (irq, by) in sample {
        restores_every_byte(&guest, irq, by);
    }
}

/// Each part waits for rounds of the real irqbalance.
#[test]
#[ignore = "too slow for make test: make test-long"]
fn irqbalance_gets_its_interrupts_back_after_kill_9_and_follows_hints() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let guest = Guest::boot(Kernel::V6_1);
    let _work = guest.workload(7100, "5");
    gives_interrupts_back_after_kill_9(&guest);
    irqbalance_follows_its_hints(&guest);
}

#[test]
#[ignore = "too slow for make test: make test-long"]
fn the_daemon_follows_and_repairs_on_newer_kernels() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    for kernel in [Kernel::V6_12, Kernel::Newest] {
        let (guest, daemon, _work) = a_daemon_that_follows(kernel);
        repairs_what_drivers_reset(&guest);
        leaves_only_what_it_wrote(&guest, daemon);
    }
}

/// Boots a guest with all interrupts on one CPU, and a daemon that moves them to a workload.
fn a_daemon_that_follows(kernel: Kernel) -> (Guest, Job, Workload) {
    let guest = Guest::boot(kernel);
    guest.all_on(7);
    let daemon = guest.start();
    let work = follows_the_workload(&guest);
    (guest, daemon, work)
}

/// Kills each write of the daemon, three times. The last rounds also compact the transactions of
/// the first.
#[test]
#[ignore = "too slow for make test: make test-long"]
fn a_kill_in_each_write_of_the_daemon_is_undone() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let guest = Guest::boot(Kernel::V6_1);
    let _work = guest.workload(7100, "5");
    let written = is_undone_after_kill_9(&guest);
    let before = guest.knobs();
    // More transactions than the daemon keeps before it compacts them (`COMPACT_AT`).
    let kills = (3 * written.len()).max(20);
    for (n, irq) in written.iter().cycle().take(kills).enumerate() {
        restores_every_byte(&guest, *irq, if n % 2 == 0 { By::Daemon } else { By::Undo });
    }
    let daemon = guest.start();
    guest.until_placed("placed after all kills", "4-7");
    daemon.signal(Signal::KILL).unwrap();
    drop(daemon);
    let journal = guest.lab.sh("grep -c '\"begin\"' /run/netsilo/journal").unwrap();
    assert!(journal.trim().parse::<usize>().unwrap() < kills, "folded: {journal} transactions");
    guest.lab.sh(&format!("{NETSILO} undo")).unwrap();
    assert_eq!(guest.knobs(), before);
}

fn follows_the_workload(guest: &Guest) -> Workload {
    let work = guest.workload(7000, "1");
    let placed = guest.until_placed("all on socket 0", "0-3");
    let status: Json = guest.lab.json(&format!("{NETSILO} status --json")).unwrap();
    assert_eq!(
        (&status["attribution"]["source"], &status["mode"]),
        (&"bpf".into(), &"placing".into()),
        "{status}"
    );
    for (irq, cpus) in &placed {
        let hint = guest
            .lab
            .sh(&format!("cd /run/netsilo/irq/{irq}; cat affinity_hint affinity_alg"))
            .unwrap();
        let (mask, basis) = hint.split_once('\n').unwrap();
        assert_eq!(CpuSet::parse_mask(mask).unwrap().to_string(), *cpus, "{hint}");
        assert!(basis.starts_with("near-consumer: "), "{hint}");
    }
    drop(work);
    let work = guest.workload(7100, "5");
    guest.until_placed("all on socket 1", "4-7");
    work
}

fn repairs_what_drivers_reset(guest: &Guest) {
    let events = |status: &Json| status["totals"]["events"].as_u64().unwrap();
    let before = guest.status().unwrap();
    guest.lab.sh("ethtool -L eth0 combined 2").unwrap();
    guest.until("the channels' change is heard", |status| events(status) > events(&before));
    guest.until_placed("two queues", "4-7");
    guest.lab.sh("ethtool -L eth0 combined 4").unwrap();
    guest.until_placed("four queues again", "4-7");
    guest.lab.sh("ip link set eth0 down; ip link set eth0 up").unwrap();
    guest.until_placed("up again", "4-7");
    for up in [false, true] {
        let before = guest.status().unwrap();
        guest.lab.set_link(0, up).unwrap();
        guest.until("the carrier's change is heard", |status| events(status) > events(&before));
    }
    guest.lab.sh("echo 0 >/sys/devices/system/cpu/cpu7/online").unwrap();
    guest.until_placed("without cpu 7", "4-6");
    guest.lab.sh("echo 1 >/sys/devices/system/cpu/cpu7/online").unwrap();
    guest.until_placed("with cpu 7", "4-7");
    let after = guest.status().unwrap();
    assert_eq!(array(&after, "conflicts").len(), 0, "resets are no conflict: {after:#}");
}

fn yields_to_other_programs(guest: &Guest, daemon: &Job) {
    let placed = guest.until_placed("all on socket 1", "4-7");
    // Only interrupts that the daemon wrote can conflict: others may have been on socket 1 from the
    // start.
    let written = |entry: &Json| {
        let irq = entry["target"]["irq"].as_u64()?;
        (entry["what"] == "in_effect" && placed.contains_key(&irq)).then_some(irq)
    };
    let status = guest.until("an interrupt that it wrote", |status| {
        array(status, "log").iter().any(|entry| written(entry).is_some())
    });
    let irq = array(&status, "log").iter().rev().find_map(written).unwrap();
    guest.lab.sh(&format!("echo 0 >/proc/irq/{irq}/smp_affinity_list")).unwrap();
    let status =
        guest.until("the other writer is noticed", |status| !array(status, "conflicts").is_empty());
    assert_eq!(array(&status, "conflicts")[0]["target"]["irq"].as_u64(), Some(irq), "{status:#}");
    let windows = status["windows"].as_u64().unwrap();
    guest.until("two more windows", |status| status["windows"].as_u64() > Some(windows + 1));
    assert_eq!(
        guest.lab.sh(&format!("cat /proc/irq/{irq}/smp_affinity_list")).unwrap(),
        "0\n",
        "left to the other"
    );
    let second = guest.lab.run(&format!("{NETSILO} run --config /tmp/conf 2>&1")).unwrap();
    assert_eq!(second.status, 1, "{}", second.text());
    assert!(
        second
            .text()
            .contains(&format!("netsilo is already running (pid {})", daemon.pid().unwrap())),
        "{}",
        second.text()
    );
    guest.configure("intervall = \"1s\"");
    guest.lab.sh(&format!("kill -HUP {}", daemon.pid().unwrap())).unwrap();
    let status = guest
        .until("the bad configuration is refused", |status| !status["config"]["error"].is_null());
    assert!(!array(&status, "conflicts").is_empty(), "it changes nothing");
    guest.configure("");
    guest.lab.sh(&format!("kill -HUP {}", daemon.pid().unwrap())).unwrap();
    guest.until_placed("placed again with a new configuration", "4-7");
}

/// Starts the real irqbalance, and returns it once its socket is there.
fn irqbalance(guest: &Guest) -> Job {
    let program = netsilo_lab::irqbalance().unwrap();
    guest.lab.sh("mkdir -p /run/irqbalance; rm -f /run/irqbalance/*").unwrap();
    let options = "--foreground --interval=1 --banirq=9";
    let balancer = guest.lab.spawn(&format!("exec {} {options}", program.display())).unwrap();
    guest.lab.sh("until ls /run/irqbalance/* 2>/dev/null; do sleep 0.1; done").unwrap();
    balancer
}

/// How often an irqbalance was told to leave interrupts alone.
fn times_told(status: &Json) -> usize {
    let told =
        |entry: &&Json| entry["what"] == "in_effect" && entry["target"]["knob"] == "irqbalance_ban";
    array(status, "log").iter().filter(told).count()
}

/// The real irqbalance is told to leave the daemon's interrupts alone, and a later one too. What it
/// moved before that is put back.
fn takes_its_interrupts_from_irqbalance(guest: &Guest) {
    guest.until_placed("all placed before", "4-7");
    for times in [1, 2] {
        // It moves interrupts in its first round, before or after a window shows it.
        let balancer = irqbalance(guest);
        guest.until("irqbalance is told", |status| times_told(status) == times);
        guest.until_placed("placed beside irqbalance", "4-7");
        let status = guest.status().unwrap();
        let changes = |status: &Json| status["totals"]["changes"].clone();
        let windows = status["windows"].as_u64().unwrap();
        let later = guest
            .until("three more windows", |status| status["windows"].as_u64() > Some(windows + 2));
        assert_eq!(changes(&later), changes(&status), "nothing is moved: {later:#}");
        assert_eq!(array(&later, "conflicts").len(), 0, "{later:#}");
        balancer.stop().unwrap();
    }
}

/// A daemon that was killed has told irqbalance; undo takes that back, and nothing else.
fn gives_interrupts_back_after_kill_9(guest: &Guest) {
    guest.lab.sh("rm -f /run/netsilo/journal").unwrap();
    let balancer = irqbalance(guest);
    guest.all_on(1);
    let daemon = guest.start();
    guest.until("irqbalance is told", |status| times_told(status) == 1);
    daemon.signal(Signal::KILL).unwrap();
    drop(daemon);
    let banned = || {
        let host: Json = guest.lab.json(&format!("{NETSILO} show -i 1s --json")).unwrap();
        array(&host["knob_owners"][0]["bans"], "irqs").clone()
    };
    assert!(banned().len() > 1, "{:?}", banned());
    let undone = guest.lab.sh(&format!("{NETSILO} undo")).unwrap();
    assert_eq!(banned(), [9], "{undone}");
    balancer.stop().unwrap();
}

fn leaves_only_what_it_wrote(guest: &Guest, daemon: Job) {
    let placed = guest.until_placed("all in place", "4-7");
    daemon.stop().unwrap();
    let now = guest.affinities();
    assert!(
        placed.iter().all(|(irq, cpus)| now[irq].contains(cpus)),
        "kept at the end: {placed:?} {now:?}"
    );
    assert_eq!(guest.lab.sh("ls /run/netsilo").unwrap(), "journal\nlock\nrun.lock\n");
    assert_eq!(guest.lab.run(&format!("{NETSILO} status")).unwrap().status, 3);
    guest.lab.sh(&format!("{NETSILO} undo")).unwrap();
}

/// Returns the interrupts that the daemon wrote.
fn is_undone_after_kill_9(guest: &Guest) -> Vec<u64> {
    guest.lab.sh("rm -f /run/netsilo/journal; echo 1 >/sys/class/net/eth0/threaded").unwrap();
    guest.all_on(1);
    let kthreads =
        "grep -H Cpus_allowed_list $(grep -l ^napi/eth0 /proc/[0-9]*/comm | sed s/comm/status/)";
    let (knobs, threads) = (guest.knobs(), guest.lab.sh(kthreads).unwrap());
    let daemon = guest.start();
    guest.until_placed("threaded, on socket 1", "4-7");
    let moved = guest.lab.sh(kthreads).unwrap();
    let of_socket_1 = |line: &&str| {
        let list = line.rsplit_once('\t').unwrap().1;
        CpuSet::parse_list(list).unwrap().is_subset(&CpuSet::parse_list("4-7").unwrap())
    };
    assert!(moved.lines().filter(of_socket_1).count() > 0, "kthreads are placed: {moved}");
    daemon.signal(Signal::KILL).unwrap();
    drop(daemon);
    assert_ne!(guest.knobs(), knobs);
    let written = killed::written(guest);
    let undone = guest.lab.sh(&format!("{NETSILO} undo")).unwrap();
    assert_eq!(
        (guest.knobs(), guest.lab.sh(kthreads).unwrap()),
        (knobs.clone(), threads.clone()),
        "{undone}"
    );
    guest.configure("restore-on-exit = true");
    let daemon = guest.start();
    guest.until_placed("once more", "4-7");
    daemon.stop().unwrap();
    assert_eq!(
        (guest.knobs(), guest.lab.sh(kthreads).unwrap()),
        (knobs, threads),
        "{}",
        guest.log()
    );
    guest.configure("");
    written
}

/// With hints only, the daemon writes no knob. The real irqbalance with the exported policy script
/// moves each interrupt to the node of its hint.
fn irqbalance_follows_its_hints(guest: &Guest) {
    guest.lab.sh("echo 0 >/sys/class/net/eth0/threaded").unwrap();
    guest.configure("hints-only = true");
    guest.all_on(1);
    let daemon = guest.start();
    let node = CpuSet::parse_list("4-7").unwrap();
    let on_node = |cpus: &str| CpuSet::parse_list(cpus).unwrap().is_subset(&node);
    let status = guest.until("hints to socket 1", |status| {
        let placed = placed(status);
        !placed.is_empty() && placed.values().all(|cpus| on_node(cpus))
    });
    assert_eq!(
        (&status["mode"], &status["totals"]["changes"]),
        (&"hints_only".into(), &0.into()),
        "{status:#}"
    );
    let export = format!(
        "{NETSILO} export irqbalance-policy --suggest >/tmp/suggest && chmod 755 /tmp/suggest"
    );
    guest.lab.sh(&export).unwrap();
    let program = netsilo_lab::irqbalance().unwrap();
    let options = "--oneshot --foreground --interval=1 --policyscript=/tmp/suggest";
    let output = guest.lab.run(&format!("{} {options}", program.display())).unwrap().ok().unwrap();
    let requested =
        |irq: &u64| guest.lab.sh(&format!("cat /proc/irq/{irq}/smp_affinity_list")).unwrap();
    for irq in placed(&status).keys() {
        let cpus = requested(irq);
        assert!(on_node(cpus.trim()), "irq {irq} is on {cpus}: {}", output.text());
    }
    let status = guest.status().unwrap();
    assert_eq!(status["totals"]["changes"], 0, "irqbalance acted alone: {status:#}");
    daemon.stop().unwrap();
}
