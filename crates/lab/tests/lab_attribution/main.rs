//! Compares eBPF attribution of queues, in guests whose NICs have several queues, with the counts
//! of the applications and of the NIC.
//!
//! The tracer in the guest is `examples/tracer.rs`. Bytes on the host's own kernel are
//! tested in `crates/sys/tests/attribution`.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)] // helpers of tests are tests

mod containers;
mod forwarding;
mod interrupts;
mod kernel_work;
mod servers;
mod settings;
mod software;
mod virtual_machines;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use netsilo_lab::exact::{self, Asked, Received};
use netsilo_lab::{Arch, Kernel, Lab, Nic, NicModel, Spec};
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::ids::NapiId;
use netsilo_model::snapshot::attribution::{Attribution, Consumption, Protocol, QueueResolution};

const PATIENCE: Duration = Duration::from_secs(120);
/// An option of [`traced_with`].
const TRACEPOINTS: &str = "--tracepoints";
/// The name of the processes of [`exact`].
const COMM: &str = "netsilo-lab";
const TCP_MODES: [&str; 6] = ["recv", "peek", "trunc", "splice", "zerocopy", "io_uring"];
const UDP_MODES: [&str; 4] = ["udp-connected", "udp-unconnected", "udp-recvmmsg", "udp-peek"];

#[test]
fn kernel_6_1_with_virtio_net() {
    in_a_guest(Kernel::V6_1, NicModel::VirtioNet, |lab| {
        every_way_of_reading_is_counted_to_the_byte(lab);
        servers::servers_count_what_netsilo_counts(lab);
        containers::behind_a_veth_are_resolved_by(lab, &[QueueResolution::FiveTuple]);
        a_server_that_sleeps_is_woken_from_the_cpu_of_the_interrupt(lab);
        under_rps_both_cpus_are_reported(lab);
        kernel_work::of_tls_is_its_readers(lab);
        virtual_machines::have_workers_of_the_kernel(lab);
        software::netdevs_are_what_the_table_says(lab, Kernel::V6_1);
    });
}

/// igb itself counts the packets of each queue, so all ways of forwarding are tested with it.
#[test]
fn kernel_6_12_with_igb() {
    in_a_guest(Kernel::V6_12, NicModel::Igb, |lab| {
        bytes_of_each_queue_are_those_of_its_sockets(lab);
        containers::behind_a_veth_are_resolved_by(lab, &[QueueResolution::FlowHash]);
        containers::behind_wireguard_are_resolved(lab);
        interrupts::are_known_by_the_napis_that_they_schedule(lab);
        forwarding::is_attributed_in_every_way(lab, NicModel::Igb);
    });
}

/// What the kernels before and after this one also show.
#[test]
#[ignore = "too slow for make test: make test-long"]
fn kernel_6_12_with_igb_in_every_way() {
    in_a_guest(Kernel::V6_12, NicModel::Igb, |lab| {
        every_way_of_reading_is_counted_to_the_byte(lab);
        a_server_that_sleeps_is_woken_from_the_cpu_of_the_interrupt(lab);
        containers::of_other_stacks_are_resolved(lab);
        sctp_is_counted_to_the_byte(lab);
        kernel_work::is_named_by_its_function(lab);
        kernel_work::has_the_names_of_its_threads(lab);
        kernel_work::of_tls_is_its_readers(lab);
        virtual_machines::take_what_netsilo_counts(lab);
        software::netdevs_are_what_the_table_says(lab, Kernel::V6_12);
    });
}

#[test]
fn newest_kernel_with_virtio_net() {
    in_a_guest(Kernel::Newest, NicModel::VirtioNet, |lab| {
        every_way_of_reading_is_counted_to_the_byte(lab);
        tracepoints_count_each_datagram_for_its_queue(lab);
        interrupts::are_known_by_the_napis_that_they_schedule(lab);
        forwarding::is_attributed_on_a_router(lab, NicModel::VirtioNet);
        sctp_is_counted_to_the_byte(lab);
        kernel_work::is_named_by_its_function(lab);
        kernel_work::has_the_names_of_its_threads(lab);
        virtual_machines::take_what_netsilo_counts(lab);
        software::netdevs_are_what_the_table_says(lab, Kernel::Newest);
    });
}

