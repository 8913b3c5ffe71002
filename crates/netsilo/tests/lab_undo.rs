//! The transaction on real kernels and real NIC queues. Interrupts arrive where planned, and undo
//! restores every byte, even after kill -9 at each write.

#![allow(clippy::unwrap_used, reason = "clippy lets only functions marked as tests do so")]

use std::collections::BTreeMap;
use std::sync::Mutex;

use netsilo_decide::plan::Plan;
use netsilo_lab::{Kernel, Lab, NicModel, Spec, until};
use netsilo_model::change::{Change, Target, Value, knobs};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::netdev::NetdevIdentity;
use serde_json::Value as Json;

const NETSILO: &str = env!("CARGO_BIN_EXE_netsilo");

/// Prints every knob of the guest, as `file:text`.
const KNOBS: &str = "cd /sys/class/net/eth0/queues; grep -H . /proc/irq/*/smp_affinity \
    /proc/irq/default_smp_affinity /proc/sys/net/core/rps_sock_flow_entries \
    /proc/sys/net/core/rps_default_mask $PWD/*/rps_* $PWD/*/xps_cpus; \
    grep -H Cpus_allowed: $(grep -l ^napi/eth0 /proc/[0-9]*/comm | sed s/comm/status/); true";

struct Guest {
    lab: Lab,
    device_path: String,
}

impl Guest {
    fn boot(kernel: Kernel, model: NicModel) -> Self {
        let lab = Lab::boot(&Spec::new(kernel, model)).unwrap();
        // Threaded NAPI, so that kthreads are among the knobs.
        let device = lab
            .sh("echo 1 >/sys/class/net/eth0/threaded; readlink -f /sys/class/net/eth0/device")
            .unwrap();
        let device_path = device.trim().trim_start_matches("/sys").to_owned();
        Self { lab, device_path }
    }

    fn knobs(&self) -> BTreeMap<String, String> {
        let text = self.lab.sh(KNOBS).unwrap();
        let line = |line: &str| {
            line.split_once(':').map(|(file, text)| (file.to_owned(), text.to_owned()))
        };
        text.lines().filter_map(line).collect()
    }

    /// Returns the interrupts of eth0's queues, with their action names.
    fn queue_irqs(&self) -> Vec<(Irq, String)> {
        let text = self.lab.sh("cd /sys/kernel/irq; grep -HE 'TxRx-|put' */actions").unwrap();
        let irq = |line: &str| {
            let (file, action) = line.split_once(':')?;
            Some((Irq(file.split_once('/')?.0.parse().ok()?), action.to_owned()))
        };
        text.lines()
            .filter_map(irq)
            .filter(|(_, action)| action.starts_with("eth0") || action.contains("put."))
            .collect()
    }

    /// Returns the first kthread of eth0's NAPIs.
    fn thread(&self) -> Target {
        let text = self
            .lab
            .sh("f=$(grep -l ^napi/eth0 /proc/[0-9]*/comm | head -n1); cat $f ${f%comm}stat")
            .unwrap();
        let (comm, stat) = text.split_once('\n').unwrap();
        let (pid, fields) = (stat.split_once(' ').unwrap().0, stat.rsplit_once(')').unwrap().1);
        let start_time = fields.split_whitespace().nth(19).unwrap().parse().unwrap();
        Target::NapiThread(knobs::NapiThread {
            pid: pid.parse().unwrap(),
            comm: comm.to_owned(),
            start_time,
        })
    }

