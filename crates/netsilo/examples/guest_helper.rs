//! The programs that tests in guests (`tests/lab_*`) run in the guest and at its peer.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a part of tests")]

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use clap::Parser;
use netsilo_sys::files::root::Root;
use netsilo_sys::transaction::kernel::{Kernel as _, KnobAddress, Live};
use rustix::net::{AddressFamily, Protocol, SendFlags, SocketType, bind, listen, sendto, socket};

/// A protocol number for experiments. The guest does not handle it.
const EXPERIMENT: u32 = 253;

/// The number of GRE.
const GRE: u32 = 47;

/// A process of a test.
#[derive(Parser)]
enum Role {
    /// Print netsilo's snapshot of the guest as JSON
    Snapshot,
    /// Print what depends on the knobs of all netdevs: kthreads, interrupts and queues. They are
    /// identified by name and order, because a driver may give them other numbers
    Queues,
    /// Set each of them to values that no driver chooses
    PinQueues,
    /// Listen, and accept nobody
    Listener { port: u16 },
    /// Send bursts of small packets, ten per second for four minutes at most
    Bursts { guest: Ipv4Addr, packets_per_burst: usize, bursts: u64 },
    /// Send packets of these IP protocols in turn, at an even rate, for ten minutes
    Tunnels {
        guest: Ipv4Addr,
        packets_per_s: u32,
        #[arg(required = true)]
        protocols: Vec<u32>,
    },
}

fn main() {
    match Role::parse() {
        Role::Snapshot => snapshot(),
        Role::Queues => queues(),
        Role::PinQueues => pin_queues(),
        Role::Listener { port } => listener(port),
        Role::Bursts { guest, packets_per_burst, bursts } => {
            send_bursts(guest, packets_per_burst, bursts);
        }
        Role::Tunnels { guest, packets_per_s, protocols } => {
            send_tunnels(guest, packets_per_s, &protocols);
        }
    }
}

fn snapshot() {
    let snapshot = netsilo_sys::snapshot(&Root::live()).unwrap();
    println!("{}", serde_json::to_string(&snapshot).unwrap());
}

/// The names in a folder that begin with `prefix`, sorted by the numbers at their ends.
fn names(folder: &str, prefix: &str) -> Vec<String> {
    let names = std::fs::read_dir(folder).into_iter().flatten();
    let names = names.map(|name| name.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(prefix)).collect();
    names.sort_by_key(|name| {
        let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
        (digits.parse::<u64>().unwrap_or(0), name.clone())
    });
    names
}

fn text(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim_end().to_owned()
}

/// The kthreads that poll NAPIs of this netdev: pids, sorted by the NAPIs' ids.
fn kthreads(netdev: &str) -> Vec<u32> {
    let prefix = format!("napi/{netdev}-");
    let id = |pid: &u32| text(&format!("/proc/{pid}/comm")).strip_prefix(&prefix)?.parse().ok();
    let pids = names("/proc", "").into_iter().filter_map(|name| name.parse().ok());
    let mut all: Vec<(u32, u32)> = pids.filter_map(|pid| Some((id(&pid)?, pid))).collect();
    all.sort_unstable();
    all.into_iter().map(|(_, pid)| pid).collect()
}

/// The interrupts of network devices: their names and numbers.
fn interrupts() -> Vec<(String, String)> {
    let name = |irq: &String| text(&format!("/sys/kernel/irq/{irq}/actions"));
    let all = names("/sys/kernel/irq", "").into_iter().map(|irq| (name(&irq), irq));
    let mut all: Vec<_> =
        all.filter(|(name, _)| name.contains("eth") || name.contains("virtio")).collect();
    all.sort();
    all
}

