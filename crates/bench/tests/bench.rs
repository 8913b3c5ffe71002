//! Tests of `netsilo-bench` on loopback and between two network namespaces. They check that it
//! counts exactly. No test is about speed.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy lets only functions marked as tests do so"
)]

mod conforms;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Output, Stdio};

use conforms::conforming;
use netsilo_lab::{output_of, until};
use netsilo_trial::traffic::{InstancesAs, LoadResult, Spec, Test};
use rustix::process::{Pid, Signal, kill_process};

/// Maximum memory in bytes that 1500 instances may use at either end.
const MOST_BYTES: u64 = 64 << 20;

/// Returns a command of netsilo-bench, in a network namespace or in this one.
fn netsilo(netns: Option<&str>, arguments: &str) -> Command {
    let program = env!("CARGO_BIN_EXE_netsilo-bench");
    let mut command = match netns {
        None => Command::new(program),
        Some(netns) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", netns, program]);
            command
        }
    };
    command.args(arguments.split_whitespace()).stdin(Stdio::null());
    command
}

/// A server that is killed at the end of its test.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(netns: Option<&str>, arguments: &str) -> Self {
        let mut command = netsilo(netns, &format!("serve --port 0 {arguments}"));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.strip_prefix("listening on ").and_then(|rest| rest.split(',').next());
        Self { address: address.unwrap_or_else(|| panic!("{line}")).to_owned(), child }
    }

    fn try_run(&self, netns: Option<&str>, arguments: &str) -> Output {
        netsilo(netns, &format!("run {} {arguments}", self.address)).output().unwrap()
    }

    fn run(&self, netns: Option<&str>, arguments: &str) -> LoadResult {
        let output = self.try_run(netns, &format!("{arguments} --json"));
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments}: {words}");
        serde_json::from_value(conforming("bench-run", &output.stdout)).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Runs a load until it counts something. On a busy machine, repeats it for longer.
    fn adds_up(&self, netns: Option<&str>, arguments: &str) -> LoadResult {
        let mut last = None;
        for time in ["200ms", "2s", "20s", "60s"] {
            let run = self.run(netns, &format!("{arguments} -d {time} --warm-up 0s"));
            sums_hold(&run);
            let requests = run.spec.test.has_responses();
            let done =
                if requests { run.counted.responses } else { run.server.counted.received_bytes };
            let latencies = run.latency.as_ref().map_or(0, |latency| latency.count);
            if done > 0 && (latencies > 0) == requests {
                return run;
            }
            last = Some(run);
        }
        panic!("{arguments}: nothing counted: {last:?}")
    }
}

/// Asserts what must be true for every run.
fn sums_hold(run: &LoadResult) {
    let (totals, served, test) = (&run.totals, &run.server.totals, run.spec.test);
    assert!(
        run.seconds > 0.0
            && run.client.busy_cpus().is_some()
            && run.server.side.busy_cpus().is_some()
    );
    assert!(run.client.context_switches_per_s.is_some() && run.client.interrupts_per_s.is_some());
    if test.has_responses() {
        assert_eq!(totals.requests, totals.responses + totals.lost, "{test}: {totals:?}");
        let (request, response) = (run.spec.request_bytes as u64, run.spec.response_bytes as u64);
        assert_eq!(
            totals.sent_bytes,
            (totals.requests + totals.resent) * request,
            "{test}: {totals:?}"
        );
        assert_eq!(
            totals.received_bytes,
            (totals.responses + totals.late) * response,
            "{test}: {totals:?}"
        );
        assert_eq!(served.requests * request, served.received_bytes, "{test}: {served:?}");
    }
    assert_eq!(
        totals.zerocopy_sends > 0,
        run.spec.zero_copy && totals.sent_bytes > 0,
        "{test}: {totals:?}"
    );
    assert_eq!(totals.zerocopy_completed, totals.zerocopy_sends, "{test}: {totals:?}");
    assert!(totals.zerocopy_copied <= totals.zerocopy_completed, "{test}: {totals:?}");
    match test {
        Test::TcpRr | Test::TcpCrr => {
            assert_eq!(
                (served.requests, served.responses),
                (totals.requests, totals.responses),
                "{test}"
            );
            assert_eq!(
                (served.received_bytes, served.sent_bytes),
                (totals.sent_bytes, totals.received_bytes)
            );
        }
        Test::UdpRr => {
            assert!(
                served.requests <= totals.requests + totals.resent
                    && served.responses >= totals.responses
            );
        }
        Test::TcpStream | Test::TcpSendfile => {
            assert_eq!(served.received_bytes, totals.sent_bytes, "{test}")
        }
        Test::UdpStream | Test::Forward => {
            let (sent, bytes) = (totals.datagrams_sent, run.spec.send_bytes as u64);
            assert_eq!(totals.sent_bytes, sent * bytes);
            assert!((1..=sent).contains(&served.datagrams_received), "{totals:?} {served:?}");
            assert_eq!(served.received_bytes, served.datagrams_received * bytes);
        }
    }
}

