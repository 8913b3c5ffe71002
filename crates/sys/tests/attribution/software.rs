//! Where netdevs without hardware process packets, and whether RPS on them moves that: the facts
//! that `netsilo_model::drivers::software` states, on this kernel.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use netsilo_model::drivers::software::{SoftwareNetdev, SoftwareReceive};
use netsilo_model::machine::cpuset::CpuId;
use netsilo_sys::bpf::tracer::{Options, Tracer};
use netsilo_sys::files::root::Root;

use super::reader::Reader;
use super::softirq::run_on;
use super::{helper, in_own_netns, ip, of, unshare_mounts_and_see_own_sysfs};

/// Datagrams of each measurement.
const DATAGRAMS: usize = 200;

/// Longest time until they have been read.
const PATIENCE: Duration = Duration::from_secs(20);

/// The kind of a netdev, as netsilo reads it.
fn kind(name: &str) -> SoftwareReceive {
    let snapshot = netsilo_sys::snapshot(&Root::live()).unwrap();
    let netdev = snapshot.netdevs.into_iter().find(|netdev| netdev.name == name).unwrap();
    SoftwareNetdev::from_netdev(&netdev).unwrap().receive
}

/// Runs `send` on CPU 0 and returns the CPUs that processed the datagrams, first without RPS on a
/// netdev and then with RPS onto CPU 1.
fn processed(netdev: &str, send: impl Fn(u16)) -> [Vec<CpuId>; 2] {
    ["0", "2"].map(|mask| {
        std::fs::write(format!("/sys/class/net/{netdev}/queues/rx-0/rps_cpus"), mask).unwrap();
        let reader = Reader::start("udp-unconnected", 65536);
        let mut tracer = Tracer::attach(Options::exact());
        run_on(0);
        send(reader.port);
        let (mut cpus, mut read, until) = (Vec::new(), 0, Instant::now() + PATIENCE);
        while read < DATAGRAMS as u64 * 100 && Instant::now() < until {
            let attribution = tracer.read().unwrap();
            let rows = of(&attribution, reader.tgid());
            read += rows.iter().map(|row| row.bytes).sum::<u64>();
            cpus.extend(rows.into_iter().map(|row| row.protocol_cpu.unwrap()));
        }
        assert_eq!(read, DATAGRAMS as u64 * 100, "{netdev}, RPS {mask}");
        cpus.sort_unstable();
        cpus.dedup();
        cpus
    })
}

fn two_cpus() -> bool {
    std::thread::available_parallelism().unwrap().get() > 1
}

/// A namespace that sends to 10.9.0.1 through `veth-here`: its process.
fn sender() -> std::process::Child {
    ip("link add veth-here type veth peer name veth-there");
    ip("link set veth-here up");
    let child = Command::new("unshare").args(["--net", "sleep", "600"]).spawn().unwrap();
    let own = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let theirs = format!("/proc/{}/ns/net", child.id());
    while std::fs::read_link(&theirs).unwrap() == own {
        std::thread::yield_now();
    }
    ip(&format!("link set veth-there netns {}", child.id()));
    for command in ["addr add 10.9.0.2/24 dev veth-there", "link set veth-there up"] {
        let inside = Command::new("nsenter")
            .args([&format!("--net={theirs}"), "ip"])
            .args(command.split(' '))
            .status();
        assert!(inside.unwrap().success(), "{command}");
    }
    child
}

/// Sends from that namespace, on the CPU of this thread.
fn send_from(sender: u32, port: u16) {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{sender}/ns/net")).arg(helper().get_program());
    command.args(["send-datagrams", &DATAGRAMS.to_string(), &format!("10.9.0.1:{port}")]);
    assert!(command.status().unwrap().success());
}

