//! Tests of wakeups, forwarding, stages and XDP detection.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::Duration;

use netsilo_model::derive::stages::Stages;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::snapshot::attribution::{Attribution, Consumption, Protocol};
use netsilo_model::snapshot::netdev::Xdp;
use netsilo_model::snapshot::stage_samples::ReceiveStage;
use netsilo_sys::bpf::tracer::{Options, Tracer};
use netsilo_sys::files::root::Root;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::at;
use super::ethtool;
use super::helper;
use super::in_netns_of;
use super::in_own_netns;
use super::ip;
use super::netns;
use super::reader::Reader;
use super::reader::send;
use super::reader_behind_veth;
use super::tap::machine;
use super::unshare_mounts_and_see_own_sysfs;

/// Sends from behind a veth through this namespace to a tap. The program that reads it has taken
/// the packets, so they do not count as forwarded, too.
#[test]
fn packets_routed_to_a_tap_are_those_of_its_reader() {
    in_own_netns(|| {
        let reader = reader_behind_veth(1);
        let vmm = machine(37);
        let mut tracer = Tracer::attach(Options::exact());
        let hook = |attribution: &Attribution| attribution.counts("forwarded packets");
        assert!(!hook(&tracer.read().unwrap()), "this namespace does not forward yet");
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        assert!(tracer.read().unwrap().forwarded.is_empty());
        let there = format!("--net=/proc/{}/ns/net", reader.tgid());
        ip_at(&there, "route add default via 10.9.0.1");
        send_from(&there, 37);
        assert!(vmm.wait_with_output().unwrap().status.success());
        let attribution = tracer.read().unwrap();
        assert!(hook(&attribution));
        let is_tap = |row: &&Consumption| row.protocol == Protocol::Tap;
        let rows = attribution.consumption.iter().filter(is_tap);
        let rows: Vec<_> = rows.filter(|row| row.consumer.netns == netns()).collect();
        let sums = rows.iter().fold((0, 0), |(p, b), row| (p + row.events, b + row.bytes));
        assert_eq!(sums, (37, 37 * (14 + 20 + 8 + 100)), "{rows:#?}");
        assert!(rows.iter().all(|row| (row.napi, row.rx_queue) == (None, None)), "{rows:#?}");
        assert_eq!(attribution.forwarded.iter().find(|row| row.egress_netns == netns()), None);
    });
}

/// Counts every wakeup of a threaded NAPI's kthread, whatever its cause; here it is the sender.
#[test]
fn wakeups_of_a_napi_kthread_are_counted_by_the_cpu_that_wakes_it() {
    in_own_netns(|| {
        let mut reader = reader_behind_veth(1);
        // otherwise no NAPI polls the packets (`veth_skb_is_eligible_for_gro`,
        // `drivers/net/veth.c`)
        ethtool("-K veth-here tso off");
        let there = in_netns_of(reader.tgid())
            .args(["unshare", "-m", "sh", "-c"])
            .arg(
                "mount -t sysfs own /sys && ethtool -K veth-there gro on && \
                 echo 1 >/sys/class/net/veth-there/threaded",
            )
            .status();
        assert!(there.unwrap().success());
        let mut tracer = Tracer::attach(Options::exact());
        // with pauses, so that the kthread sleeps
        let mut stream = TcpStream::connect((Ipv4Addr::new(10, 9, 0, 2), reader.port)).unwrap();
        stream.set_nodelay(true).unwrap();
        for _ in 0..200 {
            stream.write_all(&[7; 100]).unwrap();
            thread::sleep(Duration::from_millis(2));
        }
        drop(stream);
        assert_eq!(reader.said("read"), 20_000);
        let attribution = tracer.read().unwrap();
        let poll = attribution.polls.iter().find(|poll| poll.netdev == "veth-there").unwrap();
        let name = format!("napi/veth-there-{}", poll.napi.0);
        let is_kthread = |tgid: u32| {
            std::fs::read_to_string(format!("/proc/{tgid}/comm"))
                .is_ok_and(|comm| name.starts_with(comm.trim()))
        };
        let woken = attribution.wakeups.iter().filter(|it| is_kthread(it.tgid));
        let woken: u64 = woken.map(|it| it.count).sum();
        let polls: u64 = attribution.polls.iter().map(|poll| poll.polls).sum();
        assert!(woken > 10 && woken <= polls, "{woken} of {polls}: {:#?}", attribution.wakeups);
    });
}

