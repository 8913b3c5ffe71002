//! What UDP sockets read, and which queue each datagram came from, if one socket reads from two
//! netdevs and the kernel lets no function be traced.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use netsilo_model::snapshot::attribution::{Attribution, Consumption, Protocol, QueueResolution};
use netsilo_sys::bpf::tracer::{Options, Tracer};
use rustix::process::Pid;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::reader::Reader;
use super::softirq::run_on;
use super::{at, bytes, ethtool, in_own_netns, ip, netns, of, unshare_net};

const PORT: u16 = 6100;
/// The size of a datagram tells its netdev.
const SIZES: [usize; 2] = [100, 700];
const DATAGRAMS: usize = 10_000;

#[test]
fn datagrams_are_counted_to_the_byte() {
    for how in ["udp-unconnected", "udp-connected", "udp-peek"] {
        in_own_netns(move || {
            let mut reader = Reader::start(how, 65536);
            let mut tracer = Tracer::attach(Options::exact());
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            for size in (1..400).map(|i| i * 17).chain([0]) {
                socket.send_to(&vec![0; size], at(reader.port)).unwrap();
                // the answer is received, so that no buffer overflows
                socket.recv(&mut []).unwrap();
            }
            let truth = reader.said("read");
            let attribution = tracer.read().unwrap();
            assert_eq!(bytes(&attribution, reader.tgid()), truth, "{how}");
            let reads = of(&attribution, reader.tgid());
            assert!(
                reads.iter().all(|read| read.protocol == Protocol::Udp && read.connected.is_some())
            );
            let connected: u64 =
                reads.iter().filter(|it| it.connected == Some(true)).map(|it| it.bytes).sum();
            // The first datagram gives the reader its peer.
            assert_eq!(connected, if how == "udp-connected" { truth - 17 } else { 0 }, "{how}");
        });
    }
}

/// As on a kernel that refuses fentry and kprobes.
fn tracepoints() -> Options {
    Options { only_tracepoints: true, ..Options::exact() }
}

/// The order of datagrams that two CPUs deliver would not be known, so no worker may send.
fn one_cpu_delivers() {
    std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap();
    std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
}

/// A thread in another namespace, and two veths to it whose NAPI instances receive. For each number
/// it sends that many datagrams, each by a netdev that is chosen at random.
struct TwoUplinks {
    server: UdpSocket,
    send: Sender<usize>,
    /// Answers when all were sent.
    sent: Receiver<Pid>,
    sender: JoinHandle<()>,
}

impl TwoUplinks {
    fn new() -> Self {
        let (tell, answers) = channel();
        let (send, sent): (Sender<usize>, Receiver<usize>) = channel();
        let sender = thread::spawn(move || {
            unshare_net();
            one_cpu_delivers();
            run_on(0);
            tell.send(rustix::thread::gettid()).unwrap();
            for i in sent.iter().take(2) {
                ip(&format!("addr add 10.8.{i}.1/24 dev c{i}"));
                ip(&format!("link set c{i} up"));
                // otherwise a veth does not use its NAPI (veth_skb_is_eligible_for_gro)
                ethtool(&format!("-K c{i} tso off"));
                tell.send(rustix::thread::gettid()).unwrap();
            }
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            let mut rng = fastrand::Rng::with_seed(1);
            for datagrams in sent {
                for _ in 0..datagrams {
                    let by = usize::from(rng.bool());
                    let to = format!("10.8.{by}.2:{PORT}");
                    socket.send_to(&[7; 1000][..SIZES[by]], to).unwrap();
                }
                // The receiver of an answer may have ended.
                let _ = tell.send(rustix::thread::gettid());
            }
        });
        one_cpu_delivers();
        let there = answers.recv().unwrap();
        for i in 0..2 {
            ip(&format!("link add s{i} type veth peer name c{i} netns {there}"));
            ip(&format!("addr add 10.8.{i}.2/24 dev s{i}"));
            ip(&format!("link set s{i} up"));
            ethtool(&format!("-K s{i} gro on"));
            send.send(i).unwrap();
            answers.recv().unwrap();
        }
        let server = UdpSocket::bind(("0.0.0.0", PORT)).unwrap();
        let uplinks = Self { server, send, sent: answers, sender };
        // afterwards the neighbours are known
        uplinks.send.send(100).unwrap();
        uplinks.sent.recv().unwrap();
        (0..100).for_each(|_| _ = uplinks.server.recv(&mut []).unwrap());
        uplinks.server.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        uplinks
    }

    /// Reads until nothing has come for a while. Returns the bytes of each netdev.
    fn read_all(&self) -> [u64; 2] {
        let (mut bytes, mut buffer) = ([0; 2], [0; 1000]);
        while let Ok(read) = self.server.recv(&mut buffer) {
            let by = SIZES.iter().position(|size| *size == read).unwrap();
            bytes[by] += read as u64;
        }
        bytes
    }

    fn end(self) {
        drop(self.send);
        self.sender.join().unwrap();
    }
}

fn add(sum: &mut [u64; 2], more: [u64; 2]) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
}

fn own(attribution: &Attribution) -> impl Iterator<Item = &Consumption> {
    let rows = attribution.consumption.iter();
    let own = rows.filter(|it| it.consumer.netns == netns() && it.protocol == Protocol::Udp);
    own.filter(|it| it.consumer.tgid == std::process::id())
}