    /// Returns a plan that changes one knob of each kind and all interrupts, and the files.
    fn plan(&self, knobs: &BTreeMap<String, String>) -> (Plan, Vec<String>) {
        let netdev = NetdevIdentity {
            name: "eth0".into(),
            device_path: Some(self.device_path.clone()),
            ifindex: None,
        };
        let queues = "/sys/class/net/eth0/queues";
        let mut wanted: Vec<(Target, String, Value)> = Vec::new();
        for (n, (irq, action)) in self.queue_irqs().into_iter().enumerate() {
            let file = format!("/proc/irq/{irq}/smp_affinity");
            let now = CpuSet::parse_mask(&knobs[&file]).unwrap();
            let cpus = (0..8).map(|cpu| CpuSet::from_cpu(CpuId((n as u32 + cpu + 4) % 8)));
            let cpus = cpus.into_iter().find(|cpus| *cpus != now).unwrap();
            wanted.push((
                Target::IrqAffinity(knobs::IrqAffinity {
                    irq,
                    action,
                    netdev: Some(netdev.clone()),
                }),
                file,
                Value::Cpus(cpus),
            ));
        }
        let cpus = |list| Value::Cpus(CpuSet::parse_list(list).unwrap());
        let rx = |file| format!("{queues}/rx-0/{file}");
        wanted.push((
            Target::RpsCpus(knobs::RpsCpus { netdev: netdev.clone(), queue: 0 }),
            rx("rps_cpus"),
            cpus("2-3"),
        ));
        wanted.push((
            Target::RpsFlowCnt(knobs::RpsFlowCnt { netdev: netdev.clone(), queue: 0 }),
            rx("rps_flow_cnt"),
            Value::Count(1000),
        ));
        wanted.push((
            Target::XpsCpus(knobs::XpsCpus { netdev, queue: 1 }),
            format!("{queues}/tx-1/xps_cpus"),
            cpus("5-6"),
        ));
        wanted.push((
            Target::from(knobs::DefaultSmpAffinity),
            "/proc/irq/default_smp_affinity".into(),
            cpus("0-3"),
        ));
        let core = |file| format!("/proc/sys/net/core/{file}");
        wanted.push((
            Target::from(knobs::RpsSockFlowEntries),
            core("rps_sock_flow_entries"),
            Value::Count(5000),
        ));
        if knobs.contains_key(&core("rps_default_mask")) {
            wanted.push((
                Target::from(knobs::RpsDefaultMask),
                core("rps_default_mask"),
                cpus("1-2"),
            ));
        }
        let thread = self.thread();
        let Target::NapiThread(kthread) = &thread else { unreachable!() };
        let file = format!("/proc/{}/status", kthread.pid);
        wanted.push((thread, file, cpus("3")));
        // the order in which apply writes
        wanted.sort_by_key(|(target, ..)| target.step(false));
        let change = |(target, file, new): &(Target, String, Value)| {
            let old = netsilo_sys::transaction::knob::parse(
                target,
                knobs[file].trim_start_matches("Cpus_allowed:").trim(),
            )
            .unwrap();
            Change::untyped(target.clone(), old, new.clone(), "test").unwrap()
        };
        let changes = wanted.iter().map(change).collect();
        (Plan { changes, ..Plan::default() }, wanted.into_iter().map(|(_, file, _)| file).collect())
    }

    fn give(&self, plan: &Plan) {
        let plan = serde_json::to_string(plan).unwrap();
        self.lab.sh(&format!("cat >/tmp/plan.json <<'END'\n{plan}\nEND")).unwrap();
    }

