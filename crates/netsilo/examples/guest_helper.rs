//! The programs that tests in guests (`tests/lab_*`) run in the guest and at its peer.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a part of tests")]

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use clap::Parser;
use netsilo_sys::files::root::Root;
use rustix::net::{AddressFamily, Protocol, SendFlags, SocketType, bind, listen, sendto, socket};

/// A protocol number for experiments, which the guest does not handle.
const EXPERIMENT: u32 = 253;

/// The number of GRE.
const GRE: u32 = 47;

/// A process of a test.
#[derive(Parser)]
enum Role {
    /// Print netsilo's snapshot of the guest as JSON
    Snapshot,
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

fn listener(port: u16) {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port)).unwrap();
    listen(&socket, 128).unwrap();
    // until the test ends this process, or at the latest by itself
    std::thread::sleep(Duration::from_secs(360));
}

fn raw_socket(protocol: u32) -> OwnedFd {
    let protocol = Protocol::from_raw(protocol.try_into().unwrap());
    socket(AddressFamily::INET, SocketType::RAW, Some(protocol)).unwrap()
}

/// Sends a packet; while the neighbour's address is unknown this is an error, which is ignored.
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
        // gives the guest time to take the packets
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
