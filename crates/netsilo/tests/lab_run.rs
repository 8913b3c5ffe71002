//! The daemon on real kernels and real NIC queues: it follows the workload, repairs what drivers
//! reset, yields to other programs, and leaves nothing that undo does not restore. Counts and
//! affinities are asserted, never times.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy lets only functions marked as tests do so"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use netsilo_lab::{Job, Kernel, Lab, NicModel, PeerJob, Signal, Spec, until};
use netsilo_model::machine::cpuset::CpuSet;
use serde_json::Value as Json;

const NETSILO: &str = env!("CARGO_BIN_EXE_netsilo");

/// Under emulation times are noise: they never cause a revert here, and the algorithm uses bytes.
/// All waits are short.
const CONFIG: &str = r#"
interval = "1s"
window = "always"
[goal]
algorithm = "near-consumer"
[controller]
dwell = "1s"
calm = "20s"
hold-off = "1s"
hold-off-most = "2s"
worse-by = 1.0
"#;

/// Leaves only the privileges that the unit file grants.
const RIGHTS: &str = "setpriv --no-new-privs --inh-caps -all \
    --bounding-set -all,+net_admin,+sys_nice,+bpf,+perfmon,+sys_ptrace,+sys_resource";

/// Prints every knob that the daemon may write, as `file:text`.
const KNOBS: &str = "cd /sys/class/net/eth0/queues; grep -H . /proc/irq/*/smp_affinity \
    /proc/irq/default_smp_affinity /proc/sys/net/core/rps_sock_flow_entries \
    $PWD/*/rps_* $PWD/*/xps_cpus; true";

struct Guest {
    lab: Lab,
}

impl Guest {
    fn boot(kernel: Kernel) -> Self {
        let guest = Self { lab: Lab::boot(&Spec::new(kernel, NicModel::VirtioNet)).unwrap() };
        guest.configure("");
        guest
    }

    fn configure(&self, more: &str) {
        self.lab
            .sh(&format!(
                "mkdir -p /tmp/conf; cat >/tmp/conf/netsilo.toml <<'END'\n{more}\n{CONFIG}\nEND"
            ))
            .unwrap();
    }

    /// Starts the daemon with the privileges of the service.
    fn start(&self) -> Job {
        let daemon = self
            .lab
            .spawn(&format!("exec {RIGHTS} {NETSILO} run --config /tmp/conf >/tmp/log 2>&1"))
            .unwrap();
        self.until("the first window", |status| status["windows"].as_u64() > Some(0));
        daemon
    }

    fn log(&self) -> String {
        self.lab.sh("cat /tmp/log").unwrap()
    }

    fn status(&self) -> Option<Json> {
        let output = self.lab.run(&format!("{NETSILO} status --json")).unwrap();
        if output.status == 0 {
            Some(serde_json::from_slice(&output.stdout).unwrap())
        } else {
            None
        }
    }

    /// Waits until the daemon's status holds; fails the test after two minutes.
    fn until(&self, what: &str, mut holds: impl FnMut(&Json) -> bool) -> Json {
        let look = || {
            // leaves the emulated CPUs to the daemon for a moment
            std::thread::sleep(Duration::from_millis(500));
            self.status()
        };
        let seen = until(what, look, |status| status.as_ref().is_some_and(&mut holds));
        seen.ok().flatten().unwrap_or_else(|| {
            let all = format!("{NETSILO} status; {NETSILO} show; {NETSILO} plan -a near-consumer");
            panic!("never: {what}\n{}\n{}", self.lab.run(&all).unwrap().text(), self.log())
        })
    }

    /// Waits until all interrupts with traffic are at their placement, on these CPUs, in the status
    /// and in the kernel, and the next window places the same: the first one after a workload's
    /// start may have seen a single packet.
    fn until_placed(&self, what: &str, allowed: &str) -> BTreeMap<u64, String> {
        let windows = |status: &Json| status["windows"].as_u64().unwrap();
        let started = self.status().as_ref().map_or(0, windows);
        let allowed = CpuSet::parse_list(allowed).unwrap();
        let there = |cpus: &String| CpuSet::parse_list(cpus).unwrap().is_subset(&allowed);
        let mut last = (started, BTreeMap::new());
        self.until(what, |status| {
            if windows(status) == last.0 {
                return false;
            }
            let moves = array(status, "placements").iter().any(|it| it["moves"] == true);
            let before = std::mem::replace(&mut last, (windows(status), placed(status))).1;
            // The status is of the last window; the kernel's files are of now.
            let all_there = || {
                let now = self.affinities();
                last.1.iter().all(|(irq, cpus)| there(cpus) && now[irq].contains(cpus))
            };
            !moves && !last.1.is_empty() && last.1 == before && all_there()
        });
        last.1
    }

    fn knobs(&self) -> BTreeMap<String, String> {
        let text = self.lab.sh(KNOBS).unwrap();
        let line = |line: &str| {
            line.split_once(':').map(|(file, text)| (file.to_owned(), text.to_owned()))
        };
        text.lines().filter_map(line).collect()
    }

