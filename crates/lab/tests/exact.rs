//! Tests of the programs with exact counts, on loopback. Other tests rely on these programs.

#![allow(clippy::unwrap_used)] // helpers of tests are tests too

use netsilo_lab::exact::{Asked, Received};
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, UdpSocket};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

fn exact(arguments: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_netsilo-lab"))
        .arg("exact")
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

/// Sends an odd number of bytes on each of two flows to these ports. Checks that every flow has its
/// bytes.
fn every_byte_is_counted_once(mode: &str, ports: u16, bytes: u64, more: &str) -> Received {
    let udp = if mode.starts_with("udp") { "--udp" } else { "" };
    let all = format!("--port {} --ports {ports} --flows 2 --bytes {bytes}", free_ports(ports));
    let receiver = exact(&format!("receive --mode {mode} {all} --bind 127.0.0.1"));
    finished(exact(&format!("send {udp} --dest 127.0.0.1 {all} {more}")));
    let got: Received = result(receiver);
    assert_eq!(got.bytes, 2 * bytes, "{mode}");
    let of_each = if udp.is_empty() { bytes } else { 2 * bytes / u64::from(ports) };
    assert!(got.sockets.iter().all(|socket| socket.bytes == of_each), "{mode}: {got:?}");
    got
}

#[test]
fn each_way_to_receive_tcp_counts_every_byte_once() {
    for mode in ["recv", "peek", "trunc", "splice", "io_uring", "zerocopy"] {
        every_byte_is_counted_once(mode, 1, 3_000_001, "--size 5000");
    }
}

#[test]
fn zerocopy_maps_what_was_sent_from_a_file() {
    let got = every_byte_is_counted_once("zerocopy", 1, 3_000_001, "--sendfile");
    let mapped: u64 = got.sockets.iter().map(|socket| socket.mapped_bytes).sum();
    assert!(mapped > 0 && mapped <= got.bytes, "{mapped} of {} bytes mapped", got.bytes);
}

#[test]
fn each_way_to_receive_udp_counts_every_byte_once() {
    for mode in ["udp-unconnected", "udp-recvmmsg", "udp-peek"] {
        every_byte_is_counted_once(mode, 1, 200_001, "--size 700 --rate 4000");
    }
}

#[test]
fn a_connected_udp_socket_takes_one_flow() {
    every_byte_is_counted_once("udp-connected", 2, 50_001, "");
}

#[test]
fn each_server_answers_requests_until_its_client_ends() {
    for (server, udp) in
        [("echo", ""), ("echo --udp", "--udp"), ("pipeline --cpu 0 --second-cpu 0", "--udp")]
    {
        let port = free_ports(1);
        let mut running = exact(&format!("{server} --port {port}"));
        let to = format!("--dest 127.0.0.1 --port {port}");
        let one: Asked = result(exact(&format!("ask {udp} {to} --duration 0")));
        assert_eq!(one.transactions, 1, "{server}");
        let many = exact(&format!("ask {udp} {to} --duration 0.5"));
        // A stop signal interrupts a read that has a timeout (signal(7)).
        for signal in ["-STOP", "-CONT"].into_iter().cycle().take(60) {
            Command::new("kill").args([signal, &many.id().to_string()]).status().unwrap();
        }
        let many: Asked = result(many);
        assert!(many.transactions > 10 && many.p50_us <= many.p99_us, "{server}: {many:?}");
        running.kill().unwrap();
        running.wait().unwrap();
    }
}

#[test]
fn a_client_sends_lines_of_text_and_waits_for_the_whole_response() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let client = exact(&format!(
        "ask --dest 127.0.0.1 --port {port} --duration 0 --request-line get-key --response-bytes 7"
    ));
    let (mut stream, _) = listener.accept().unwrap();
    let mut line = String::new();
    BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "get-key\r\n");
    for part in ["VALU", "E\r\n"] {
        stream.write_all(part.as_bytes()).unwrap();
    }
    assert_eq!(result::<Asked>(client).transactions, 1);
}