/// What earlier kernels also show.
#[test]
#[ignore = "too slow for make test: make test-long"]
fn newest_kernel_with_virtio_net_in_every_way() {
    in_a_guest(Kernel::Newest, NicModel::VirtioNet, |lab| {
        containers::of_other_stacks_are_resolved(lab);
        containers::behind_a_veth_are_resolved_by(lab, &[QueueResolution::FiveTuple]);
        containers::behind_wireguard_are_resolved(lab);
        kernel_work::of_tls_is_its_readers(lab);
        a_server_that_sleeps_is_woken_from_the_cpu_of_the_interrupt(lab);
        under_rps_both_cpus_are_reported(lab);
        forwarding::is_attributed_in_every_way(lab, NicModel::VirtioNet);
    });
}

/// What later kernels also show.
#[test]
#[ignore = "too slow for make test: make test-long"]
fn kernel_6_1_with_virtio_net_in_every_way() {
    in_a_guest(Kernel::V6_1, NicModel::VirtioNet, |lab| {
        interrupts::are_known_by_the_napis_that_they_schedule(lab);
        sctp_is_counted_to_the_byte(lab);
        kernel_work::is_named_by_its_function(lab);
        forwarding::is_attributed_in_every_way(lab, NicModel::VirtioNet);
    });
}

#[test]
#[ignore = "too slow for make test: make test-long"]
fn kernel_6_12_with_igb_and_interrupt_threads() {
    let words = ["threadirqs", "thread_backlog_napi"];
    in_a_guest_with(Kernel::V6_12, NicModel::Igb, &words, |lab| {
        interrupts::are_known_by_their_threads(lab);
    });
}

/// Another architecture: interrupts of a GIC and its ITS, other hooks. Its programs are those of
/// `scripts/aarch64`.
#[test]
#[ignore = "too slow for make test: make test-long"]
fn kernel_6_1_of_arm64_with_virtio_net() {
    in_a_guest_of(arm64(Kernel::V6_1, NicModel::VirtioNet), |lab| {
        every_way_of_reading_is_counted_to_the_byte(lab);
        interrupts::are_known_without_the_list_of_napis(lab);
        kernel_work::is_named_by_its_function(lab);
        software::netdevs_are_what_the_table_says(lab, Kernel::V6_1);
    });
}

#[test]
#[ignore = "too slow for make test: make test-long"]
fn kernel_6_12_of_arm64_with_igb() {
    in_a_guest_of(arm64(Kernel::V6_12, NicModel::Igb), |lab| {
        every_way_of_reading_is_counted_to_the_byte(lab);
        bytes_of_each_queue_are_those_of_its_sockets(lab);
        interrupts::are_known_by_the_napis_that_they_schedule(lab);
        settings::are_written_and_restored(lab);
        kernel_work::is_named_by_its_function(lab);
        kernel_work::has_the_names_of_its_threads(lab);
        software::netdevs_are_what_the_table_says(lab, Kernel::V6_12);
    });
}

#[test]
#[ignore = "too slow for make test: make test-long"]
fn newest_kernel_of_arm64_with_virtio_net() {
    in_a_guest_of(arm64(Kernel::Newest, NicModel::VirtioNet), |lab| {
        every_way_of_reading_is_counted_to_the_byte(lab);
        interrupts::are_known_by_the_napis_that_they_schedule(lab);
        kernel_work::is_named_by_its_function(lab);
        kernel_work::has_the_names_of_its_threads(lab);
        software::netdevs_are_what_the_table_says(lab, Kernel::Newest);
    });
}

fn arm64(kernel: Kernel, model: NicModel) -> Spec {
    Spec { arch: Arch::Arm64, ..Spec::new(kernel, model) }
}

/// Boots a guest with two NICs, one guest at a time, and tests `claims` in it. First come those
/// about the guest's own programs, which read from the first NIC, then those about forwarding
/// between both.
fn in_a_guest(kernel: Kernel, model: NicModel, claims: impl FnOnce(&Lab)) {
    in_a_guest_with(kernel, model, &[], claims);
}

/// The same with more words on the kernel's command line.
fn in_a_guest_with(kernel: Kernel, model: NicModel, words: &[&str], claims: impl FnOnce(&Lab)) {
    let kernel_args = words.iter().map(|word| (*word).to_owned()).collect();
    let nics = vec![Nic::from(model); 2];
    let iommu = model == NicModel::Igb; // virtio's DMA does not go through one
    in_a_guest_of(Spec { nics, kernel_args, iommu, ..Spec::new(kernel, model) }, claims);
}

