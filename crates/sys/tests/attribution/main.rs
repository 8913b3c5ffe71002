//! Compares eBPF attribution with the applications' own counts, on this kernel, in separate network
//! namespaces.
//!
//! Claims that need a NIC's queues are in `crates/lab/tests/lab_attribution`.
// clippy.toml's leave covers test functions only
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

mod copied;
mod drops;
mod group;
mod killed;
mod packet_sockets;
mod reader;
mod runqueue;
mod sampling;
mod softirq;
mod tap;
mod udp;

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use netsilo_model::snapshot::attribution::{
    Attribution, AttributionSource, Consumption, Protocol, QueueResolution,
};
use netsilo_sys::bpf::tracer::{Options, Tracer};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use rustix::thread::UnshareFlags;

use reader::{Reader, send};

/// The program whose roles run in a separate process.
fn helper() -> Command {
    Command::new(netsilo_lab::example(env!("CARGO_MANIFEST_DIR"), "test_helper").unwrap())
}

/// Runs a claim in a thread with its own network namespace; prints SKIPPED without the privilege.
fn in_own_netns(claim: impl FnOnce() + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        assert!(
            std::env::var_os("NETSILO_NO_SKIP").is_none(),
            "eBPF and network namespaces need root"
        );
        println!("SKIPPED: eBPF and network namespaces need root");
        return;
    }
    let run = move || {
        unshare_net();
        ip("link set lo up");
        claim();
    };
    thread::spawn(run).join().unwrap();
}

#[allow(unsafe_code)]
fn unshare_net() {
    // SAFETY: CLONE_NEWNET alone changes no memory, descriptor or credential that other threads
    // rely on.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
}

fn ip(arguments: &str) {
    assert!(
        Command::new("ip").args(arguments.split(' ')).status().unwrap().success(),
        "ip {arguments}"
    );
}

fn ethtool(arguments: &str) {
    assert!(
        Command::new("ethtool").args(arguments.split(' ')).status().unwrap().success(),
        "ethtool {arguments}"
    );
}

