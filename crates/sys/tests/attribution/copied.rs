//! What MPTCP, raw, ICMP and packet sockets read, and which IP packets enter a namespace.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;

use netsilo_model::snapshot::attribution::{Consumption, Protocol};
use netsilo_model::snapshot::ip_packets::{IpClass, IpPackets};
use netsilo_sys::bpf::tracer::{Options, Tracer};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, sendto, socket};

use super::{at, in_own_netns, ip, netns};

const SENT: u64 = 400;

/// A protocol number of experiments (RFC 3692).
const EXPERIMENT: u32 = 253;

fn opened(family: AddressFamily, kind: SocketType, protocol: u32) -> OwnedFd {
    let protocol = rustix::net::Protocol::from_raw(protocol.try_into().unwrap());
    socket(family, kind, Some(protocol)).unwrap()
}

/// Bytes and number of what waits.
fn drain(socket: &OwnedFd) -> (u64, u64) {
    let next = || recv(socket, &mut [0; 2048][..], RecvFlags::DONTWAIT).ok();
    std::iter::from_fn(next)
        .fold((0, 0), |(bytes, count), (read, _)| (bytes + read as u64, count + 1))
}

/// Neither the kernel thread that moves the data of a subflow has read them, nor who closes it.
#[test]
fn mptcp_is_counted_for_the_program_that_reads() {
    in_own_netns(|| {
        let socket = || {
            let mptcp = rustix::net::Protocol::from_raw(262.try_into().unwrap());
            let kinds = (rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM);
            rustix::net::socket(kinds.0, kinds.1, Some(mptcp)).unwrap()
        };
        let listener = socket();
        rustix::net::bind(&listener, &at(7400)).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let mut tracer = Tracer::attach(Options::exact());
        let sender = socket();
        let sender = std::thread::spawn(move || {
            rustix::net::connect(&sender, &at(7400)).unwrap();
            TcpStream::from(sender).write_all(&vec![7; 3_000_017]).unwrap();
        });
        let mut reader = TcpStream::from(rustix::net::accept(&listener).unwrap());
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        sender.join().unwrap();
        drop(reader);
        let attribution = tracer.read().unwrap();
        let rows = attribution.consumption.iter().filter(|it| it.consumer.netns == netns());
        let sum = rows.clone().map(|it| it.bytes).sum::<u64>();
        assert_eq!((read.len(), sum), (3_000_017, 3_000_017), "{attribution:#?}");
        let own = |it: &Consumption| it.consumer.tgid == std::process::id() && !it.approximate;
        assert!(rows.clone().all(own), "{attribution:#?}");
    });
}

#[test]
fn raw_icmp_and_packet_sockets_are_counted_to_the_byte() {
    in_own_netns(|| {
        let raw = opened(AddressFamily::INET, SocketType::RAW, EXPERIMENT);
        let icmp = opened(AddressFamily::INET, SocketType::RAW, 1);
        let all = u32::from(3_u16.to_be()); // ETH_P_ALL
        let packet = opened(AddressFamily::PACKET, SocketType::DGRAM, all);
        let options = Options { packet_sockets: true, ip_packets: true, ..Options::exact() };
        let mut tracer = Tracer::attach(options);
        let to = at(0);
        let (mut read, mut echoed, mut captured) = ((0, 0), (0, 0), (0, 0));
        let add = |sum: &mut (u64, u64), more: (u64, u64)| {
            *sum = (sum.0 + more.0, sum.1 + more.1);
        };
        for _ in 0..SENT {
            sendto(&raw, &[7; 1000], SendFlags::empty(), &to).unwrap();
            let echo = [8, 0, 0xf7, 0xfe, 0, 1, 0, 0];
            sendto(&icmp, &echo, SendFlags::empty(), &to).unwrap();
            add(&mut read, drain(&raw));
            add(&mut echoed, drain(&icmp));
            add(&mut captured, drain(&packet));
        }
        // The kernel answers each echo, and the capture has all packets twice.
        assert_eq!((read, echoed.1, captured.1), ((SENT * 1020, SENT), 2 * SENT, 6 * SENT));
        let attribution = tracer.read().unwrap();
        let sums = |protocol| {
            let rows = attribution.consumption.iter();
            let rows = rows.filter(|it| it.consumer.netns == netns() && it.protocol == protocol);
            assert!(rows.clone().all(|it| it.consumer.tgid == std::process::id()));
            rows.fold((0, 0), |sum, row| (sum.0 + row.bytes, sum.1 + row.events))
        };
        assert_eq!((sums(Protocol::Raw), sums(Protocol::Icmp)), (read, echoed));
        // Those that leave count as reads without bytes.
        assert_eq!(sums(Protocol::Packet), (captured.0 / 2, captured.1));
        let took = attribution.packet_sockets.iter().find(|it| it.netns == netns()).unwrap();
        assert_eq!((took.packets, took.waiting), (captured.1, 0));
        let rows: Vec<&IpPackets> =
            attribution.ip_packets.iter().filter(|it| it.netns == netns()).collect();
        let entered: Vec<_> =
            rows.iter().map(|it| (it.class, it.ifindex, it.entered, it.entered_bytes)).collect();
        assert!(entered.contains(&(IpClass::Other, 1, SENT, SENT * 1000)), "{entered:?}");
        assert_eq!(rows.iter().map(|it| it.read).sum::<u64>(), SENT);
        assert_eq!(attribution.lost_events, 0);
    });
}