fn in_a_guest_of(spec: Spec, claims: impl FnOnce(&Lab)) {
    static TURN: Mutex<()> = Mutex::new(());
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let _turn: MutexGuard<'_, ()> = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let lab = Lab::boot(&spec).unwrap();
    claims(&lab);
}

/// Returns what a tracer in the guest counts while `happens` runs.
fn traced(lab: &Lab, happens: impl FnOnce()) -> Attribution {
    traced_with(lab, "", happens)
}

/// Traces with options: `--stages` also samples stages, `--runqueue` also measures how long readers
/// wait for a CPU, `--tracepoints` traces no function, `--sent` also counts what each tx queue got,
/// `--snapshot` also writes netsilo's snapshot of the guest to `/tmp/snapshot`.
fn traced_with(lab: &Lab, options: &str, happens: impl FnOnce()) -> Attribution {
    lab.sh("rm -f /tmp/attached /tmp/enough; mkfifo /tmp/attached /tmp/enough").unwrap();
    let program = netsilo_lab::example(env!("CARGO_MANIFEST_DIR"), "tracer").unwrap();
    let tracer = format!("exec '{}' {options}", program.display());
    let tracer = lab.spawn(&tracer).unwrap();
    lab.sh("cat /tmp/attached").unwrap();
    happens();
    lab.sh("echo > /tmp/enough").unwrap();
    tracer.wait(PATIENCE).unwrap().ok().unwrap();
    serde_json::from_str(&lab.sh("cat /tmp/attribution").unwrap()).unwrap()
}

/// Receives in the guest, at `address` and with the command `prefix`, what the peer sends. Returns
/// the application's count.
fn passed(lab: &Lab, prefix: &str, address: &str, mode: &str, traffic: Traffic) -> Received {
    let program = exact::program().unwrap();
    let program = program.display();
    let Traffic { flows, bytes } = traffic;
    let udp = if mode.starts_with("udp") { "--udp" } else { "" };
    let all = format!("--port 7000 --ports {flows} --flows {flows} --bytes {bytes}");
    let receiver =
        lab.spawn(&format!("{prefix} '{program}' exact receive --mode {mode} {all} --cpus 5"));
    let send = format!("send {udp} --dest {address} {all}");
    lab.peer(0).unwrap().exact(&send).unwrap().wait(PATIENCE).unwrap().ok().unwrap();
    let received: Received =
        serde_json::from_str(&receiver.unwrap().wait(PATIENCE).unwrap().ok().unwrap().text())
            .unwrap();
    assert_eq!(received.bytes, u64::from(flows) * bytes, "{mode}");
    received
}

/// Flows, each to its own port, and the bytes of each.
#[derive(Clone, Copy)]
struct Traffic {
    flows: u16,
    bytes: u64,
}

fn of(attribution: &Attribution, pid: u32) -> Vec<&Consumption> {
    attribution.consumption.iter().filter(|read| read.consumer.tgid == pid).collect()
}

fn sum<'a>(reads: impl IntoIterator<Item = &'a &'a Consumption>) -> u64 {
    reads.into_iter().map(|read| read.bytes).sum()
}

/// Within the guest: the host's kernel may not have SCTP.
fn sctp_is_counted_to_the_byte(lab: &Lab) {
    lab.sh("modprobe sctp").unwrap();
    let program = exact::program().unwrap();
    let all = "--port 7000 --flows 4 --bytes 200001";
    let (mut received, program) = (None, program.display());
    let attribution = traced(lab, || {
        let receive = format!("'{program}' exact receive --mode sctp {all} --cpus 5");
        let receiver = lab.spawn(&receive).unwrap();
        lab.sh(&format!("'{program}' exact send --sctp --dest 127.0.0.1 {all}")).unwrap();
        let text = receiver.wait(PATIENCE).unwrap().ok().unwrap().text().into_owned();
        received = Some(serde_json::from_str::<Received>(&text).unwrap());
    });
    let received = received.unwrap();
    let reads = of(&attribution, received.pid);
    assert_eq!(received.bytes, 4 * 200_001);
    accounted(lab, &attribution, sum(&reads), &received);
    let expected = |it: &&Consumption| it.protocol == Protocol::Sctp && it.consumer_cpu == CpuId(5);
    assert!(reads.iter().all(expected), "{reads:#?}");
}

/// This kernel has neither fentry (probes count instead) nor `CONFIG_KALLSYMS_ALL`.
const NOT_ON_6_1_OF_ARM64: [&str; 3] =
    ["fentry/skb_consume_udp", "fentry/__udp_enqueue_schedule_skb", "tp_btf/sched_waking"];