    /// Kills an apply with -9 while it writes this file. A pipe mounted there makes it hang; every
    /// earlier read gets the old value. The process that apply starts for the write ends with
    /// apply, a moment later.
    fn kill_in_write(&self, file: &str, old: &str, written_before: usize) {
        let records = written_before + 1;
        let script = format!(
            "set -e; rm -rf /run/netsilo /tmp/pipe; journal=/run/netsilo/journal
             mkfifo /tmp/pipe; mount --bind /tmp/pipe {file}
             (while :; do echo {old} >/tmp/pipe; sleep 0.2; done) & feeder=$!
             {NETSILO} apply --yes --plan /tmp/plan.json >/tmp/log 2>&1 & pid=$!
             until [ \"$(grep -cE '\"(begin|wrote)\"' $journal 2>/dev/null)\" = {records} ]
             do sleep 0.05; done
             kill -9 $pid $feeder; wait $pid || umount -l {file}"
        );
        self.lab.sh(&script).unwrap();
    }
}

/// Lock for one guest at a time, regardless of the number of test threads.
static GUEST: Mutex<()> = Mutex::new(());

#[test]
fn interrupts_arrive_where_planned_and_undo_restores_every_byte() {
    there_and_back(&[(Kernel::V6_1, NicModel::VirtioNet), (Kernel::V6_12, NicModel::Igb)]);
}

/// `lab_knobs` tests every knob on igb with this kernel in `make test`.
#[test]
#[ignore = "too slow for make test: make test-long"]
fn undo_restores_every_byte_on_the_newest_kernel() {
    there_and_back(&[(Kernel::Newest, NicModel::VirtioNet)]);
}

fn there_and_back(machines: &[(Kernel, NicModel)]) {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let _one = GUEST.lock();
    for &(kernel, model) in machines {
        let guest = Guest::boot(kernel, model);
        // Refused connections, each from another port, give every queue a few packets.
        let peer = guest.lab.peer(0).unwrap();
        let knocking = "while :; do (echo >/dev/tcp/10.77.0.2/9) 2>/dev/null; done";
        let traffic = peer.spawn(&format!("exec bash -c '{knocking}'")).unwrap();
        let before = guest.knobs();
        let (plan, files) = guest.plan(&before);
        guest.give(&plan);
        let apply = format!("{NETSILO} apply -v --yes --json --plan /tmp/plan.json");
        let output = guest.lab.run(&apply).unwrap().ok().unwrap();
        let applied: Json = serde_json::from_slice(&output.stdout).unwrap();
        phases_are_told(&String::from_utf8_lossy(&output.stderr), &applied);
        assert_eq!(applied["changes"].as_array().unwrap().len(), plan.changes.len());
        let after = guest.knobs();
        assert!(files.iter().all(|file| before[file] != after[file]), "{after:?}");
        assert!(
            before.iter().all(|(file, old)| files.contains(file) || *old == after[file]),
            "{after:?}"
        );
        arrived_where_planned(&guest, &plan, &applied);
        traffic.stop().unwrap();
        let undone = guest.lab.sh(&format!("{NETSILO} undo")).unwrap();
        assert_eq!(guest.knobs(), before, "{undone}");
    }
}

/// Asserts that `apply -v` reported each phase once, and waited once for all interrupts together,
/// within the time limit.
fn phases_are_told(messages: &str, applied: &Json) {
    let phases: Vec<&str> = messages
        .lines()
        .filter_map(|line| line.strip_prefix("phase ")?.split(':').next())
        .collect();
    assert_eq!(phases, ["read", "write", "arrive"], "{messages}");
    let arrivals = applied["arrivals"].as_array().unwrap();
    let irqs = arrivals.len();
    let waits: Vec<&str> = messages.lines().filter(|line| line.starts_with("waiting ")).collect();
    let wait = format!("waiting at most 2s for {irqs} interrupts on the new cpus");
    assert_eq!(waits, [wait], "{messages}");
    let there = arrivals.iter().filter(|it| it["arrival"]["arrived"].is_u64()).count();
    let told = format!("  {there} of {irqs} arrived on their new cpus");
    assert!(messages.lines().any(|line| line.starts_with(&told)), "{messages}");
}

/// Asserts that interrupts arrive where planned: those that `apply` saw while it waited, and in the
/// end more than one.
fn arrived_where_planned(guest: &Guest, plan: &Plan, applied: &Json) {
    let wanted = |this: Irq| {
        let of = |change: &&Change| match &change.target {
            Target::IrqAffinity(knob) => knob.irq == this,
            _ => false,
        };
        let Value::Cpus(cpus) = &plan.changes.iter().find(of).unwrap().new else { unreachable!() };
        cpus.to_string()
    };
    let irqs: Vec<Irq> = applied["arrivals"]
        .as_array()
        .unwrap()
        .iter()
        .map(|arrival| {
            let irq = Irq(arrival["irq"].as_u64().unwrap() as u32);
            let arrived = arrival["arrival"]["arrived"].as_u64();
            assert!(arrived.is_none_or(|cpu| cpu.to_string() == wanted(irq)), "{arrival}");
            irq
        })
        .collect();
    // The affinity takes effect only with the next interrupt.
    let in_effect = |irq: &&Irq| {
        guest.lab.sh(&format!("cat /proc/irq/{irq}/effective_affinity_list")).unwrap().trim()
            == wanted(**irq)
    };
    let count = || irqs.iter().filter(in_effect).count();
    if let Err(error) = until("more than one interrupt arrives", count, |count| *count > 1) {
        unreachable!("{error}: {applied:#}\n{}", guest.lab.sh("cat /proc/interrupts").unwrap());
    }
}

#[test]
fn undo_restores_every_byte_after_kill_9_in_a_write() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let _one = GUEST.lock();
    let (guest, before, files) = a_guest_with_a_plan();
    // The first and the last interrupt, and one of each other kind; `make test-long` kills in each
    // write.
    let irqs = files.iter().filter(|file| file.ends_with("smp_affinity")).count() - 1;
    is_undone_after_kills(&guest, &before, &files, |n| n == 0 || n + 1 >= irqs);
    the_guard_restores(&guest, &before);
}

