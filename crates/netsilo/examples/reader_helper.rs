//! The readers and senders of `tests/slow_reader.rs`, which run in a network namespace.

#![allow(clippy::unwrap_used, reason = "a part of tests")]

use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Parser;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, listen, socket_with};

/// No program runs longer, whatever happens to the test.
const LONGEST: Duration = Duration::from_secs(300);

/// A process of a test.
#[derive(Parser)]
enum Role {
    /// Read datagrams of a port
    Sink {
        port: u16,
        /// The size that it requests for its buffer
        buffer: usize,
        /// Sleep this long whenever the buffer is empty, and do not wait for packets
        #[arg(long)]
        tick_ms: Option<u64>,
        /// Work this long on each datagram
        #[arg(long, default_value_t = 0)]
        work_us: u64,
    },
    /// Send datagrams of 100 bytes at an even rate
    Send { port: u16, per_s: u32 },
    /// Listen, and request connections that are never completed
    HalfOpen { port: u16, backlog: i32, per_s: u32 },
}

fn main() {
    match Role::parse() {
        Role::Sink { port, buffer, tick_ms, work_us } => {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
            set_socket_recv_buffer_size(&socket, buffer).unwrap();
            socket.set_nonblocking(tick_ms.is_some()).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            let (begun, work) = (Instant::now(), Duration::from_micros(work_us));
            while begun.elapsed() < LONGEST {
                if socket.recv(&mut [0; 2048]).is_ok() {
                    let read = Instant::now();
                    while read.elapsed() < work {}
                } else {
                    sleep(Duration::from_millis(tick_ms.unwrap_or(0)));
                }
            }
        }
        Role::Send { port, per_s } => {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            socket.connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            // without a reader, the error of the last send is reported
            evenly(per_s, || _ = socket.send(&[0; 100]));
        }
        Role::HalfOpen { port, backlog, per_s } => {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
            listen(&listener, backlog).unwrap();
            evenly(per_s, || request(port));
        }
    }
}

/// Calls it this often per second, in bursts of a millisecond.
fn evenly(per_s: u32, mut call: impl FnMut()) {
    let begun = Instant::now();
    let mut calls = 0;
    while begun.elapsed() < LONGEST {
        while f64::from(calls) < begun.elapsed().as_secs_f64() * f64::from(per_s) {
            call();
            calls += 1;
        }
        sleep(Duration::from_millis(1));
    }
}

/// Sends a SYN.
fn request(port: u16) {
    let flags = SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    // still in progress when the socket is closed
    let _ = connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port));
}