fn every_way_of_reading_is_counted_to_the_byte(lab: &Lab) {
    let address = Lab::guest_address(0).to_string();
    let mut consumed = Vec::new();
    let attribution = traced(lab, || {
        for mode in TCP_MODES {
            consumed
                .push((mode, passed(lab, "", &address, mode, Traffic { flows: 8, bytes: 50_001 })));
        }
        for mode in UDP_MODES {
            consumed
                .push((mode, passed(lab, "", &address, mode, Traffic { flows: 4, bytes: 20_001 })));
        }
    });
    for (mode, truth) in &consumed {
        let reads = of(&attribution, truth.pid);
        accounted(lab, &attribution, sum(&reads), truth);
        let udp = mode.starts_with("udp");
        for read in reads {
            assert_eq!(
                (read.protocol == Protocol::Udp, read.resolved, read.approximate),
                (udp, QueueResolution::Direct, false)
            );
            assert!(
                read.napi.is_some() && read.rx_queue.is_some() && read.protocol_cpu.is_some(),
                "{mode}: {read:#?}"
            );
            assert_eq!((read.consumer_cpu, read.consumer.comm.as_str()), (CpuId(5), COMM));
            assert!(!udp || read.poll_cpu == read.protocol_cpu, "without RPS: {read:#?}");
        }
    }
    a_queue_has_one_napi_which_its_device_polls(&attribution);
    assert!(
        attribution.lost_events <= FEW || preempts(lab),
        "{} events lost",
        attribution.lost_events
    );
    let refused: Vec<_> = attribution.hooks.iter().filter(|hook| hook.refused.is_some()).collect();
    let names: Vec<_> = refused.iter().map(|hook| hook.hook.as_str()).collect();
    let kernel = lab.sh("uname -r").unwrap();
    let is_arm64_6_1 = kernel.starts_with("6.1.") && kernel.trim().ends_with("-arm64");
    assert_eq!(names, if is_arm64_6_1 { &NOT_ON_6_1_OF_ARM64[..] } else { &[] }, "{refused:#?}");
    assert!(attribution.cpu_time.values().any(|time| time.net_rx_runs > 0 && time.hardirqs > 0));
}

/// How many events may be lost on kernels that do not preempt tasks, because an interrupt may
/// arrive while a program runs for a task.
const FEW: u64 = 4;

/// Asserts that all bytes were counted, or that lost events are reported. Only the kernel that
/// preempts itself (7.2) loses more than a few.
fn accounted(lab: &Lab, attribution: &Attribution, counted: u64, truth: &Received) {
    let few = attribution.lost_events <= FEW || preempts(lab);
    let announced = few && attribution.lost_events > 0 && counted < truth.bytes;
    assert!(
        counted == truth.bytes || announced,
        "{} of {} bytes, {} events lost: {:#?}",
        counted,
        truth.bytes,
        attribution.lost_events,
        of(attribution, truth.pid)
    );
}

fn preempts(lab: &Lab) -> bool {
    let models = lab.sh("cat /sys/kernel/debug/sched/preempt").unwrap();
    models.contains("(lazy)") || models.contains("(full)")
}

fn a_queue_has_one_napi_which_its_device_polls(attribution: &Attribution) {
    let mut napis: BTreeMap<u32, NapiId> = BTreeMap::new();
    for read in
        attribution.consumption.iter().filter(|read| read.resolved == QueueResolution::Direct)
    {
        let (Some(napi), Some(queue)) = (read.napi, read.rx_queue) else { panic!("{read:#?}") };
        assert_eq!(*napis.entry(queue).or_insert(napi), napi);
        let polls = attribution.polls.iter().find(|poll| poll.napi == napi).unwrap();
        assert_eq!(polls.netdev, "eth0");
        // if there was a single poller, it is among these
        let cpus: Vec<_> = attribution
            .polls
            .iter()
            .filter(|poll| poll.napi == napi)
            .map(|poll| poll.cpu)
            .collect();
        assert!(read.poll_cpu.is_none_or(|cpu| cpus.contains(&cpu)), "{read:#?} {cpus:?}");
    }
    assert!(napis.len() > 1, "several queues were used: {napis:?}");
}

