//! The programs that tests of this crate run as separate processes, in guests too.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a part of tests")]

#[allow(dead_code, unused_imports, reason = "most of it is for the tests only")]
#[path = "../../tests/transaction/fake.rs"]
mod fake;
mod nic;
mod reader;
#[allow(dead_code, unused_imports, reason = "most of it is for the tests only")]
#[path = "../../tests/transaction/remedies.rs"]
mod remedies;

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};

use clap::Parser;
use netsilo_model::snapshot::attribution::AttributionSource;
use netsilo_model::snapshot::runqueue;
use netsilo_sys::bpf::tracer::{Options, Tracer};

use fake::{Death, Fake, apply, everything};

/// A process of a test.
#[derive(Parser)]
enum Role {
    /// Read sockets and count the bytes
    Reader {
        /// Method
        how: String,
        /// Number of connections; for UDP the size of the buffer
        connections: usize,
    },
    /// Send datagrams of 100 bytes
    SendDatagrams {
        count: usize,
        #[arg(default_value = "10.10.0.2:9")]
        to: SocketAddr,
    },
    /// Check that every eBPF hook names the missing privilege
    WithoutPrivilege,
    /// Apply the plan of everything to the fake kernel in a folder, which kills this process before
    /// a write
    ApplyAndBeKilled {
        root: PathBuf,
        write: usize,
        /// After the write
        #[arg(long)]
        after: bool,
    },
    /// Pin a tc program that gives packets for an address to a netdev
    PinRedirect { way: Redirect, ifindex: i32, to: Ipv4Addr, path: PathBuf },
    /// Connect and send to one of the following two
    NicClient { address: String },
    /// Receive, and check the data of virtio-net
    NicVirtio { address: String },
    /// Receive, and check the data of igb
    NicIgb { address: String },
}

/// How the packets get there. The number of a function of eBPF.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Redirect {
    /// `bpf_redirect_neigh`: sent through the netdev, to the neighbour there
    Neigh = 152,
    /// `bpf_redirect_peer`: received by the netdev's peer
    Peer = 155,
}

fn main() {
    match Role::parse() {
        Role::Reader { how, connections } => reader::run(&how, connections),
        Role::SendDatagrams { count, to } => send_datagrams(count, to),
        Role::WithoutPrivilege => without_privilege(),
        Role::ApplyAndBeKilled { root, write, after } => apply_and_be_killed(&root, write, after),
        Role::PinRedirect { way, ifindex, to, path } => pin_redirect(way, ifindex, to, &path),
        Role::NicClient { address } => nic::client(&address),
        Role::NicVirtio { address } => nic::virtio_server(&address),
        Role::NicIgb { address } => nic::igb_server(&address),
    }
}

/// Loaded without a library: the destination in the IPv4 header is compared.
#[allow(unsafe_code)]
fn pin_redirect(way: Redirect, ifindex: i32, to: Ipv4Addr, path: &Path) {
    const DESTINATION: i32 = 14 + 16;
    let instruction = |code, (dst, src): (u8, u8), off, imm| {
        let mut instruction = libbpf_sys::bpf_insn { code, off, imm, ..Default::default() };
        instruction.set_dst_reg(dst);
        instruction.set_src_reg(src);
        instruction
    };
    let address = i32::from_ne_bytes(u32::from(to).to_ne_bytes());
    let instructions = [
        instruction(0xbf, (6, 1), 0, 0),           // r6 = r1
        instruction(0x20, (0, 0), 0, DESTINATION), // r0 = packet
        instruction(0x56, (0, 0), 6, address),     // if w0 != address goto + 6
        instruction(0xb7, (1, 0), 0, ifindex),     // r1 = ifindex
        instruction(0xb7, (2, 0), 0, 0),           // r2 = 0, and more where there are more
        instruction(0xb7, (3, 0), 0, 0),
        instruction(0xb7, (4, 0), 0, 0),
        instruction(0x85, (0, 0), 0, way as i32), // r0 = call
        instruction(0x95, (0, 0), 0, 0),          // exit
        instruction(0xb7, (0, 0), 0, 0),          // r0 = TC_ACT_OK
        instruction(0x95, (0, 0), 0, 0),          // exit
    ];
    let count = instructions.len() as libbpf_sys::size_t;
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    let (name, license) = (c"redirect".as_ptr(), c"GPL".as_ptr());
    // SAFETY: the strings end in NUL, and the instruction count is correct; null requests no
    // options.
    unsafe {
        let (kind, options) = (libbpf_sys::BPF_PROG_TYPE_SCHED_CLS, std::ptr::null_mut());
        let instructions = instructions.as_ptr();
        let program = libbpf_sys::bpf_prog_load(kind, name, license, instructions, count, options);
        assert!(program >= 0, "{program}");
        assert_eq!(libbpf_sys::bpf_obj_pin(program, path.as_ptr()), 0);
    }
}

fn send_datagrams(count: usize, to: SocketAddr) {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    for _ in 0..count {
        socket.send_to(&[0; 100], to).unwrap();
    }
}

fn without_privilege() {
    let options = Options { runqueue: true, ..Options::default() };
    let attribution = Tracer::attach(options).read().unwrap();
    assert_eq!(attribution.source, AttributionSource::None);
    assert!(attribution.hooks.iter().any(|hook| hook.quantity == runqueue::QUANTITY));
    for hook in attribution.hooks {
        let why = hook.refused.unwrap();
        assert!(why.starts_with("no privilege: run as root or with CAP_BPF and CAP_PERFMON"));
    }
    println!("reasons reported");
}

fn apply_and_be_killed(root: &Path, write: usize, after: bool) {
    let kernel = Fake::on(root);
    let death = if after { Death::KillAfter(write) } else { Death::KillBefore(write) };
    kernel.death.set(Some(death));
    let _ = apply(&kernel, &everything(&kernel));
}
