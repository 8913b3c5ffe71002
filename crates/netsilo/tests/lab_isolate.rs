//! `netsilo isolate` on a real kernel with traffic: no device interrupt that can be moved arrives
//! on the isolated CPUs, and undo restores every byte.

#![allow(clippy::unwrap_used, reason = "clippy lets only functions marked as tests do so")]

use netsilo_decide::judge::disturbances::{DisturbanceKind, Disturbances};
use netsilo_decide::plan::Plan;
use netsilo_lab::{Kernel, Lab, NicModel, Spec};

const NETSILO: &str = env!("CARGO_BIN_EXE_netsilo");

/// Prints each mask that the verb may write.
const MASKS: &str = "grep -H . /proc/irq/*/smp_affinity /proc/irq/default_smp_affinity \
    /proc/sys/net/core/rps_default_mask /sys/class/net/*/queues/*/*ps_cpus; \
    grep -H Cpus_allowed: $(grep -l ^napi/eth0 /proc/[0-9]*/comm | sed s/comm/status/)";

/// Puts queues on CPUs 4-7: interrupts, RPS, XPS of two queues of four, and kthreads anywhere.
const SPOIL: &str = "echo 1 >/sys/class/net/eth0/threaded; \
    for irq in $(grep -l 'put' /sys/kernel/irq/*/actions | cut -d/ -f5); do \
        echo $((4 + irq % 4)) >/proc/irq/$irq/smp_affinity_list; done; \
    cd /sys/class/net/eth0/queues; for q in rx-*; do echo f0 >$q/rps_cpus; done; \
    echo 3c >tx-0/xps_cpus; echo c0 >tx-1/xps_cpus; echo 30 >/proc/sys/net/core/rps_default_mask";

/// Reads the NVMe disk on CPU 5, past the page cache: its queue's interrupt arrives there.
const READ_NVME: &str = "taskset -c 5 dd if=/dev/nvme0n1 of=/dev/null bs=4k count=50 iflag=direct \
    2>/dev/null";

#[test]
#[ignore = "42 s in emulation: make test-long"]
fn no_device_interrupt_that_can_move_arrives_on_an_isolated_cpu() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let spec = Spec::new(Kernel::V6_12, NicModel::VirtioNet);
    let disk = Some(folder.path().join("disk"));
    let lab = Lab::boot(&Spec { disk, nvme: true, ..spec }).unwrap();
    lab.sh(&format!("modprobe nvme; until {READ_NVME}; do sleep 0.1; done")).unwrap();
    lab.sh(SPOIL).unwrap();
    let masks = || lab.sh(MASKS).unwrap();
    let before = masks();
    let receive = "receive --mode udp-unconnected --cpus 0,1 --port 7000 --ports 16 --flows 16 \
                   --idle 300";
    let reader = lab.exact(receive).unwrap();
    let dest = Lab::guest_address(0);
    let send = format!(
        "send --udp --dest {dest} --port 7000 --ports 16 --flows 16 --bytes 400000000 --size 64 \
         --rate 500"
    );
    let sender = lab.peer(0).unwrap().exact(&send).unwrap();
    let found = || -> Disturbances {
        lab.json(&format!("{NETSILO} check --cpus 4-7 --interval 2s --no-bpf --json")).unwrap()
    };
    let first = found();
    let kind = DisturbanceKind::DeviceInterrupt;
    assert!(first.totals[&kind] > 50, "{first:#?}");
    let isolate = format!("{NETSILO} isolate --cpus 4-7 --interval 1s --no-bpf");
    let text = lab.sh(&format!("{isolate} --yes 2>&1")).unwrap();
    let after = found();
    assert_eq!(after.totals[&kind], 0, "{text}\n{after:#?}");
    assert_eq!(after.totals[&DisturbanceKind::Rps], 0, "{text}\n{after:#?}");
    assert!(text.contains("device interrupts: 0"), "{text}");
    let again: Plan = lab.json(&format!("{isolate} --dry-run --json")).unwrap();
    assert_eq!(again.changes, [], "after {text}");
    // The kernel alone places the interrupts of a disk's queues.
    let left = again.unchanged.iter().filter(|it| it.reason.starts_with("the kernel places it"));
    let left: Vec<String> = left.flat_map(|it| irqs(&it.subject)).collect();
    for queues in ["-- -req[.]", "nvme0q[1-9]"] {
        let command = format!("grep -l {queues} /sys/kernel/irq/*/actions | cut -d/ -f5");
        let disk = lab.sh(&command).unwrap();
        let on_them = disk.lines().filter(|irq| left.iter().any(|it| it == irq)).count();
        assert_eq!((disk.lines().count(), on_them), (8, 4), "{queues}: {again:#?}");
    }
    // Who reads a disk on an isolated CPU gets its interrupts there.
    let reads = lab.spawn(&format!("for i in $(seq 60); do {READ_NVME}; sleep 0.1; done")).unwrap();
    let disturbed = found();
    reads.stop().unwrap();
    assert!(disturbed.totals[&kind] > 50, "{disturbed:#?}");
    let devices: Vec<_> = disturbed.causes.iter().filter(|it| it.kind == kind).collect();
    let [nvme] = devices[..] else { panic!("{devices:#?}") };
    assert!(nvme.cause.contains("nvme0q"), "{nvme:?}");
    assert!(nvme.remedy.contains("isolcpus=managed_irq,4-7"), "{nvme:?}");
    assert_eq!(nvme.counts.keys().map(|cpu| cpu.0).collect::<Vec<_>>(), [5]);
    let used = lab.sh("grep -l . /sys/kernel/irq/*/actions | cut -d/ -f5").unwrap();
    let stay: Vec<String> = again.unchanged.iter().flat_map(|it| irqs(&it.subject)).collect();
    for line in masks().lines().filter(|it| !it.contains("xps_cpus")) {
        let (file, mask) = line.rsplit_once(':').unwrap();
        let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
        let irq = file.strip_prefix("/proc/irq/").and_then(|it| it.split_once("/smp"));
        let is_used = |irq: &str| used.lines().any(|it| it == irq);
        let is_left = |irq: &str| !is_used(irq) || stay.iter().any(|it| it == irq);
        let stays = irq.is_some_and(|(irq, _)| is_left(irq));
        assert!(mask & 0xf0 == 0 || stays, "{line}: {again:#?}");
    }
    lab.sh(&format!("{NETSILO} undo")).unwrap();
    assert_eq!(masks(), before, "{text}");
    sender.stop().unwrap();
    reader.stop().unwrap();
}

/// The numbers in `irqs 0-2 8 (timer)`.
fn irqs(subject: &str) -> Vec<String> {
    let Some((numbers, _)) = subject.strip_prefix("irq").and_then(|it| it.split_once(" (")) else {
        return Vec::new();
    };
    let runs = numbers.trim_start_matches('s').split_whitespace();
    let ends = runs.map(|run| run.split_once('-').unwrap_or((run, run)));
    let all = ends.flat_map(|(first, last)| first.parse::<u32>().unwrap()..=last.parse().unwrap());
    all.map(|irq| irq.to_string()).collect()
}