/// igb keeps a flow on its queue, so the NAPI that a socket reports at its end is the NAPI of all
/// its bytes.
fn bytes_of_each_queue_are_those_of_its_sockets(lab: &Lab) {
    lab.sh("ethtool -N eth0 rx-flow-hash udp4 sdfn").unwrap();
    let address = Lab::guest_address(0).to_string();
    for (mode, options) in [("recv", ""), ("udp-connected", ""), ("udp-unconnected", TRACEPOINTS)] {
        let mut consumed = None;
        let traffic = Traffic { flows: 16, bytes: 20_001 };
        let attribution = traced_with(lab, options, || {
            consumed = Some(passed(lab, "", &address, mode, traffic));
        });
        let consumed = consumed.unwrap();
        let mut truth: BTreeMap<u32, u64> = BTreeMap::new();
        for socket in &consumed.sockets {
            *truth.entry(socket.incoming_napi_id).or_default() += socket.bytes;
        }
        let mut counted: BTreeMap<u32, u64> = BTreeMap::new();
        for read in of(&attribution, consumed.pid).into_iter().filter(|read| read.bytes > 0) {
            *counted.entry(read.napi.unwrap().0).or_default() += read.bytes;
        }
        accounted(lab, &attribution, counted.values().sum(), &consumed);
        assert!(counted == truth || attribution.lost_events > 0, "{mode}: {counted:?} {truth:?}");
        assert!(truth.len() > 2, "several queues were used: {truth:?}");
        a_queue_has_one_napi_which_its_device_polls(&attribution);
    }
}

/// As where the kernel refuses fentry and kprobes.
fn tracepoints_count_each_datagram_for_its_queue(lab: &Lab) {
    let address = Lab::guest_address(0).to_string();
    for mode in ["udp-connected", "udp-unconnected"] {
        let mut consumed = None;
        let traffic = Traffic { flows: 8, bytes: 20_001 };
        let attribution = traced_with(lab, TRACEPOINTS, || {
            consumed = Some(passed(lab, "", &address, mode, traffic));
        });
        let consumed = consumed.unwrap();
        let reads = of(&attribution, consumed.pid);
        accounted(lab, &attribution, sum(&reads), &consumed);
        let is_exact = |it: &&Consumption| {
            !it.approximate && it.resolved == QueueResolution::Direct && it.rx_queue.is_some()
        };
        assert!(reads.iter().all(is_exact), "{mode}: {reads:#?}");
        a_queue_has_one_napi_which_its_device_polls(&attribution);
    }
}

/// The NIC interrupts CPU 1, and the server runs on CPU 5. Each time the server sleeps, CPU 1 wakes
/// it, also from a threaded NAPI. Nobody else reads in the guest, so each time the server gets a
/// CPU is one wait, and there are no other waits.
fn a_server_that_sleeps_is_woken_from_the_cpu_of_the_interrupt(lab: &Lab) {
    interrupts_on_cpu_1(lab);
    let server = |udp: &str| lab.exact(&format!("echo {udp} --port 7100 --cpu 5")).unwrap();
    let client = |udp: &str, seconds| {
        let to = format!("--dest {} --port 7100 --duration {seconds}", Lab::guest_address(0));
        let client = lab.peer(0).unwrap().exact(&format!("ask {udp} {to}")).unwrap();
        client.wait(PATIENCE).unwrap().ok().unwrap().text().into_owned()
    };
    for (udp, threaded) in [("", false), ("--udp", false), ("", true)] {
        let kthreads = "for pid in $(pgrep '^napi/eth0'); do taskset -pc 1 $pid; done";
        lab.sh(&format!("echo {} > /sys/class/net/eth0/threaded; {kthreads}", u32::from(threaded)))
            .unwrap();
        let served = server(udp);
        // also moves the interrupts: each moves when the next one arrives
        client(udp, 1);
        let (mut transactions, mut before, mut after) = (0, Times::default(), Times::default());
        let attribution = traced_with(lab, "--runqueue", || {
            before = Times::of(lab);
            let client = client(udp, 2);
            after = Times::of(lab);
            transactions = serde_json::from_str::<Asked>(&client).unwrap().transactions;
        });
        let (slept, came) = (after.slept - before.slept, after.came - before.came);
        let waits = attribution.runqueue_latency.as_ref().unwrap().count();
        // before its first read it is not known as a reader; it continues to run while the tracer
        // ends
        let at_most = Times::of(lab).came - before.came + 20;
        let about = came * 19 / 20..=at_most;
        assert!(
            about.contains(&waits),
            "{udp}, threaded {threaded}: {waits} waits, got its cpu {came} times"
        );
        served.stop().unwrap();
        let reader =
            attribution.consumption.iter().find(|read| read.consumer.comm == COMM).unwrap();
        let woken: Vec<_> =
            attribution.wakeups.iter().filter(|w| w.tgid == reader.consumer.tgid).collect();
        let across = woken.iter().filter(|w| (w.waker_cpu, w.sleeper_cpu) == (CpuId(1), CpuId(5)));
        let across: u64 = across.map(|wakeup| wakeup.count).sum();
        let idle: u64 = woken.iter().map(|wakeup| wakeup.idle.unwrap()).sum();
        let all: u64 = woken.iter().map(|wakeup| wakeup.count).sum();
        assert!(idle >= all / 2, "nothing else runs on cpu 5: {woken:#?}");
        let reschedules = attribution.cpu_time.values().map(|time| time.reschedules.unwrap().count);
        let calls: u64 = attribution.cpu_time.values().map(|time| time.ipis).sum();
        println!(
            "{idle} of {all} found it idle; {calls} call-function ipis and {} reschedule ipis",
            reschedules.sum::<u64>()
        );
        // it may be woken before it is fully asleep, and sleep for other reasons; the start and end
        // of a connection wake it too
        let about = slept * 19 / 20..=transactions + 20;
        assert!(
            slept > 20 && about.contains(&across),
            "{udp}, threaded {threaded}: {transactions} transactions, slept {slept} times: \
             {woken:#?}"
        );
        println!(
            "{udp}, threaded {threaded}: {transactions} transactions, slept {slept} times, \
             woken {across} times, {waits} waits"
        );
    }
    lab.sh("echo 0 > /sys/class/net/eth0/threaded").unwrap();
}

