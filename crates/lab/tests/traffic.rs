//! Tests of the traffic programs on loopback: they count exactly, so other tests may rely on them.

#![allow(clippy::unwrap_used)] // helpers of tests are tests too

use netsilo_lab::traffic::{Consumed, Produced, Proto, RrReport, RrServed};
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, UdpSocket};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

fn traffic(arguments: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_netsilo-lab"))
        .arg("traffic")
        .args(arguments.split_whitespace())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn result<T: DeserializeOwned>(child: Child) -> T {
    serde_json::from_slice(&finished(child).stdout).unwrap()
}

fn finished(child: Child) -> Output {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Returns the first of `count` consecutive free ports that no other test of this process gets.
fn free_ports(count: u16) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let free = |port: u16| {
        TcpListener::bind(("127.0.0.1", port)).is_ok()
            && UdpSocket::bind(("127.0.0.1", port)).is_ok()
    };
    let start = 20000 + u16::try_from(std::process::id() % 10000).unwrap();
    loop {
        let first = start + NEXT.fetch_add(count, Ordering::Relaxed);
        if (first..first + count).all(free) {
            return first;
        }
    }
}

/// Sends an odd number of bytes on each of two flows to one port, and compares all counts.
fn every_byte_is_counted_once(mode: &str, proto: Proto, more: &str, bytes: u64) -> Consumed {
    let port = free_ports(1);
    let consumer =
        traffic(&format!("consume --mode {mode} --port {port} --flows 2 --bind 127.0.0.1"));
    let produce = format!(
        "produce --proto {proto} --dest 127.0.0.1 --port {port} --flows 2 --bytes {bytes} {more}"
    );
    let sent: Produced = result(traffic(&produce));
    let got: Consumed = result(consumer);
    assert_eq!(sent.bytes, 2 * bytes, "{mode}");
    assert_eq!(got.bytes, 2 * bytes, "{mode}");
    assert!(format!("c-{mode}").starts_with(&got.comm));
    if proto == Proto::Tcp {
        let mut ends: Vec<_> =
            got.sockets.iter().map(|socket| (socket.peer_port, socket.bytes)).collect();
        let mut flows: Vec<_> =
            sent.flows.iter().map(|flow| (flow.local_port, flow.bytes)).collect();
        ends.sort_unstable();
        flows.sort_unstable();
        assert_eq!(ends, flows, "{mode}");
    } else {
        let flows = sent.flows.iter().map(|flow| (flow.local_port, flow.bytes)).collect();
        assert_eq!(got.sockets[0].flows, flows, "{mode}");
    }
    got
}

#[test]
fn each_way_to_receive_tcp_counts_every_byte_once() {
    for mode in ["recv", "peek", "trunc", "splice", "io_uring", "zerocopy"] {
        every_byte_is_counted_once(mode, Proto::Tcp, "--size 5000", 3_000_001);
    }
}

#[test]
fn zerocopy_maps_what_was_sent_from_a_file() {
    let got = every_byte_is_counted_once("zerocopy", Proto::Tcp, "--sendfile", 3_000_001);
    let mapped: u64 = got.sockets.iter().map(|socket| socket.mapped_bytes).sum();
    assert!(mapped > 0 && mapped <= got.bytes, "{mapped} of {} bytes mapped", got.bytes);
}

#[test]
fn each_way_to_receive_udp_counts_every_byte_once() {
    for mode in ["udp-unconnected", "udp-recvmmsg", "udp-peek"] {
        every_byte_is_counted_once(mode, Proto::Udp, "--size 700 --rate 4000", 200_001);
    }
}

#[test]
fn a_connected_udp_socket_takes_one_flow() {
    let port = free_ports(2);
    let consumer = traffic(&format!(
        "consume --mode udp-connected --port {port} --ports 2 --flows 2 --bind 127.0.0.1"
    ));
    let produce = format!(
        "produce --proto udp --dest 127.0.0.1 --port {port} --ports 2 --flows 2 --bytes 50001"
    );
    let sent: Produced = result(traffic(&produce));
    let got: Consumed = result(consumer);
    for (socket, flow) in got.sockets.iter().zip(&sent.flows) {
        assert_eq!((socket.local_port, socket.peer_port), (flow.port, flow.local_port));
        assert_eq!((socket.bytes, flow.bytes), (50001, 50001));
    }
}

#[test]
fn client_and_servers_agree_on_every_transaction_and_byte() {
    for proto in [Proto::Tcp, Proto::Udp] {
        for (request, response, workers) in [(1, 1, ""), (256, 70_000, "--threads")] {
            let response = if proto == Proto::Udp { response.min(256) } else { response };
            let port = free_ports(2);
            let sizes = format!("--request-bytes {request} --response-bytes {response}");
            let server = traffic(&format!(
                "rr-server --proto {proto} --port {port} --cpus 0,0 {sizes} {workers}"
            ));
            let seen: RrReport = result(traffic(&format!(
                "rr-client --proto {proto} --dest 127.0.0.1 --port {port} --ports 2 \
                 --connections 5 --duration 0.5 {sizes}"
            )));
            Command::new("kill").arg(server.id().to_string()).status().unwrap();
            let served: Vec<RrServed> = String::from_utf8(finished(server).stdout)
                .unwrap()
                .lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect();
            assert_eq!(served.len(), 2);
            assert!(seen.transactions > 0);
            assert_eq!(
                seen.transactions,
                seen.connections.iter().map(|one| one.transactions).sum::<u64>()
            );
            let sum = |of: fn(&RrServed) -> u64| served.iter().map(of).sum::<u64>();
            assert_eq!(sum(|one| one.transactions), seen.transactions + seen.retries);
            assert_eq!(sum(|one| one.received_bytes), seen.sent_bytes);
            assert_eq!(sum(|one| one.sent_bytes), seen.received_bytes);
            let same_process = served[0].pid == served[1].pid;
            assert_eq!(same_process, workers == "--threads");
        }
    }
}

#[test]
fn a_client_sends_lines_of_text_and_waits_for_the_whole_response() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    // A duration of 0: one request on each connection.
    let client = traffic(&format!(
        "rr-client --proto tcp --dest 127.0.0.1 --port {port} --duration 0 --request-line get-key \
         --response-bytes 7"
    ));
    let (mut stream, _) = listener.accept().unwrap();
    let mut line = String::new();
    BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "get-key\r\n");
    for part in ["VALU", "E\r\n"] {
        stream.write_all(part.as_bytes()).unwrap();
    }
    let report: RrReport = result(client);
    assert_eq!((report.transactions, report.sent_bytes, report.received_bytes), (1, 9, 7));
}