#[test]
#[ignore = "too slow for make test: make test-long"]
fn undo_restores_every_byte_after_kill_9_in_each_write() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let _one = GUEST.lock();
    let (guest, before, files) = a_guest_with_a_plan();
    is_undone_after_kills(&guest, &before, &files, |_| true);
}

/// A guest, its knobs, and the files that the plan in it writes.
fn a_guest_with_a_plan() -> (Guest, BTreeMap<String, String>, Vec<String>) {
    let guest = Guest::boot(Kernel::V6_1, NicModel::VirtioNet);
    let before = guest.knobs();
    let (plan, files) = guest.plan(&before);
    guest.give(&plan);
    (guest, before, files)
}

/// Kills an apply in the `n`-th write, for each chosen `n`.
fn is_undone_after_kills(
    guest: &Guest,
    before: &BTreeMap<String, String>,
    files: &[String],
    chosen: impl Fn(usize) -> bool,
) {
    // A kthread has no file to mount a pipe over.
    let killed = |(n, file): &(usize, &String)| chosen(*n) && !file.ends_with("status");
    for (n, file) in files.iter().enumerate().filter(killed) {
        guest.kill_in_write(file, &before[file], n);
        let killed = guest.knobs();
        assert_eq!(
            killed.iter().filter(|(file, text)| before[*file] != **text).count(),
            n,
            "{killed:?}"
        );
        let refused =
            guest.lab.run(&format!("{NETSILO} apply --yes --plan /tmp/plan.json")).unwrap();
        assert_ne!(refused.status, 0, "{}", refused.text());
        let undone = guest.lab.sh(&format!("{NETSILO} undo")).unwrap();
        assert_eq!(guest.knobs(), *before, "{undone}");
    }
}

/// The guard restores with its default folder, after its apply was killed.
fn the_guard_restores(guest: &Guest, before: &BTreeMap<String, String>) {
    let kill = format!(
        "rm -rf /run/netsilo
         {NETSILO} apply --yes --confirm-within 2s --plan /tmp/plan.json >/tmp/log 2>&1 & pid=$!
         until grep -q '\"done\"' /run/netsilo/journal 2>/dev/null; do sleep 0.05; done
         kill -9 $pid
         until grep -q '\"undone\"' /run/netsilo/journal; do sleep 0.1; done
         cat /run/netsilo/guard.log"
    );
    let log = guest.lab.sh(&kill).unwrap();
    assert!(log.contains("not confirmed in time"), "{log}");
    assert_eq!(guest.knobs(), *before, "{log}");
}