#[test]
fn each_test_adds_up_with_each_kind_of_instances() {
    let server = Server::start(None, "");
    for test in Test::ALL {
        for kind in ["threads", "multiplexed", "processes"] {
            let run = server.adds_up(None, &format!("-t {test} -n 3 --instances-as {kind}"));
            assert_eq!((run.spec.instances, run.spec.instances_as.to_string().as_str()), (3, kind));
            let kind_of_server = if kind == "multiplexed" || test == Test::TcpCrr {
                InstancesAs::Multiplexed
            } else {
                InstancesAs::Threads
            };
            assert_eq!(run.server.instances_as, Some(kind_of_server), "{test}");
        }
    }
}

#[test]
fn requests_and_responses_of_any_size_arrive_whole() {
    let server = Server::start(None, "--work-usecs 20");
    for (test, sizes) in [
        ("TCP_RR", "100000,3"),
        ("TCP_RR", "3,3000000"),
        ("UDP_RR", "256,1024"),
        ("TCP_CRR", "5000,70000"),
    ] {
        for kind in ["threads", "multiplexed"] {
            let run =
                server.adds_up(None, &format!("-t {test} -r {sizes} -n 2 --instances-as {kind}"));
            assert_eq!(run.server.work_usecs, 20);
        }
    }
    // about 300 bytes in 20 us at most; the time of one iteration of the server's loop is measured
    let read = server.adds_up(None, "-t TCP_STREAM -m 1000 -M 300");
    let most = 300.0 * read.seconds / 20e-6 * 2.0;
    assert!(
        (read.server.counted.received_bytes as f64) < most,
        "{:?} in {} s",
        read.server.counted,
        read.seconds
    );
    let paced = server.adds_up(None, "-t UDP_STREAM -m 64 --rate 500");
    // the rate is an upper bound, however busy the machine is
    let most = 500.0 * paced.seconds + 60.0;
    assert!(
        paced.counted.datagrams_sent as f64 <= most,
        "{:?} in {} s",
        paced.counted,
        paced.seconds
    );
}

const STREAMS: [&str; 3] =
    ["-t TCP_STREAM", "-t TCP_STREAM -m 1000 -M 300", "-t UDP_STREAM -m 1400"];

#[test]
fn zero_copy_streams_arrive_and_loopback_copies_them() {
    let server = Server::start(None, "");
    for stream in STREAMS {
        for kind in ["threads", "multiplexed", "processes"] {
            let run =
                server.adds_up(None, &format!("{stream} -n 3 --zero-copy --instances-as {kind}"));
            assert_eq!(
                run.totals.zerocopy_copied, run.totals.zerocopy_sends,
                "{stream}, {kind}: {:?}",
                run.totals
            );
        }
    }
    let paced = server.adds_up(None, "-t UDP_STREAM -m 64 --rate 500 --zero-copy");
    assert!(
        paced.counted.datagrams_sent as f64 <= 500.0 * paced.seconds + 60.0,
        "{:?}",
        paced.counted
    );
    let output = server.try_run(None, "-t TCP_SENDFILE --zero-copy -d 100ms");
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(
        words.contains("zero copy is for TCP_STREAM and UDP_STREAM, not for TCP_SENDFILE"),
        "{words}"
    );
}