#[test]
fn what_waits_in_a_packet_socket_is_known() {
    in_own_netns(|| {
        let all = u32::from(0x0800_u16.to_be());
        let packet = opened(AddressFamily::PACKET, SocketType::DGRAM, all);
        let options = Options { packet_sockets: true, ..Options::exact() };
        let mut tracer = Tracer::attach(options);
        let (receiver, sender) = (UdpSocket::bind(at(0)).unwrap(), UdpSocket::bind(at(0)).unwrap());
        let mut waiting = || {
            let sockets = tracer.read().unwrap().packet_sockets;
            sockets.iter().find(|it| it.netns == netns()).unwrap().waiting
        };
        for _ in 0..30 {
            sender.send_to(&[0; 64], receiver.local_addr().unwrap()).unwrap();
        }
        assert_eq!(waiting(), 30);
        assert_eq!(drain(&packet).1, 30);
        assert_eq!(waiting(), -30);
    });
}

/// GRO and GSO join packets, fragments divide them, and short ones are padded.
#[test]
fn the_payload_that_enters_is_counted_to_the_byte() {
    in_own_netns(|| {
        ip("link set lo mtu 1500");
        let mut tracer = Tracer::attach(Options { ip_packets: true, ..Options::exact() });
        let listener = TcpListener::bind(at(0)).unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut reader, _) = listener.accept().unwrap();
        // Nothing waits that could be dropped and sent again.
        for bytes in std::iter::repeat_n(60_000, 50).chain([17]) {
            sender.write_all(&vec![7; bytes]).unwrap();
            reader.read_exact(&mut vec![0; bytes]).unwrap();
        }
        for (here, to) in [("127.0.0.1:7420", "127.0.0.1:7421"), ("[::1]:7420", "[::1]:7421")] {
            let (sender, receiver) = (UdpSocket::bind(here).unwrap(), UdpSocket::bind(to).unwrap());
            for bytes in [1, 4000] {
                sender.send_to(&vec![0; bytes], to).unwrap();
                receiver.recv(&mut [0; 4000]).unwrap();
            }
        }
        let attribution = tracer.read().unwrap();
        let sum = |class| {
            let rows = attribution.ip_packets.iter();
            let rows =
                rows.filter(|it| it.netns == netns() && it.class == class && it.ifindex == 1);
            rows.fold((0, 0), |sum, row| (sum.0 + row.entered, sum.1 + row.entered_bytes))
        };
        assert_eq!(sum(IpClass::Tcp).1, 3_000_017);
        assert!(sum(IpClass::Tcp).0 > 2000, "{:?}", sum(IpClass::Tcp));
        assert_eq!(sum(IpClass::Udp), (4, 2 * 4001));
    });
}