/// The inode of this thread's network namespace.
fn netns() -> u32 {
    let link = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let digits: String = link.to_str().unwrap().chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

fn at(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn of(attribution: &Attribution, tgid: u32) -> Vec<&Consumption> {
    attribution.consumption.iter().filter(|read| read.consumer.tgid == tgid).collect()
}

fn bytes(attribution: &Attribution, tgid: u32) -> u64 {
    of(attribution, tgid).iter().map(|read| read.bytes).sum()
}

/// One connection of 3 MB, read with the given method.
fn counts_to_the_byte(how: &'static str) {
    in_own_netns(move || {
        let mut reader = Reader::start(how, 1);
        let mut tracer = Tracer::attach(Options::exact());
        send(at(reader.port), 3_000_017);
        assert_eq!(reader.said("read"), 3_000_017);
        let attribution = tracer.read().unwrap();
        assert_eq!(bytes(&attribution, reader.tgid()), 3_000_017);
        let reads = of(&attribution, reader.tgid());
        assert!(
            reads
                .iter()
                .all(|read| read.protocol == Protocol::Tcp
                    && read.resolved == QueueResolution::Local)
        );
        assert!(reads.iter().all(|read| read.consumer.netns == netns() && !read.approximate));
        assert_eq!(
            (attribution.source, attribution.windowed, attribution.lost_events),
            (AttributionSource::Bpf, false, 0)
        );
    });
}

#[test]
fn recv_is_counted_to_the_byte() {
    counts_to_the_byte("recv");
}

#[test]
fn peeking_counts_nothing() {
    counts_to_the_byte("peek");
}

#[test]
fn bytes_discarded_by_msg_trunc_are_counted() {
    counts_to_the_byte("trunc");
}

/// There is room for 512 of them on each CPU (machines of up to 64 CPUs).
#[test]
fn readers_beyond_the_room_of_the_table_are_counted_together_by_name() {
    in_own_netns(|| {
        const READERS: usize = 800;
        let mut tracer = Tracer::attach(Options::exact());
        let listener = std::net::TcpListener::bind(at(0)).unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut shell, cpu) = (Command::new("sh"), rustix::thread::sched_getcpu().to_string());
        let script = format!("for i in $(seq {READERS}); do taskset -c {cpu} head -c 100; done");
        shell.args(["-c", &script]).stdin(std::os::fd::OwnedFd::from(listener.accept().unwrap().0));
        let mut shell = shell.stdout(std::process::Stdio::piped()).spawn().unwrap();
        // A reader takes all that has come, so each gets its 100 bytes when the last one has read.
        let mut answers = shell.stdout.take().unwrap();
        for _ in 0..READERS {
            sender.write_all(&[7; 100]).unwrap();
            answers.read_exact(&mut [0; 100]).unwrap();
        }
        assert!(shell.wait().unwrap().success());
        let attribution = tracer.read().unwrap();
        let rows: Vec<_> =
            attribution.consumption.iter().filter(|it| it.consumer.comm == "head").collect();
        let rows = rows.iter().filter(|it| it.consumer.netns == netns());
        let sum = |rows: &mut dyn Iterator<Item = u64>| rows.sum::<u64>();
        assert_eq!(sum(&mut rows.clone().map(|it| it.bytes)), 100 * READERS as u64);
        assert_eq!(sum(&mut rows.clone().map(|it| it.events)), READERS as u64);
        let together: Vec<_> = rows.clone().filter(|it| it.consumer.tgid == 0).collect();
        // Rows differ by the CPU that received, too, and another CPU may have taken a softirq.
        assert!(together.iter().any(|it| it.bytes > 100), "{together:?}");
        assert!(rows.count() > 400, "most are counted one by one");
        assert_eq!(attribution.lost_events, 0);
    });
}

/// Splice consumes the FIN like a byte; it must not be counted.
#[test]
fn splice_is_counted_to_the_byte() {
    counts_to_the_byte("splice");
}

#[test]
fn io_uring_is_counted_to_the_byte() {
    counts_to_the_byte("io_uring");
}

#[test]
fn zerocopy_receive_is_counted_to_the_byte() {
    counts_to_the_byte("zerocopy");
}

#[test]
fn every_one_of_many_connections_is_counted() {
    in_own_netns(|| {
        let mut reader = Reader::start("recv", 200);
        let mut tracer = Tracer::attach(Options::exact());
        for i in 0..200 {
            send(at(reader.port), i * 31);
        }
        let truth = reader.said("read");
        let attribution = tracer.read().unwrap();
        assert_eq!(bytes(&attribution, reader.tgid()), truth);
        // Connections begin and end in system calls and in softirqs. If one interrupts the other,
        // the kernel skips the same program and counts that. All bytes are counted.
        assert!(attribution.lost_events < 10, "{}", attribution.lost_events);
    });
}

#[test]
fn a_second_read_has_the_counts_since_the_first() {
    in_own_netns(|| {
        let mut reader = Reader::start("step", 1);
        let mut tracer = Tracer::attach(Options::exact());
        let mut stream = TcpStream::connect(at(reader.port)).unwrap();
        for (send, total) in [(1000, 1000), (1, 1001), (4999, 6000)] {
            stream.write_all(&vec![0; send]).unwrap();
            while reader.said("step") < total {}
            assert_eq!(bytes(&tracer.read().unwrap(), reader.tgid()), send as u64);
        }
        assert_eq!(bytes(&tracer.read().unwrap(), reader.tgid()), 0);
    });
}

#[test]
fn a_connection_older_than_the_tracer_is_exact_after_its_first_read() {
    in_own_netns(|| {
        let mut reader = Reader::start("step", 1);
        let mut stream = TcpStream::connect(at(reader.port)).unwrap();
        stream.write_all(&[0; 5000]).unwrap();
        while reader.said("step") < 5000 {}
        let mut tracer = Tracer::attach(Options::exact());
        stream.write_all(&[0; 77]).unwrap();
        while reader.said("step") < 5077 {}
        stream.write_all(&[0; 40_000]).unwrap();
        while reader.said("step") < 45_077 {}
        assert_eq!(bytes(&tracer.read().unwrap(), reader.tgid()), 40_000);
    });
}

#[test]
fn unread_data_is_not_counted() {
    in_own_netns(|| {
        let mut reader = Reader::start("step", 1);
        let mut tracer = Tracer::attach(Options::exact());
        let mut stream = TcpStream::connect(at(reader.port)).unwrap();
        stream.write_all(&[0; 100]).unwrap();
        while reader.said("step") < 100 {}
        // stopped, so that the rest stays in its socket
        let pid = Pid::from_raw(reader.tgid() as i32).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
        stream.write_all(&[0; 10_000]).unwrap();
        assert_eq!(bytes(&tracer.read().unwrap(), reader.tgid()), 100);
    });
}

#[test]
fn consumers_of_other_namespaces_are_counted_and_named() {
    in_own_netns(|| {
        // the tracer belongs to no namespace, so attach it in a namespace without the consumer
        let mut tracer = thread::spawn(|| {
            unshare_net();
            Tracer::attach(Options::exact())
        })
        .join()
        .unwrap();
        let mut reader = Reader::start("recv", 1);
        send(at(reader.port), 12_345);
        assert_eq!(reader.said("read"), 12_345);
        let tgid = reader.tgid();
        let name = std::fs::read_to_string(format!("/proc/{tgid}/comm")).unwrap();
        reader.end();
        // the process has ended, but its name is known
        let attribution = tracer.read().unwrap();
        assert_eq!(bytes(&attribution, tgid), 12_345);
        let reads = of(&attribution, tgid);
        let known = |read: &&Consumption| {
            read.consumer.comm == name.trim_end() && read.consumer.netns == netns()
        };
        assert!(reads.iter().all(known));
    });
}

#[test]
fn a_consumer_has_its_cgroup() {
    in_own_netns(|| {
        let mut tracer = Tracer::attach(Options::exact());
        let read = || {
            let mut reader = Reader::start("recv", 1);
            send(at(reader.port), 10);
            reader.said("read");
            reader
        };
        // another process of the same cgroup ends before its path is looked up
        drop(read());
        let reader = read();
        let attribution = tracer.read().unwrap();
        let cgroup = std::fs::read_to_string(format!("/proc/{}/cgroup", reader.tgid())).unwrap();
        let path = netsilo_model::parse::schedstat::cgroup_path(&cgroup).map(str::to_owned);
        assert_eq!(of(&attribution, reader.tgid())[0].consumer.cgroup, path);
    });
}

/// The only error of a window: the first read of each socket that was open before is missing.
///
/// Data that arrives during a pause is not counted later.
#[test]
fn each_window_misses_the_first_read_of_each_connection_and_all_between_windows() {
    in_own_netns(|| {
        let mut reader = Reader::start("step", 1);
        let mut tracer = Tracer::attach(Options::exact());
        let mut stream = TcpStream::connect(at(reader.port)).unwrap();
        let mut total = 0;
        let mut pass = |reads: usize| {
            for _ in 0..reads {
                total += 1000;
                stream.write_all(&[0; 1000]).unwrap();
                while reader.said("step") < total {}
            }
            reader.tgid()
        };
        // the connection is younger than the first window: exact
        let tgid = pass(10);
        tracer.pause();
        pass(10);
        let first = tracer.read().unwrap();
        assert_eq!((bytes(&first, tgid), first.windowed), (10_000, true));
        for _ in 0..5 {
            tracer.resume();
            pass(10);
            tracer.pause();
            pass(7);
            let window = tracer.read().unwrap();
            assert_eq!(bytes(&window, tgid), 9_000);
            assert!(
                window.polls.iter().map(|poll| poll.packets).sum::<u64>() > 0
                    && window.elapsed > Duration::ZERO
            );
        }
    });
}

/// Hooks attach one by one. Without the restart, polls would be counted for longer than reads.
#[test]
fn a_restart_forgets_all_that_was_counted_before() {
    in_own_netns(|| {
        let mut reader = Reader::start("recv", 1);
        let mut tracer = Tracer::attach(Options::exact());
        send(at(reader.port), 1_000_000);
        assert_eq!(reader.said("read"), 1_000_000);
        let before = Instant::now();
        tracer.restart().unwrap();
        let attribution = tracer.read().unwrap();
        assert_eq!(bytes(&attribution, reader.tgid()), 0);
        assert!(attribution.elapsed <= before.elapsed());
    });
}

#[test]
fn softirqs_and_their_time_are_counted() {
    in_own_netns(|| {
        let mut reader = Reader::start("recv", 1);
        let mut tracer = Tracer::attach(Options::exact());
        send(at(reader.port), 1_000_000);
        reader.said("read");
        let attribution = tracer.read().unwrap();
        let (runs, time) = attribution
            .cpu_time
            .values()
            .fold((0, 0), |(n, t), cpu| (n + cpu.net_rx_runs, t + cpu.net_rx_ns));
        assert!(runs > 0 && time > 0, "{runs} runs, {time} ns");
        let all: u64 = attribution
            .cpu_time
            .values()
            .map(|cpu| cpu.softirq_ns() + cpu.hardirq_ns + cpu.ipi_ns)
            .sum();
        let cpus = thread::available_parallelism().unwrap().get() as u64;
        assert!(Duration::from_nanos(all / cpus) < attribution.elapsed);
        // the backlog polls loopback and belongs to no device
        let backlog: u64 = attribution
            .polls
            .iter()
            .filter(|poll| poll.netdev.is_empty())
            .map(|poll| poll.packets)
            .sum();
        assert!(backlog > 0);
    });
}

/// Two namespaces joined by a veth pair: this one, and the reader's.
fn reader_behind_veth(connections: usize) -> Reader {
    ip("link add veth-here type veth peer name veth-there");
    ip("addr add 10.9.0.1/24 dev veth-here");
    ip("link set veth-here up");
    let here = rustix::process::getpid().as_raw_nonzero().get();
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    let reader = thread::spawn(move || {
        unshare_net();
        ip("link set lo up");
        let there = rustix::thread::gettid().as_raw_nonzero().get();
        let into = Command::new("nsenter")
            .arg(format!("--net=/proc/{here}/task/{tid}/ns/net"))
            .args(["ip", "link", "set", "veth-there", "netns", &there.to_string()])
            .status();
        assert!(into.unwrap().success());
        ip("addr add 10.9.0.2/24 dev veth-there");
        ip("link set veth-there up");
        Reader::start("recv", connections)
    });
    reader.join().unwrap()
}

#[test]
fn data_from_a_namespace_of_this_machine_is_local() {
    in_own_netns(|| {
        let mut reader = reader_behind_veth(1);
        let mut tracer = Tracer::attach(Options::exact());
        send((Ipv4Addr::new(10, 9, 0, 2), reader.port).into(), 2_000_000);
        assert_eq!(reader.said("read"), 2_000_000);
        let attribution = tracer.read().unwrap();
        assert_eq!(bytes(&attribution, reader.tgid()), 2_000_000);
        let reads = of(&attribution, reader.tgid());
        assert!(
            reads.iter().all(|read| read.resolved == QueueResolution::Local && read.napi.is_none()),
            "{reads:#?}"
        );
    });
}

/// Without veths packets are not examined. A veth that appears later is noticed at the next read.
#[test]
fn a_veth_that_appears_later_is_noticed() {
    in_own_netns(|| {
        let mut tracer = thread::spawn(|| {
            // this namespace shows no virtual netdev
            unshare_net();
            unshare_mounts_and_see_own_sysfs();
            Tracer::attach(Options::exact())
        })
        .join()
        .unwrap();
        let attached = |attribution: &Attribution| {
            attribution.hooks.iter().any(|hook| hook.quantity == "flows behind veth")
        };
        let mut reader = reader_behind_veth(2);
        let to = (Ipv4Addr::new(10, 9, 0, 2), reader.port).into();
        send(to, 1_000);
        while !attached(&tracer.read().unwrap()) {}
        send(to, 2_000_000);
        assert_eq!(reader.said("read"), 2_001_000);
        let attribution = tracer.read().unwrap();
        let reads = of(&attribution, reader.tgid());
        let local: u64 = reads
            .iter()
            .filter(|read| read.resolved == QueueResolution::Local)
            .map(|read| read.bytes)
            .sum();
        assert!(local >= 2_000_000, "{reads:#?}");
    });
}

#[allow(unsafe_code)]
fn unshare_mounts_and_see_own_sysfs() {
    // SAFETY: CLONE_NEWNS alone changes no memory, descriptor or credential that other threads rely
    // on.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }.unwrap();
    let mount = |arguments: &[&str]| {
        assert!(Command::new("mount").args(arguments).status().unwrap().success())
    };
    mount(&["--make-rprivate", "/"]);
    mount(&["-t", "sysfs", "own", "/sys"]);
}

/// With GRO a veth has its own NAPI instances, and removes the sender's name. If no NIC is known to
/// have received data, the data belongs to the instance that polled it.
#[test]
fn data_that_no_nic_received_belongs_to_the_napi_of_a_veth_with_gro() {
    in_own_netns(|| {
        let mut reader = reader_behind_veth(1);
        // a veth uses its NAPI only for data that does not already come in large segments
        // (veth_skb_is_eligible_for_gro)
        ethtool("-K veth-here tso off");
        let gro = ["ethtool", "-K", "veth-there", "gro", "on"];
        assert!(in_netns_of(reader.tgid()).args(gro).status().unwrap().success());
        let mut tracer = Tracer::attach(Options::exact());
        send((Ipv4Addr::new(10, 9, 0, 2), reader.port).into(), 2_000_000);
        assert_eq!(reader.said("read"), 2_000_000);
        let attribution = tracer.read().unwrap();
        let netns = of(&attribution, reader.tgid())[0].consumer.netns;
        let polls: Vec<_> =
            attribution.polls.iter().filter(|poll| poll.netdev == "veth-there").collect();
        assert!(
            !polls.is_empty()
                && polls
                    .iter()
                    .all(|poll| poll.netns == netns && poll.ifindex > 0 && poll.napi.0 > 0),
            "{:#?}",
            attribution.polls
        );
        assert!(polls.iter().map(|poll| poll.packets).sum::<u64>() > 0);
        let reads = of(&attribution, reader.tgid());
        let napis: BTreeSet<_> = polls.iter().map(|poll| Some(poll.napi)).collect();
        let is_of_the_veth = |read: &&Consumption| {
            read.resolved == QueueResolution::Direct && napis.contains(&read.napi)
        };
        assert!(reads.iter().all(is_of_the_veth), "{reads:#?}");
    });
}

/// A veth with GRO that feeds a router. Its packets are read in another namespace, where they no
/// longer show which NAPI polled them.
#[test]
fn data_that_a_router_takes_from_a_veth_belongs_to_the_napi_of_that_veth() {
    in_own_netns(|| {
        let mut reader = reader_behind_veth(2);
        let of_reader = ["ip", "route", "add", "default", "via", "10.9.0.1"];
        assert!(in_netns_of(reader.tgid()).args(of_reader).status().unwrap().success());
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        ip("link add veth-in type veth peer name veth-from");
        ip("addr add 10.8.0.1/24 dev veth-in");
        ip("link set veth-in up");
        ethtool("-K veth-in gro on");
        let here = (std::process::id(), rustix::thread::gettid().as_raw_nonzero().get());
        let mut tracer = Tracer::attach(Options::exact());
        let to: SocketAddr = (Ipv4Addr::new(10, 9, 0, 2), reader.port).into();
        let sender = thread::spawn(move || {
            unshare_net();
            let there = rustix::thread::gettid().as_raw_nonzero().get().to_string();
            let router = format!("--net=/proc/{}/task/{}/ns/net", here.0, here.1);
            let into = ["ip", "link", "set", "veth-from", "netns", &there];
            assert!(Command::new("nsenter").arg(router).args(into).status().unwrap().success());
            ip("addr add 10.8.0.2/24 dev veth-from");
            ip("link set veth-from up");
            ip("route add default via 10.8.0.1");
            // otherwise a veth does not use its NAPI (veth_skb_is_eligible_for_gro)
            ethtool("-K veth-from tso off");
            // the first data of unknown origin only starts the recording of flows
            send(to, 1_000);
            send(to, 2_000_000);
        });
        sender.join().unwrap();
        assert_eq!(reader.said("read"), 2_001_000);
        let attribution = tracer.read().unwrap();
        let polled = attribution.polls.iter().filter(|poll| poll.netdev == "veth-in");
        let napis: BTreeSet<_> = polled.map(|poll| Some(poll.napi)).collect();
        let reads = of(&attribution, reader.tgid());
        let recorded = reads.iter().filter(|read| {
            let by_flow = [QueueResolution::FlowHash, QueueResolution::FiveTuple];
            by_flow.contains(&read.resolved) && napis.contains(&read.napi) && !read.approximate
        });
        let recorded: u64 = recorded.map(|read| read.bytes).sum();
        assert!(recorded >= 2_000_000, "{recorded} bytes of {napis:?}: {reads:#?}");
    });
}

/// A command that runs in the network namespace of a process.
fn in_netns_of(tgid: u32) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{tgid}/ns/net"));
    command
}