/// The bytes that were counted for the NAPI instance of each netdev.
fn counted(attribution: &Attribution) -> [u64; 2] {
    let mut bytes = [0; 2];
    let netdevs: BTreeMap<_, _> =
        attribution.polls.iter().map(|poll| (poll.napi, poll.netdev.as_str())).collect();
    for read in own(attribution) {
        let netdev = read.napi.and_then(|napi| netdevs.get(&napi)).copied();
        let by = ["s0", "s1"].iter().position(|name| netdev == Some(*name));
        bytes[by.unwrap_or_else(|| panic!("{read:#?}"))] += read.bytes;
    }
    bytes
}

/// Of ten thousand datagrams, so many may count as their neighbours: each is read while the next
/// one arrives.
const NEIGHBOURS: u64 = 3;

fn is_exact_if_read(how: impl FnOnce(&TwoUplinks) -> [u64; 2] + Send + 'static) {
    in_own_netns(|| {
        let uplinks = TwoUplinks::new();
        let mut tracer = Tracer::attach(tracepoints());
        let truth = how(&uplinks);
        let attribution = tracer.read().unwrap();
        assert!(truth.iter().all(|bytes| *bytes > 10_000), "{truth:?}");
        let counted = counted(&attribution);
        let sum = |of: [u64; 2]| of.iter().sum::<u64>();
        assert_eq!(sum(counted), sum(truth), "{attribution:#?}");
        let wrong = counted[0].abs_diff(truth[0]);
        assert!(wrong <= NEIGHBOURS * SIZES[1] as u64, "{truth:?} {attribution:#?}");
        assert!(own(&attribution).all(|read| !read.approximate), "{attribution:#?}");
        uplinks.end();
    });
}

#[test]
fn a_datagram_belongs_to_its_queue_if_its_reader_sleeps_or_is_behind() {
    is_exact_if_read(|uplinks| {
        uplinks.send.send(DATAGRAMS).unwrap();
        uplinks.read_all()
    });
}

#[test]
fn a_datagram_belongs_to_its_queue_if_its_reader_never_sleeps() {
    is_exact_if_read(|uplinks| {
        let mut sum = [0; 2];
        uplinks.server.set_nonblocking(true).unwrap();
        uplinks.send.send(DATAGRAMS).unwrap();
        while uplinks.sent.try_recv().is_err() {
            add(&mut sum, uplinks.read_all());
        }
        uplinks.server.set_nonblocking(false).unwrap();
        add(&mut sum, uplinks.read_all());
        sum
    });
}

#[test]
fn a_datagram_belongs_to_its_queue_if_others_were_dropped() {
    is_exact_if_read(|uplinks| {
        rustix::net::sockopt::set_socket_recv_buffer_size(&uplinks.server, 65_536).unwrap();
        let mut sum = [0; 2];
        for _ in 0..5 {
            uplinks.send.send(1_000).unwrap();
            uplinks.sent.recv().unwrap();
            add(&mut sum, uplinks.read_all());
        }
        let read: u64 = sum.iter().zip(SIZES).map(|(bytes, size)| bytes / size as u64).sum();
        assert!(read < 4_000, "{sum:?}");
        sum
    });
}

#[test]
fn a_datagram_belongs_to_its_queue_in_a_later_window() {
    in_own_netns(|| {
        let uplinks = TwoUplinks::new();
        let mut tracer = Tracer::attach(tracepoints());
        for _ in 0..3 {
            uplinks.send.send(500).unwrap();
            let truth = uplinks.read_all();
            tracer.pause();
            assert_eq!(counted(&tracer.read().unwrap()), truth);
            uplinks.send.send(3).unwrap();
            uplinks.read_all();
            tracer.resume();
        }
        uplinks.end();
    });
}

/// The kernel accepts no program of cgroups without CAP_NET_ADMIN. For datagrams that arrive when
/// all were read, the one value that it stores per socket then counts.
#[test]
fn without_net_admin_the_queue_is_approximate() {
    in_own_netns(|| {
        let uplinks = TwoUplinks::new();
        let mut sets = capabilities(None).unwrap();
        sets.effective = CapabilitySet::BPF | CapabilitySet::PERFMON;
        set_capabilities(None, sets).unwrap();
        let mut tracer = Tracer::attach(tracepoints());
        uplinks.send.send(100).unwrap();
        let truth = uplinks.read_all();
        let attribution = tracer.read().unwrap();
        let sum: u64 = own(&attribution).map(|read| read.bytes).sum();
        assert_eq!(sum, truth.iter().sum::<u64>());
        assert!(own(&attribution).any(|read| read.approximate), "{attribution:#?}");
        uplinks.end();
    });
}

#[test]
fn datagrams_of_loopback_are_local() {
    in_own_netns(|| {
        for address in ["127.0.0.1", "::1"] {
            let any = if address == "::1" { "[::]:0" } else { "0.0.0.0:0" };
            let server = UdpSocket::bind(any).unwrap();
            let mut tracer = Tracer::attach(tracepoints());
            let client = UdpSocket::bind(any).unwrap();
            client.send_to(&[7; 300], (address, server.local_addr().unwrap().port())).unwrap();
            server.recv(&mut [0; 300]).unwrap();
            let attribution = tracer.read().unwrap();
            let rows: Vec<_> = own(&attribution).collect();
            let [row] = rows[..] else { panic!("{rows:#?}") };
            assert_eq!((row.resolved, row.bytes), (QueueResolution::Local, 300));
        }
    });
}
