//! The readers on real kernels, in the lab. This program boots the guest and runs one of its
//! ignored tests in it.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use netsilo_lab::{Kernel, Lab, NicModel, Spec};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::snapshot::attribution::Attribution;
use netsilo_model::snapshot::host::{Snapshot, Writable};
use netsilo_model::snapshot::netdev::Netdev;
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::bundle::{self, Addresses, Capture};
use netsilo_sys::files::root::Root;
use netsilo_sys::snapshot;

#[test]
fn every_kernel_is_read_correctly() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    // one guest at a time, whatever the number of test threads
    static GUEST: Mutex<()> = Mutex::new(());
    let _guest = GUEST.lock();
    for (kernel, nic) in [
        (Kernel::V6_1, NicModel::VirtioNet),
        (Kernel::V6_12, NicModel::Igb),
        (Kernel::Newest, NicModel::Vmxnet3),
    ] {
        let lab = Lab::boot(&Spec::new(kernel, nic)).unwrap();
        let program = std::env::current_exe().unwrap();
        let inside = format!("exec '{}' --ignored --nocapture --test-threads 1", program.display());
        let done = lab.run_for(&inside, Duration::from_secs(120)).unwrap().ok().unwrap();
        assert!(done.text().contains("5 passed"), "{}", done.text());
    }
}

fn live() -> Snapshot {
    snapshot(&Root::live()).unwrap()
}

fn eth0(snapshot: &Snapshot) -> &Netdev {
    snapshot.netdevs.iter().find(|netdev| netdev.name == "eth0").unwrap()
}

fn has_netlink(snapshot: &Snapshot) -> bool {
    !snapshot
        .gaps
        .iter()
        .any(|gap| gap.what == "netdev netlink" && gap.why.contains("kernel < 6.8"))
}

#[test]
#[ignore = "runs in a guest of the lab"]
fn a_bundle_reads_as_the_guest_and_nothing_is_missing() {
    let mut capture = Capture::start().unwrap();
    let observation = Observation {
        before: snapshot(&capture.sample(&Root::live()).unwrap()).unwrap(),
        after: snapshot(&capture.sample(&Root::live()).unwrap()).unwrap(),
        attribution: Attribution::default(),
    };
    let path = std::env::temp_dir().join("host.tar.zst");
    let release = &observation.after.machine.release;
    capture.window(&observation.attribution);
    capture.write(&path, release, Addresses::Keep).unwrap();
    assert_eq!(bundle::open(&path).unwrap(), observation);
    let expected = usize::from(!has_netlink(&observation.after));
    assert_eq!(observation.after.gaps.len(), expected, "{:?}", observation.after.gaps);
}

#[test]
#[ignore = "runs in a guest of the lab"]
fn each_queue_has_an_interrupt_and_the_requested_cpu_is_read() {
    let before = live();
    let netdev = eth0(&before);
    assert!(netdev.rx_queues.len() >= 4);
    for (queue, cpu) in netdev.rx_queues.iter().zip((0..8).rev().map(CpuId)) {
        let irq = queue.irq.as_ref().unwrap().to;
        assert!(netdev.irqs.contains(&irq));
        fs::write(format!("/proc/irq/{irq}/smp_affinity_list"), cpu.to_string()).unwrap();
        assert_eq!(live().irqs[&irq].requested, Some(CpuSet::from_iter([cpu])));
    }
}

#[test]
#[ignore = "runs in a guest of the lab"]
fn affinities_reported_writable_can_be_written() {
    let snapshot = live();
    // before 6.11 the file's mode carries no information; the lab's older and newer kernels also
    // differ in netlink
    let mode_is_reliable = has_netlink(&snapshot);
    for (irq, state) in &snapshot.irqs {
        let path = format!("/proc/irq/{irq}/smp_affinity_list");
        let written = fs::write(path, state.requested.as_ref().unwrap().to_string());
        if mode_is_reliable || eth0(&snapshot).irqs.contains(irq) {
            assert_eq!(
                written.is_ok(),
                state.writable == Writable::Yes,
                "irq {irq} {state:?} {written:?}"
            );
        }
    }
}

#[test]
#[ignore = "runs in a guest of the lab"]
fn kthreads_of_threaded_napi_are_found_where_they_may_run() {
    fs::write("/sys/class/net/eth0/threaded", "1").unwrap();
    let snapshot = live();
    let netdev = eth0(&snapshot);
    assert_eq!(netdev.threaded, Some(1));
    let threads: Vec<_> =
        netdev.napis.iter().filter_map(|napi| Some((napi.id, napi.thread.clone()?))).collect();
    assert!(threads.len() >= netdev.rx_queues.len(), "{:?}", netdev.napis);
    let (id, thread) = threads.iter().find(|(id, _)| id.0 != 0).unwrap();
    assert_eq!(thread.comm, format!("napi/eth0-{id}"));
    let done =
        Command::new("taskset").args(["-pc", "3,6", &thread.pid.to_string()]).status().unwrap();
    assert!(done.success());
    let after = live();
    let again = eth0(&after)
        .napis
        .iter()
        .find(|napi| napi.id == *id)
        .and_then(|napi| napi.thread.clone())
        .unwrap();
    assert_eq!(
        (again.pid, again.start_time, again.cpus.to_string()),
        (thread.pid, thread.start_time, "3,6".into())
    );
    fs::write("/sys/class/net/eth0/threaded", "0").unwrap();
}

#[test]
#[ignore = "runs in a guest of the lab"]
fn an_offline_cpu_leaves_the_counters_and_stays_in_the_topology() {
    fs::write("/sys/devices/system/cpu/cpu5/online", "0").unwrap();
    let snapshot = live();
    fs::write("/sys/devices/system/cpu/cpu5/online", "1").unwrap();
    assert_eq!(snapshot.topology.online.to_string(), "0-4,6-7");
    let counted: CpuSet = snapshot.cpus.keys().copied().collect();
    assert_eq!(counted, snapshot.topology.online);
    assert!(snapshot.cpus.values().all(|cpu| cpu.softnet.is_some()));
    assert_eq!(snapshot.topology.cpus[&CpuId(4)].siblings.to_string(), "4");
    assert_eq!(live().topology.cpus[&CpuId(4)].siblings.to_string(), "4-5");
}