#[test]
fn rps_on_a_bridge_moves_what_it_delivers_here_and_rps_on_a_macvlan_moves_nothing() {
    in_own_netns(|| {
        if !two_cpus() {
            return;
        }
        let mut sender = sender();
        ip("link add br0 type bridge");
        ip("link set veth-here master br0");
        ip("addr add 10.9.0.1/24 dev br0");
        ip("link set br0 up");
        unshare_mounts_and_see_own_sysfs();
        assert_eq!(kind("br0"), SoftwareReceive::Reentry);
        assert_eq!(kind("veth-here"), SoftwareReceive::Backlog);
        let send = |port| send_from(sender.id(), port);
        let bridge = processed("br0", send);
        let port = processed("veth-here", send);
        ip("link del br0");
        ip("link add link veth-here name mac0 type macvlan mode bridge");
        ip("addr add 10.9.0.1/24 dev mac0");
        ip("link set mac0 up");
        assert_eq!(kind("mac0"), SoftwareReceive::SamePass);
        std::fs::write("/sys/class/net/veth-here/queues/rx-0/rps_cpus", "0").unwrap();
        let macvlan = processed("mac0", send);
        sender.kill().unwrap();
        sender.wait().unwrap();
        let (here, moved) = (vec![CpuId(0)], vec![CpuId(1)]);
        assert_eq!(bridge, [here.clone(), moved.clone()], "bridge");
        assert_eq!(port, [here.clone(), moved], "its port");
        assert_eq!(macvlan, [here.clone(), here], "macvlan");
    });
}

/// Writes the datagrams as frames into a tap.
#[test]
fn the_program_that_writes_into_a_tap_processes_the_packet_unless_rps_moves_it() {
    in_own_netns(|| {
        if !two_cpus() {
            return;
        }
        let tap = tap("tap9");
        ip("addr add 10.9.0.1/24 dev tap9");
        ip("link set tap9 up");
        unshare_mounts_and_see_own_sysfs();
        assert_eq!(kind("tap9"), SoftwareReceive::Writer);
        let mac = std::fs::read_to_string("/sys/class/net/tap9/address").unwrap();
        let mac: Vec<u8> =
            mac.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
        let cpus = processed("tap9", |port| {
            let to = SocketAddr::from((Ipv4Addr::new(10, 9, 0, 1), port));
            let frame = frame(&mac, to);
            for _ in 0..DATAGRAMS {
                (&tap).write_all(&frame).unwrap();
            }
        });
        assert_eq!(cpus, [vec![CpuId(0)], vec![CpuId(1)]]);
    });
}

/// Opens a tap without NAPI.
#[allow(unsafe_code)]
fn tap(name: &str) -> std::fs::File {
    const TUNSETIFF: rustix::ioctl::Opcode = 0x4004_54ca;
    const IFF_TAP_NO_PI: u16 = 0x0002 | 0x1000;
    let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun").unwrap();
    let mut request = [0_u8; 40];
    request[..name.len()].copy_from_slice(name.as_bytes());
    request[16..18].copy_from_slice(&IFF_TAP_NO_PI.to_ne_bytes());
    // SAFETY: the kernel reads and writes a `struct ifreq`, which has 40 bytes.
    unsafe {
        let set = rustix::ioctl::Updater::<TUNSETIFF, [u8; 40]>::new(&mut request);
        rustix::ioctl::ioctl(&file, set).unwrap();
    }
    file
}

/// An Ethernet frame with a UDP datagram of 100 bytes from 10.9.0.2.
fn frame(mac: &[u8], to: SocketAddr) -> Vec<u8> {
    const PAYLOAD: usize = 100;
    let SocketAddr::V4(to) = to else { panic!("{to}") };
    let mut ip = vec![0x45, 0];
    ip.extend(((20 + 8 + PAYLOAD) as u16).to_be_bytes());
    ip.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 9, 0, 2]);
    ip.extend(to.ip().octets());
    let words = ip.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    ip[10..12].copy_from_slice(&(!folded as u16).to_be_bytes());
    let mut frame = mac.to_vec();
    frame.extend([2, 0, 0, 0, 0, 2, 8, 0]);
    frame.extend(ip);
    frame.extend(4000_u16.to_be_bytes());
    frame.extend(to.port().to_be_bytes());
    frame.extend(((8 + PAYLOAD) as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend([7; PAYLOAD]);
    frame
}