/// Starts a server that speaks the control protocol and answers only every second datagram, but
/// twice.
fn lossy_server() -> SocketAddr {
    let (listener, socket) =
        (TcpListener::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let (address, port) = (listener.local_addr().unwrap(), socket.local_addr().unwrap().port());
    std::thread::spawn(move || {
        let mut buffer = [0; 100];
        for n in 0_u64.. {
            let (bytes, from) = socket.recv_from(&mut buffer).unwrap();
            for _ in 0..2 * (n % 2) {
                socket.send_to(&buffer[..bytes], from).unwrap();
            }
        }
    });
    std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        for line in BufReader::new(stream.try_clone().unwrap()).lines() {
            let answer = match line.unwrap() {
                it if it.starts_with("{\"hello") => "{\"welcome\":{\"version\":1}}".to_owned(),
                it if it.starts_with("{\"prepare") => {
                    format!("{{\"ready\":{{\"ports\":[{port}],\"instances_as\":\"threads\"}}}}")
                }
                it if it.starts_with("{\"begin") => "\"begun\"".into(),
                it if it.starts_with("\"end") => "\"ended\"".into(),
                _ => "{\"done\":{}}".into(),
            };
            writeln!(stream, "{answer}").unwrap();
        }
    });
    address
}

#[test]
fn lost_requests_are_counted_and_optionally_sent_again() {
    for kind in ["threads", "multiplexed"] {
        for more in ["", "--resend"] {
            let line = format!(
                "-t UDP_RR --instances-as {kind} --lost-after 20ms -d 1s --warm-up 0s --json {more}"
            );
            let output = netsilo(None, &format!("run {} {line}", lossy_server())).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let run: LoadResult = serde_json::from_slice(&output.stdout).unwrap();
            let totals = run.totals;
            assert_eq!(
                totals.requests,
                totals.responses + totals.lost,
                "{kind} {more}: {totals:?}"
            );
            assert!(totals.responses > 0 && totals.late > 0, "{kind} {more}: {totals:?}");
            // one of two datagrams is answered
            assert!(
                totals.requests + totals.resent >= 2 * totals.responses,
                "{kind} {more}: {totals:?}"
            );
            if more.is_empty() {
                assert!(
                    totals.resent == 0 && totals.lost >= totals.requests / 2,
                    "{kind}: {totals:?}"
                );
            } else {
                assert!(totals.resent > 0, "{kind}: {totals:?}");
            }
        }
    }
}

#[test]
fn thousands_of_instances_use_little_memory() {
    let server = Server::start(None, "");
    for test in ["TCP_RR", "UDP_RR", "TCP_CRR"] {
        let run = server.adds_up(
            None,
            &format!("-t {test} -n 1500 --instances-as multiplexed --lost-after 1s"),
        );
        assert!(run.totals.requests >= 1500, "{:?}", run.totals);
        let (client, served) =
            (run.client.peak_bytes.unwrap(), run.server.side.peak_bytes.unwrap());
        assert!(
            client <= MOST_BYTES && served <= MOST_BYTES,
            "{test}: {client} and {served} bytes"
        );
    }
}