    /// Returns where every interrupt is: its effective CPU, as the kernel chooses one if a driver
    /// requested several. A tx queue that sends nothing has no interrupt, and a request takes
    /// effect with the next one: there, the requested CPUs count as well.
    fn affinities(&self) -> BTreeMap<u64, Vec<String>> {
        let text = self
            .lab
            .sh("cd /proc/irq; grep -H . */effective_affinity_list
                 for irq in $(grep -l output /sys/kernel/irq/*/actions | cut -d/ -f5); do
                     grep -H . $irq/smp_affinity_list
                 done")
            .unwrap();
        let mut at = BTreeMap::<_, Vec<_>>::new();
        for line in text.lines() {
            let (file, cpus) = line.split_once(':').unwrap();
            let irq = file.split_once('/').unwrap().0.parse().unwrap();
            at.entry(irq).or_default().push(cpus.to_owned());
        }
        at
    }

    /// Moves all interrupts of eth0 to one CPU.
    fn all_on(&self, cpu: u32) {
        let all =
            "for irq in $(grep -lE '^virtio.*(in|out)put' /sys/kernel/irq/*/actions | cut -d/ -f5)";
        self.lab
            .sh(&format!("{all}; do echo {cpu} >/proc/irq/$irq/smp_affinity_list; done"))
            .unwrap();
    }

    /// Starts a reader on this CPU, and steady traffic on eight flows to it.
    fn workload(&self, port: u16, cpu: &str) -> Workload {
        let ports = format!("--port {port} --flows 8");
        let consume = format!("consume --mode udp-unconnected {ports} --cpus {cpu} --idle 300");
        let produce =
            format!("produce --proto udp --dest 10.77.0.2 {ports} --bytes 1000000000 --rate 400");
        let consumer = self.lab.traffic(&consume).unwrap();
        Workload {
            _producer: self.lab.peer(0).unwrap().traffic(&produce).unwrap(),
            _consumer: consumer,
        }
    }
}

/// A running workload; ends when dropped.
struct Workload {
    _producer: PeerJob,
    _consumer: Job,
}

fn array<'a>(status: &'a Json, name: &str) -> &'a Vec<Json> {
    status[name].as_array().unwrap()
}

/// Returns the CPUs of each interrupt that has a placement.
fn placed(status: &Json) -> BTreeMap<u64, String> {
    let placement = |it: &Json| Some((it["irq"].as_u64()?, it["cpus"].as_str()?.to_owned()));
    array(status, "placements").iter().filter_map(placement).collect()
}

#[test]
fn the_daemon_follows_repairs_yields_and_leaves_nothing_behind() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    for kernel in Kernel::ALL {
        let guest = Guest::boot(kernel);
        guest.all_on(7);
        let daemon = guest.start();
        let work = follows_the_workload(&guest);
        // Before the resets, which would explain a changed knob for a while; the result does not
        // depend on the kernel.
        if kernel == Kernel::V6_1 {
            yields_to_other_programs(&guest, &daemon);
            does_not_fight_irqbalance(&guest, &daemon);
        }
        // The oldest and the newest kernel cover the variants.
        if kernel != Kernel::V6_12 {
            repairs_what_drivers_reset(&guest);
        }
        leaves_only_what_it_wrote(&guest, daemon);
        // How kthreads are found depends on the kernel (`lab_read` of sys tests all); the journal
        // does not.
        if kernel == Kernel::V6_1 {
            is_undone_after_kill_9(&guest);
            irqbalance_follows_its_hints(&guest);
        }
        drop(work);
    }
}

fn follows_the_workload(guest: &Guest) -> Workload {
    let work = guest.workload(7000, "1");
    let placed = guest.until_placed("all on socket 0", "0-3");
    let status = guest.status().unwrap();
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
    // Only what the daemon wrote itself can be in conflict: an interrupt may have been on socket 1
    // from the start.
    let written = |entry: &Json| {
        let irq = entry["target"]["irq"].as_u64()?;
        (entry["what"] == "in_force" && placed.contains_key(&irq)).then_some(irq)
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

/// Starts the real irqbalance: the daemon leaves what it moves alone and names it, until it has
/// ended.
fn does_not_fight_irqbalance(guest: &Guest, daemon: &Job) {
    guest.until_placed("all placed before", "4-7");
    let program = netsilo_lab::irqbalance().unwrap();
    let balancer =
        guest.lab.spawn(&format!("exec {} --foreground --interval=1", program.display())).unwrap();
    // irqbalance moves interrupts at its own pace; whatever it moves is noticed.
    guest.all_on(0);
    let named = |status: &Json| {
        ["conflicts", "refusals"]
            .iter()
            .any(|list| status[*list].to_string().contains("irqbalance"))
    };
    let status = guest.until("irqbalance is named", named);
    let (windows, changes) =
        (status["windows"].as_u64().unwrap(), status["totals"]["changes"].clone());
    let later =
        guest.until("three more windows", |status| status["windows"].as_u64() > Some(windows + 2));
    assert_eq!(later["totals"]["changes"], changes, "nothing is written against it: {later:#}");
    balancer.stop().unwrap();
    guest.lab.sh(&format!("kill -HUP {}", daemon.pid().unwrap())).unwrap();
    guest.until_placed("placed again without irqbalance", "4-7");
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

fn is_undone_after_kill_9(guest: &Guest) {
    guest.lab.sh("rm /run/netsilo/journal; echo 1 >/sys/class/net/eth0/threaded").unwrap();
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
}

/// With hints only, the daemon writes no knob, and the real irqbalance with the exported policy
/// script moves each interrupt to the node of its hint.
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