#[test]
fn every_hook_is_attached_or_has_a_reason() {
    in_own_netns(|| {
        let attribution = Tracer::attach(Options::exact()).read().unwrap();
        let question = |name: &str| attribution.hooks.iter().any(|hook| hook.quantity == name);
        for name in [
            "napi polls",
            "tcp bytes",
            "udp bytes",
            "softirq time",
            "hardirq time",
            "ipi time",
            "wakeups",
        ] {
            assert!(question(name), "{name}");
        }
        for hook in &attribution.hooks {
            assert!(hook.hook.contains('/'), "{hook:?}");
            assert!(hook.refused.as_ref().is_none_or(|why| why.len() > 10), "{hook:?}");
        }
        let udp: Vec<_> =
            attribution.hooks.iter().filter(|hook| hook.quantity == "udp bytes").collect();
        assert!(
            udp.iter().any(|hook| hook.refused.is_none()),
            "exactly one variant is attached: {udp:?}"
        );
    });
}

#[test]
fn without_privilege_every_hook_names_the_privilege() {
    in_own_netns(|| {
        let output = Command::new("setpriv")
            .args(["--reuid=65534", "--clear-groups"])
            .arg(helper().get_program())
            .arg("without-privilege")
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.contains("reasons reported"), "{output}");
    });
}