/// Counts of a process with one thread since its start.
#[derive(Default)]
struct Times {
    slept: u64,
    /// How often it got a CPU.
    came: u64,
}

impl Times {
    fn of(lab: &Lab) -> Self {
        let text = format!("cd /proc/$(pgrep -x {COMM}); grep ^voluntary status; cat schedstat");
        let text = lab.sh(&text).unwrap();
        let number = |word: &str| word.parse().unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        let [_, slept, _, _, came] = words[..] else { panic!("{text}") };
        Self { slept: number(slept), came: number(came) }
    }
}

fn interrupts_on_cpu_1(lab: &Lab) {
    lab.sh("for dir in /sys/class/net/eth0/device/../msi_irqs \
            /sys/class/net/eth0/device/msi_irqs; do \
            for irq in $(ls $dir 2>/dev/null); do \
            echo 1 > /proc/irq/$irq/smp_affinity_list; done; done")
        .unwrap();
}

/// All protocol work runs on CPU 7, which receives no interrupt of the NIC.
fn under_rps_both_cpus_are_reported(lab: &Lab) {
    lab.sh("for queue in /sys/class/net/eth0/queues/rx-*; do echo 80 > $queue/rps_cpus; done")
        .unwrap();
    interrupts_on_cpu_1(lab);
    let address = Lab::guest_address(0).to_string();
    // on each queue the interrupt moves when the next one arrives
    passed(lab, "", &address, "recv", Traffic { flows: 32, bytes: 10_000 });
    let mut consumed = Vec::new();
    let attribution = traced(lab, || {
        for mode in ["recv", "udp-connected", "udp-unconnected"] {
            consumed.push((
                mode,
                passed(lab, "", &address, mode, Traffic { flows: 8, bytes: 100_001 }),
            ));
        }
    });
    for (mode, truth) in &consumed {
        let reads = of(&attribution, truth.pid);
        accounted(lab, &attribution, sum(&reads), truth);
        let steered = sum(reads.iter().filter(|read| read.protocol_cpu == Some(CpuId(7))));
        assert_eq!(steered, sum(&reads), "{mode}: {reads:#?}");
        if mode.starts_with("udp") {
            let polled =
                sum(reads.iter().filter(|read| read.poll_cpu.is_some_and(|cpu| cpu != CpuId(7))));
            assert_eq!(polled, sum(&reads), "{mode}: {reads:#?}");
        }
    }
    assert!(
        attribution.cpu_time[&CpuId(7)].ipis > 0,
        "RPS kicks by IPI: {:#?}",
        attribution.cpu_time
    );
    lab.sh("for queue in /sys/class/net/eth0/queues/rx-*; do echo 0 > $queue/rps_cpus; done")
        .unwrap();
}