fn queues() {
    for netdev in names("/sys/class/net", "eth") {
        let folder = format!("/sys/class/net/{netdev}/queues");
        for queue in names(&folder, "") {
            for file in ["rps_cpus", "rps_flow_cnt", "xps_cpus", "xps_rxqs"] {
                println!("{netdev} {queue} {file} {}", text(&format!("{folder}/{queue}/{file}")));
            }
        }
        for pid in kthreads(&netdev) {
            let status = text(&format!("/proc/{pid}/status"));
            let cpus = status.lines().find(|line| line.starts_with("Cpus_allowed:")).unwrap();
            let stat = text(&format!("/proc/{pid}/stat"));
            // after the name: nice is field 19, priority 40, policy 41
            let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
            println!("{netdev} kthread {cpus} {} {} {}", fields[16], fields[37], fields[38]);
        }
    }
    for (name, irq) in interrupts() {
        println!("{name} {}", text(&format!("/proc/irq/{irq}/smp_affinity")));
    }
}

/// Moves through the CPUs of a guest.
struct Next(u32);

impl Next {
    fn mask(&mut self) -> String {
        self.0 = (self.0 + 3) % 8;
        format!("{:x}", 1 << self.0)
    }
}

fn pin_queues() {
    let kernel = Live::new(Root::live());
    let mut cpu = Next(0);
    // A device with one tx queue has no XPS, and some interrupts belong to the kernel itself.
    let write = |path: String, text: String| std::fs::write(path, text).unwrap_or_default();
    for netdev in names("/sys/class/net", "eth") {
        let folder = format!("/sys/class/net/{netdev}");
        write(format!("{folder}/threaded"), "1".into());
        for queue in names(&format!("{folder}/queues"), "") {
            write(format!("{folder}/queues/{queue}/rps_cpus"), cpu.mask());
            write(format!("{folder}/queues/{queue}/rps_flow_cnt"), "512".into());
            write(format!("{folder}/queues/{queue}/xps_cpus"), cpu.mask());
        }
        for pid in kthreads(&netdev) {
            kernel.set(&KnobAddress::Thread(pid), &cpu.mask()).unwrap();
            let scheduler = match cpu.0 % 3 {
                0 => format!("policy=1 nice=0 priority={}", cpu.0 + 1),
                _ => format!("policy=0 nice=-{} priority=0", cpu.0),
            };
            kernel.set(&KnobAddress::Scheduler(pid), &scheduler).unwrap();
        }
    }
    for (_, irq) in interrupts() {
        write(format!("/proc/irq/{irq}/smp_affinity"), cpu.mask());
    }
}

fn listener(port: u16) {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port)).unwrap();
    listen(&socket, 128).unwrap();
    // the test ends this process; otherwise it ends by itself after this time
    std::thread::sleep(Duration::from_secs(360));
}

fn raw_socket(protocol: u32) -> OwnedFd {
    let protocol = Protocol::from_raw(protocol.try_into().unwrap());
    socket(AddressFamily::INET, SocketType::RAW, Some(protocol)).unwrap()
}

/// Sends a packet. While the neighbour's address is unknown this fails, and the error is ignored.
fn send(socket: &OwnedFd, packet: &[u8], guest: Ipv4Addr) {
    let _ = sendto(socket, packet, SendFlags::empty(), &SocketAddrV4::new(guest, 0));
}

fn send_bursts(guest: Ipv4Addr, packets_per_burst: usize, bursts: u64) {
    let socket = raw_socket(EXPERIMENT);
    let deadline = Instant::now() + Duration::from_secs(240);
    for _ in 0..bursts {
        for _ in 0..packets_per_burst {
            send(&socket, &[0; 64], guest);
        }
        if Instant::now() > deadline {
            break;
        }
        // gives the guest time to receive the packets
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn send_tunnels(guest: Ipv4Addr, packets_per_s: u32, protocols: &[u32]) {
    let sockets: Vec<_> = protocols.iter().map(|number| (*number, raw_socket(*number))).collect();
    // GRE version 0 without options; its payload looks like IPv4
    let gre = [&[0, 0, 8, 0], [0x45; 100].as_slice()].concat();
    let started = Instant::now();
    for n in 0..u32::MAX {
        let due = Duration::from_secs(n.into()) / packets_per_s;
        if due > Duration::from_secs(600) {
            break;
        }
        std::thread::sleep(due.saturating_sub(started.elapsed()));
        let (number, socket) = &sockets[n as usize % sockets.len()];
        send(socket, if *number == GRE { &gre } else { &gre[4..] }, guest);
    }
}
