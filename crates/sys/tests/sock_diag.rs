//! Compares bytes per consumer by sock_diag with the application's own counts, in separate network
//! namespaces.
// clippy.toml's leave covers test functions only
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc;
use std::thread;

use netsilo_model::derive::sock_diag::{SocketSample, attribute_reads};
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::snapshot::attribution::{
    Attribution, AttributionSource, Consumption, QueueResolution,
};
use netsilo_sys::read::netlink::sock_diag::sample;
use rustix::thread::{CpuSet, UnshareFlags, sched_setaffinity};

/// Runs a claim in a thread with its own network namespace, on CPU 0; prints SKIPPED without the
/// privilege.
fn in_own_netns(claim: fn()) {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("NETSILO_NO_SKIP").is_none(), "network namespaces need root");
        println!("SKIPPED: network namespaces need root");
        return;
    }
    let run = move || {
        unshare_net();
        let mut cpus = CpuSet::new();
        cpus.set(0);
        sched_setaffinity(None, &cpus).unwrap();
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

fn own(attribution: &Attribution) -> Vec<&Consumption> {
    let own = |read: &&Consumption| read.consumer.tgid == std::process::id();
    attribution.consumption.iter().filter(own).collect()
}

fn bytes(before: &SocketSample, after: &SocketSample) -> u64 {
    own(&attribute_reads(before, after, &[])).iter().map(|read| read.bytes).sum()
}

fn connected(address: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(address).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

#[test]
fn counted_bytes_are_those_that_the_application_read() {
    in_own_netns(|| {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (mut client, mut server) = connected(address);
            client.write_all(&[7; 1000]).unwrap();
            server.read_exact(&mut [0; 1000]).unwrap();
            let before = sample(None).unwrap();
            let writer = thread::spawn(move || {
                client.write_all(&vec![7; 3_000_000]).map(|()| client).unwrap()
            });
            let mut read = 0;
            while read < 2_999_000 {
                read += server.read(&mut [0; 4096]).unwrap();
            }
            let client = writer.join().unwrap();
            let after = sample(Some(&before)).unwrap();
            assert_eq!(bytes(&before, &after), read as u64, "{address}");
            let attribution = attribute_reads(&before, &after, &[]);
            let [consumption] = own(&attribution)[..] else { panic!("{attribution:?}") };
            assert_eq!(
                (attribution.source, consumption.resolved),
                (AttributionSource::SockDiag, QueueResolution::Local)
            );
            assert_eq!(
                (consumption.consumer_cpu, consumption.protocol_cpu),
                (CpuId(0), Some(CpuId(0)))
            );
            assert_eq!(u64::from(consumption.consumer.netns), own_netns());
            drop(client);
        }
    });
}

fn own_netns() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino()
}

#[test]
fn peeked_and_queued_data_and_the_fin_are_not_counted() {
    in_own_netns(|| {
        let before = sample(None).unwrap();
        let (mut client, mut server) = connected("127.0.0.1:0");
        client.write_all(&[7; 1000]).unwrap();
        while server.peek(&mut [0; 1000]).unwrap() < 1000 {}
        assert_eq!(bytes(&before, &sample(Some(&before)).unwrap()), 0);
        server.read_exact(&mut [0; 300]).unwrap();
        assert_eq!(bytes(&before, &sample(Some(&before)).unwrap()), 300);
        // the peer's FIN is queued behind 700 bytes, then alone, then received
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(bytes(&before, &sample(Some(&before)).unwrap()), 300);
        server.read_exact(&mut [0; 700]).unwrap();
        assert_eq!(bytes(&before, &sample(Some(&before)).unwrap()), 1000);
        assert_eq!(server.read(&mut [0; 1]).unwrap(), 0);
        assert_eq!(bytes(&before, &sample(Some(&before)).unwrap()), 1000);
    });
}

#[test]
fn a_peer_beyond_a_veth_is_not_local() {
    in_own_netns(|| {
        let (to_peer, peer) = mpsc::channel::<String>();
        let (ready, netns) = mpsc::channel();
        let sender = thread::spawn(move || {
            unshare_net();
            ready.send(gettid()).unwrap();
            let address = peer.recv().unwrap();
            let mut client = TcpStream::connect(address).unwrap();
            client.write_all(&[7; 100_000]).unwrap();
            // a message ends the thread, and with it its namespace
            let _ = peer.recv();
        });
        let peer_pid = netns.recv().unwrap();
        ip(&format!("link add veth0 type veth peer name veth1 netns /proc/{peer_pid}/ns/net"));
        ip("address add 192.0.2.1/24 dev veth0");
        ip("link set veth0 up");
        assert!(
            Command::new("nsenter")
                .arg(format!("--net=/proc/{peer_pid}/ns/net"))
                .args(["sh", "-c", "ip address add 192.0.2.2/24 dev veth1 && ip link set veth1 up"])
                .status()
                .unwrap()
                .success()
        );
        let before = sample(None).unwrap();
        let listener = TcpListener::bind("192.0.2.1:0").unwrap();
        to_peer.send(listener.local_addr().unwrap().to_string()).unwrap();
        let mut server = listener.accept().unwrap().0;
        server.read_exact(&mut vec![0; 100_000]).unwrap();
        let after = sample(Some(&before)).unwrap();
        assert_eq!(bytes(&before, &after), 100_000);
        assert!(after.addresses.values().flatten().any(|own| own.to_string() == "192.0.2.1"));
        let attribution = attribute_reads(&before, &after, &[]);
        assert!(
            own(&attribution).iter().all(|read| read.resolved == QueueResolution::Unresolved),
            "{attribution:?}"
        );
        drop(to_peer);
        sender.join().unwrap();
    });
}

/// Thread id of the calling thread. It also names the thread's folder `/proc/<tid>`.
fn gettid() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}