#[test]
fn errors_name_the_obstacle() {
    let error_text = |output: Output| {
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
        String::from_utf8(output.stderr).unwrap()
    };
    let run = |address: &str| {
        error_text(netsilo(None, &format!("run {address} -d 100ms")).output().unwrap())
    };
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = stranger.local_addr().unwrap();
    let taken =
        error_text(netsilo(None, &format!("serve --port {}", address.port())).output().unwrap());
    assert!(taken.contains(&format!("{address} is in use")), "{taken}");
    let answer = std::thread::spawn(move || {
        let mut stream = stranger.accept().unwrap().0;
        let _ = stream.read(&mut [0; 100]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    let other = run(&address.to_string());
    answer.join().unwrap();
    assert!(other.contains(&format!("{address} is not a `netsilo-bench serve` server")), "{other}");
    let absent = run(&address.to_string());
    assert!(
        absent.contains(&format!("no server at {address}"))
            && absent.contains("netsilo-bench serve"),
        "{absent}"
    );
    let server = Server::start(None, "");
    let refused = error_text(server.try_run(None, "-r 0 -d 100ms"));
    assert!(refused.contains("request bytes must be 1 to"), "{refused}");
}

#[test]
fn a_server_survives_any_input() {
    let server = Server::start(None, "--memory 100");
    let says = |words: &[u8]| {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        let _ = stream.write_all(words);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    assert!(
        says(b"{\"hello\":{\"version\":99}}\n").contains("this server speaks version 1, not 99")
    );
    assert!(says(b"GET / HTTP/1.1\r\n\r\n").contains("invalid request"));
    assert!(says(b"\"end\"\n").contains("the first request must be the version"));
    let hello = "{\"hello\":{\"version\":1}}\n";
    assert!(says(format!("{hello}\"stop\"\n").as_bytes()).contains("no load is running"));
    assert!(says(format!("{hello}{hello}").as_bytes()).contains("this request is out of order"));
    says(&[b'x'; 200_000]);
    says(&[0xff; 1000]);
    let spec = Spec::default_for(Test::TcpRr, std::time::Duration::from_secs(1));
    let prepare = |spec: &Spec| format!("{hello}{}\n", serde_json::json!({ "prepare": spec }));
    let huge = Spec { instances: usize::MAX, ..spec.clone() };
    assert!(says(prepare(&huge).as_bytes()).contains("instances must be 1 to 20000"));
    // needs too much memory in each of its roles, so nothing is allocated
    let large = Spec { instances: 20_000, request_bytes: 16 << 20, ..spec.clone() };
    let order = serde_json::json!({ "spec": large, "to": null, "port": 1, "bpf": false });
    let make = format!("{hello}{}\n", serde_json::json!({ "make": order }));
    for (what, needs) in [(prepare(&large), "3770 MiB"), (make, "321895 MiB")] {
        let refused = says(what.as_bytes());
        let left = format!("needs up to {needs} of memory at the server, which has 100 MiB left");
        assert!(refused.contains(&left), "{refused}");
    }
    // requests a load and disconnects
    says(prepare(&spec).as_bytes());
    server.adds_up(None, "");
}

#[test]
fn a_server_prints_one_line_for_many_clients_that_it_refuses_for_the_same_reason() {
    let mut command = netsilo(None, "serve --port 0");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.strip_prefix("listening on ").unwrap().split(',').next().unwrap();
    let start = std::time::Instant::now();
    for _ in 0..300 {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"{\"hello\":{\"version\":99}}\n").unwrap();
        let _ = stream.read_to_string(&mut String::new());
    }
    let seconds = start.elapsed().as_secs() as usize;
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> =
        text.lines().filter(|line| line.contains("speaks version 1, not 99")).collect();
    // the first at once, then one per second, and the rest at the end
    assert!((1..=seconds + 3).contains(&lines.len()), "{seconds} s: {text}");
    let count = |line: &&str| -> usize {
        let others = line.split_once(" and ").map(|(_, rest)| rest.split(' ').next().unwrap());
        1 + others.map_or(0, |others| others.parse::<usize>().unwrap())
    };
    assert_eq!(lines.iter().map(count).sum::<usize>(), 300, "{text}");
}

#[test]
fn each_test_adds_up_over_a_veth() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let cable = netsilo_lab::Cable::new("bench").unwrap();
    let [a, b] = cable.0.each_ref().map(|netns| Some(netns.as_str()));
    let server = Server::start(b, "--bind 192.0.2.2");
    for test in Test::ALL {
        let run = server.adds_up(a, &format!("-t {test} -n 5 --instances-as multiplexed"));
        // packets on the veth were counted at both ends
        let packets =
            |side: &netsilo_trial::traffic::EndMachine| side.rates.netdevs["veth0"]["rx_packets"];
        assert!(packets(&run.server.side) > 0.0, "{test}: {:?}", run.server.side.rates.netdevs);
    }
    // First with room for zero-copy notifications, then with hardly any. On older kernels the
    // sysctl is not per namespace.
    for room in ["131072", "2048"] {
        let set = format!("netns exec {} sysctl -q -w net.core.optmem_max={room}", cable.0[0]);
        let _ = Command::new("ip").args(set.split_whitespace()).stderr(Stdio::null()).status();
        for stream in STREAMS {
            let run =
                server.adds_up(a, &format!("{stream} -n 3 --zero-copy --instances-as multiplexed"));
            eprintln!("{stream}, {room} bytes for notices: {:?}", run.totals);
        }
    }
}

/// Speaks the control protocol as a server, but answers no data.
fn silent_server(listener: &TcpListener) {
    let mut control = BufReader::new(listener.accept().unwrap().0);
    let data = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut connections = Vec::new();
    let mut line = String::new();
    while control.read_line(&mut line).is_ok_and(|length| length > 0) {
        let request: serde_json::Value = serde_json::from_str(&line).unwrap();
        let reply = match request.as_str() {
            Some("end") => r#""ended""#.to_owned(),
            Some(_) => return,
            None if request.get("hello").is_some() => r#"{"welcome":{"version":1}}"#.into(),
            None if request.get("prepare").is_some() => {
                let port = data.local_addr().unwrap().port();
                format!(r#"{{"ready":{{"ports":[{port}],"instances_as":"multiplexed"}}}}"#)
            }
            None => r#""begun""#.into(),
        };
        let accepts = reply.contains("ready");
        writeln!(control.get_mut(), "{reply}").unwrap();
        if accepts {
            connections.push(data.accept().unwrap());
        }
        line.clear();
    }
}

#[test]
fn a_peer_that_accepts_and_is_silent_ends_the_run_with_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = std::thread::spawn(move || silent_server(&listener));
    let run = Command::new(env!("CARGO_BIN_EXE_netsilo-bench"))
        .args(["run", &address, "-t", "TCP_RR", "-n", "1", "-d", "1s"])
        .args(["--warm-up", "0s", "--instances-as", "multiplexed"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (code, text) = output_of(&run);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("the server does not answer"), "{text}");
    server.join().unwrap();
}

/// A stop signal, such as Ctrl-Z, interrupts a read that has a timeout (signal(7)).
#[test]
fn a_client_that_was_stopped_and_continued_goes_on() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let run = format!("run {}", listener.local_addr().unwrap());
    let client = netsilo(None, &run).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (stream, _) = listener.accept().unwrap();
    BufReader::new(&stream).read_line(&mut String::new()).unwrap();
    let is = |wanted: char| {
        let stat = || std::fs::read_to_string(format!("/proc/{}/stat", client.id())).unwrap();
        let state = || stat().rsplit(") ").next().and_then(|rest| rest.chars().next());
        until("the client's state", state, |state| *state == Some(wanted)).unwrap();
    };
    let signal = |signal| kill_process(Pid::from_child(&client), signal).unwrap();
    is('S');
    signal(Signal::STOP);
    is('T');
    signal(Signal::CONT);
    is('S');
    (&stream).write_all(b"{\"refused\":{\"why\":\"it went on\"}}\n").unwrap();
    let (_, text) = output_of(&client.wait_with_output().unwrap());
    assert!(text.contains("it went on"), "{text}");
}