fn ip_at(namespace: &str, arguments: &str) {
    let status =
        Command::new("nsenter").arg(namespace).arg("ip").args(arguments.split(' ')).status();
    assert!(status.unwrap().success(), "ip {arguments}");
}

/// Sends datagrams of 100 bytes to an address behind the tap.
fn send_from(namespace: &str, datagrams: usize) {
    let mut command = Command::new("nsenter");
    command.arg(namespace).arg(helper().get_program());
    command.args(["send-datagrams", &datagrams.to_string()]);
    assert!(command.status().unwrap().success());
}

/// Loaded without a library: `r0 = XDP_PASS; exit`.
#[test]
fn a_netdev_with_an_xdp_program_is_detected() {
    in_own_netns(|| {
        ip("link add veth-here type veth peer name veth-there");
        unshare_mounts_and_see_own_sysfs();
        let xdp = || {
            let snapshot = netsilo_sys::snapshot(&Root::live()).unwrap();
            snapshot.netdevs.into_iter().find(|netdev| netdev.name == "veth-here").unwrap().xdp
        };
        assert_eq!(xdp(), None);
        attach_xdp("veth-here");
        assert_eq!(xdp(), Some(Xdp::Generic));
    });
}

#[allow(unsafe_code)]
fn attach_xdp(netdev: &str) {
    const GENERIC: u32 = 1 << 1; // XDP_FLAGS_SKB_MODE
    let instruction = |code, imm| libbpf_sys::bpf_insn { code, imm, ..Default::default() };
    let instructions = [instruction(0xb7, 2), instruction(0x95, 0)];
    let (name, license) = (c"xdp_pass".as_ptr(), c"GPL".as_ptr());
    let ifindex = std::fs::read_to_string(format!("/sys/class/net/{netdev}/ifindex"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    // SAFETY: the strings end in NUL, and the instruction count is correct; null requests no
    // options.
    unsafe {
        let (kind, options) = (libbpf_sys::BPF_PROG_TYPE_XDP, std::ptr::null_mut());
        let program =
            libbpf_sys::bpf_prog_load(kind, name, license, instructions.as_ptr(), 2, options);
        assert!(program >= 0, "{program}");
        assert_eq!(libbpf_sys::bpf_xdp_attach(ifindex, program, GENERIC, std::ptr::null()), 0);
    }
}

/// Stages of loopback traffic. It is delivered here, without a packet filter.
#[test]
fn the_stages_of_local_delivery_are_sampled() {
    in_own_netns(|| {
        let mut reader = Reader::start("recv", 4);
        let mut tracer = Tracer::attach(Options { stages: true, ..Options::exact() });
        (0..4).for_each(|_| send(at(reader.port), 200_000_000));
        reader.said("read");
        let attribution = tracer.read().unwrap();
        let samples = attribution.stages.unwrap();
        assert_eq!(samples.refused, None);
        let stages = Stages::from_samples(&samples, attribution.elapsed.as_secs_f64()).total.stages;
        let delivered = stages.get(&ReceiveStage::LocalDelivery).copied().unwrap_or(0);
        assert!(delivered > 5, "{samples:#?}");
        assert!(
            stages.get(&ReceiveStage::TxCompletion).is_none_or(|samples| *samples < delivered),
            "{stages:?}"
        );
        assert!(
            attribution
                .hooks
                .iter()
                .any(|hook| hook.quantity == "stages" && hook.refused.is_none())
        );
    });
}

/// Each datagram is answered before the next is sent, so that the reader sleeps each time.
#[test]
fn each_single_datagram_wakes_its_reader() {
    in_own_netns(|| {
        let mut reader = Reader::start("udp-unconnected", 65536);
        // On one CPU, an answer may arrive before this thread sleeps.
        let pin = |pid: Option<Pid>, cpu| {
            let mut cpus = CpuSet::new();
            cpus.set(cpu);
            sched_setaffinity(pid, &cpus).unwrap();
        };
        pin(Pid::from_raw(reader.tgid() as i32), 0);
        pin(None, 1);
        let mut tracer = Tracer::attach(Options::exact());
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let sent = 300;
        for size in (1..sent).chain([0]) {
            socket.send_to(&vec![0; size], at(reader.port)).unwrap();
            socket.recv(&mut []).unwrap();
        }
        reader.said("read");
        let attribution = tracer.read().unwrap();
        let woken = |tgid| {
            attribution
                .wakeups
                .iter()
                .filter(move |wakeup| wakeup.tgid == tgid)
                .map(|wakeup| wakeup.count)
        };
        let readers: u64 = woken(reader.tgid()).sum();
        // on another or a contended CPU it may find the next datagram before it falls asleep
        assert!(
            (sent as u64 / 10..=sent as u64 + 10).contains(&readers),
            "{:#?}",
            attribution.wakeups
        );
        let ours: u64 = woken(std::process::id()).sum();
        assert!(ours > 0, "the answers wake this thread: {:#?}", attribution.wakeups);
    });
}

/// If the kernel has the hooks, every IPI of either kind is counted and timed.
#[test]
fn reschedule_ipis_are_those_of_proc_interrupts() {
    in_own_netns(|| {
        let mut tracer = Tracer::attach(Options::exact());
        let refused = tracer
            .hooks()
            .into_iter()
            .find(|hook| hook.hook.contains("reschedule") && hook.refused.is_some());
        assert_eq!(refused, None);
        let before = reschedules_by_cpu();
        tracer.restart().unwrap();
        hand_over(2_000);
        let attribution = tracer.read().unwrap();
        let after = reschedules_by_cpu();
        for (number, (before, after)) in before.into_iter().zip(after).enumerate() {
            let time = attribution.cpu_time.get(&CpuId(number as u32)).copied();
            let counted = time.unwrap_or_default().reschedules.unwrap_or_default();
            // Other programs cause IPIs between the read of the file and the read of the counts.
            let all = after - before;
            assert!(
                counted.count <= all && counted.count + all / 20 + 20 >= all,
                "cpu {number}: {counted:?} of {all}"
            );
            assert!(counted.count < 100 || counted.ns > 10 * counted.count, "{counted:?}");
        }
    });
}

/// `RES` of `/proc/interrupts`, by column.
fn reschedules_by_cpu() -> Vec<u64> {
    let text = std::fs::read_to_string("/proc/interrupts").unwrap();
    let row = text.lines().find_map(|line| line.trim_start().strip_prefix("RES:")).unwrap();
    row.split_whitespace().map_while(|word| word.parse().ok()).collect()
}

/// Two threads wake each other equally often, each on its own CPU, while other threads keep both
/// CPUs busy. Only a reschedule IPI makes a busy CPU switch.
fn hand_over(times: usize) {
    let cpus = std::thread::available_parallelism().unwrap().get();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for cpu in 0..cpus.min(2) {
            let over = &over;
            scope.spawn(move || {
                run_on(cpu);
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let (to_there, there) = std::sync::mpsc::channel();
        let (to_here, here) = std::sync::mpsc::channel();
        scope.spawn(move || {
            run_on(1 % cpus);
            for () in there {
                to_here.send(()).unwrap();
            }
        });
        run_on(0);
        for _ in 0..times {
            to_there.send(()).unwrap();
            here.recv().unwrap();
        }
        drop(to_there);
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

pub(crate) fn run_on(cpu: usize) {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(cpu);
    rustix::thread::sched_setaffinity(None, &cpus).unwrap();
}

/// If a thread on its CPU never sleeps, a reader is woken on a busy CPU. How often the CPU is idle
/// without that thread depends on what else this machine does; guests assert that.
#[test]
fn wakeups_tell_whether_the_cpu_was_idle() {
    in_own_netns(|| {
        // Read before this thread is pinned to one CPU, because then it may use no other.
        let cpu = std::thread::available_parallelism().unwrap().get() - 1;
        let idle_share = |beside: bool| {
            let over = std::sync::atomic::AtomicBool::new(false);
            std::thread::scope(|scope| {
                let mut reader = Reader::start("udp-unconnected", 65536);
                let mut cpus = rustix::thread::CpuSet::new();
                cpus.set(cpu);
                let pid = Pid::from_raw(reader.tgid() as i32);
                rustix::thread::sched_setaffinity(pid, &cpus).unwrap();
                if beside {
                    let over = &over;
                    scope.spawn(move || {
                        run_on(cpu);
                        while !over.load(std::sync::atomic::Ordering::Relaxed) {
                            std::hint::spin_loop();
                        }
                    });
                }
                let mut tracer = Tracer::attach(Options::exact());
                let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                run_on(0);
                for size in (1..300).chain([0]) {
                    socket.send_to(&vec![0; size], at(reader.port)).unwrap();
                    socket.recv(&mut []).unwrap();
                }
                reader.said("read");
                let attribution = tracer.read().unwrap();
                over.store(true, std::sync::atomic::Ordering::Relaxed);
                let rows = attribution.wakeups.iter().filter(|it| it.tgid == reader.tgid());
                let rows = rows.filter(|it| it.sleeper_cpu == CpuId(cpu as u32));
                let sums = rows.fold((0, 0), |(count, idle), row| {
                    (count + row.count, idle + row.idle.unwrap_or(0))
                });
                assert!(sums.0 > 30, "{:#?}", attribution.wakeups);
                let all = attribution.wakeups.len();
                let told = attribution.wakeups.iter().filter(|row| row.idle.is_some()).count();
                assert!(told == 0 || told == all, "{told} of {all} tell it");
                (told > 0).then_some(sums.1 as f64 / sums.0 as f64)
            })
        };
        let (Some(alone), Some(beside)) = (idle_share(false), idle_share(true)) else {
            println!("this kernel does not tell which cpu is idle: guests test it");
            return;
        };
        println!("found idle: {alone:.2} alone, {beside:.2} beside a thread that never sleeps");
        assert!(beside < 0.2, "{beside}");
    });
}

#[test]
fn without_the_softirq_hooks_wakeups_have_a_reason() {
    in_own_netns(|| {
        let options = Options { time: false, ..Options::exact() };
        let attribution = Tracer::attach(options).read().unwrap();
        assert!(attribution.hooks.iter().all(|hook| hook.quantity != "wakeups"), "not requested");
        assert_eq!(attribution.wakeups, []);
    });
}

/// A softirq that runs during the read may have ended a poll but not itself.
const RUNNING_NS: u64 = 10_000_000;

#[test]
fn the_time_of_polls_lies_within_the_time_of_net_rx() {
    in_own_netns(|| {
        let mut reader = Reader::start("recv", 1);
        let mut tracer = Tracer::attach(Options::exact());
        send(at(reader.port), 3_000_017);
        assert_eq!(reader.said("read"), 3_000_017);
        let attribution = tracer.read().unwrap();
        let polled: u64 = attribution.polls.iter().filter_map(|poll| poll.ns).sum();
        let net_rx: u64 = attribution.cpu_time.values().map(|time| time.net_rx_ns).sum();
        assert!(polled > 0 && polled <= net_rx + RUNNING_NS, "{polled} of {net_rx}");
        let without = Options { time: false, ..Options::exact() };
        let mut tracer = Tracer::attach(without);
        send(at(Reader::start("recv", 1).port), 1_000_000);
        let attribution = tracer.read().unwrap();
        assert!(attribution.polls.iter().all(|poll| poll.ns.is_none()));
    });
}
