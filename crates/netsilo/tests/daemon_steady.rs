//! The daemon under a steady real load, at the speed of this machine's own kernel. It settles, and
//! then writes nothing.
//!
//! Veths between two network namespaces stand in for NICs: the kthread of each veth polls its
//! packets, and can be placed like an interrupt. The daemon's cost with its default interval is
//! limited.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "clippy lets only functions marked as tests do so"
)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use netsilo_lab::until;
use serde_json::Value as Json;

const NETSILO: &str = env!("CARGO_BIN_EXE_netsilo");

/// Number of counted windows, one second each.
const WINDOWS: u64 = 70;

/// Number of windows of the default interval in which the daemon's cost is measured, after the
/// windows in which it starts.
const LONG_WINDOWS: u64 = 7;
const STARTS: u64 = 2;

/// Maximum share of the machine's CPU time that the daemon may use with its default interval.
const BUDGET: f64 = 0.003;

/// Number of windows in which the daemon may settle: two that want a change, six that verify it,
/// and the same again for changes that it reverts.
const SETTLES: u64 = 20;

/// Datagrams per second on each veth.
const RATES: [u32; 4] = [8000, 4000, 2000, 1000];

/// Two network namespaces and the programs in them. All end when this is dropped.
struct Site {
    client: String,
    server: String,
    dir: tempfile::TempDir,
    programs: Vec<Child>,
}

impl Site {
    fn new() -> Self {
        let id = std::process::id();
        let site = Self {
            client: format!("netsilo-steady-client-{id}"),
            server: format!("netsilo-steady-server-{id}"),
            dir: tempfile::tempdir().unwrap(),
            programs: Vec::new(),
        };
        let Self { client, server, .. } = &site;
        sh(&format!("ip netns add {client} && ip netns add {server}"));
        for at in 0..RATES.len() {
            // If the sender segments, its packets need no merging by GRO.
            sh(&format!(
                "ip -n {client} link add wire{at} type veth peer name nv{at} netns {server} &&
                 ip -n {client} addr add 10.79.{at}.1/24 dev wire{at} &&
                 ip -n {client} link set wire{at} up &&
                 ip -n {server} addr add 10.79.{at}.2/24 dev nv{at} &&
                 ip -n {server} link set nv{at} up &&
                 ip netns exec {client} ethtool -K wire{at} tso off gso off &&
                 ip netns exec {server} ethtool -K nv{at} gro on &&
                 ip netns exec {server} sh -c 'echo 1 >/sys/class/net/nv{at}/threaded'"
            ));
        }
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts netsilo in a namespace.
    fn start(&mut self, namespace: &str, program: &str, arguments: &str, log: &Path) {
        let log = std::fs::File::create(log).unwrap();
        let child = Command::new("ip")
            .args(["netns", "exec", namespace, program])
            .args(arguments.split_whitespace())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.programs.push(child.unwrap());
    }

    /// Starts a server, and clients that send at a steady rate.
    fn start_load(&mut self) {
        let (client, server, log) = (self.client.clone(), self.server.clone(), self.path("load"));
        let bench = netsilo_lab::bench_of(NETSILO);
        self.start(&server, &bench, "serve --bind 0.0.0.0 --workers 2 --only-answer", &log);
        // The client checks only once whether a server is there.
        let listens = || sh(&format!("ip netns exec {server} ss -Hltn sport = :12870"));
        until("the server listens", listens, |ports| !ports.is_empty()).unwrap();
        for (at, rate) in RATES.iter().enumerate() {
            let load = format!(
                "run 10.79.{at}.2 --test UDP_STREAM --send-bytes 200 --rate {rate} \
                 --instances 2 --duration 1h"
            );
            self.start(&client, &bench, &load, &self.path(&format!("client-{at}")));
        }
    }

    /// Starts the daemon with this configuration.
    fn start_daemon(&mut self, text: &str) {
        let (server, config, log) = (self.server.clone(), self.path("conf"), self.path("log"));
        std::fs::create_dir_all(&config).unwrap();
        std::fs::write(config.join("netsilo.toml"), text).unwrap();
        let (config, state) = (config.display(), self.path("state"));
        let run = format!("run --config {config} --state-dir {}", state.display());
        self.start(&server, NETSILO, &run, &log);
    }

    /// Ends the daemon. Its placement stays.
    fn stop_daemon(&mut self) {
        let mut daemon = self.programs.pop().unwrap();
        sh(&format!("kill -TERM {}", daemon.id()));
        assert!(daemon.wait().unwrap().success(), "{}", self.log());
    }

    fn has_load(&self, status: &Json) {
        let bytes_per_s = status["locality"]["bytes_per_s"].as_f64().unwrap();
        assert!(bytes_per_s > 500_000.0, "the load is still there: {bytes_per_s}\n{}", self.log());
    }

    fn status(&self) -> Json {
        let mut status = Command::new(NETSILO);
        status.args(["status", "--json", "--state-dir"]).arg(self.path("state"));
        serde_json::from_slice(&status.output().unwrap().stdout).unwrap_or(Json::Null)
    }

    /// Waits until `holds` is true for the daemon's status. Fails the test after two minutes.
    fn until(&self, what: &str, holds: impl Fn(&Json) -> bool) -> Json {
        let look = || {
            // Each check starts a process, which is itself a load.
            std::thread::sleep(Duration::from_millis(500));
            self.status()
        };
        until(what, look, holds).unwrap_or_else(|error| panic!("{error}\n{}", self.log()))
    }

    /// What the daemon logged.
    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for child in &mut self.programs {
            let _ = child.kill();
            let _ = child.wait();
        }
        let (client, server) = (&self.client, &self.server);
        let _ = Command::new("sh")
            .args(["-c", &format!("ip netns del {client}; ip netns del {server}")])
            .status();
    }
}

fn sh(command: &str) -> String {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn number(status: &Json, path: &str) -> u64 {
    status.pointer(path).and_then(Json::as_u64).unwrap_or_default()
}

fn writes(status: &Json) -> u64 {
    number(status, "/totals/changes")
}

fn seconds(status: &Json, path: &str) -> f64 {
    let part = |name: &str| number(status, &format!("{path}/{name}")) as f64;
    part("secs") + part("nanos") / 1e9
}

#[test]
#[ignore = "three minutes of traffic: make test-long"]
fn under_a_steady_load_nothing_is_written_in_70_windows() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let mut site = Site::new();
    site.start_load();
    site.start_daemon("interval = \"1s\"\n");
    let begun = site.until("the load is seen and placed", |status| {
        number(status, "/windows") >= SETTLES && status["state"] == "settled"
    });
    assert_eq!(begun["mode"], "placing", "{begun:#}");
    assert_eq!(begun["attribution"]["source"], "bpf", "{begun:#}");
    let placed = begun["placements"].as_array().unwrap().len();
    assert_eq!(placed, RATES.len(), "each kthread has a placement: {begun:#}");
    assert!(writes(&begun) > 0, "it had something to write: {begun:#}\n{}", site.log());
    let last = number(&begun, "/windows") + WINDOWS;
    let ended = site.until("70 windows", |status| number(status, "/windows") >= last);
    let later = writes(&ended) - writes(&begun);
    assert_eq!(later, 0, "nothing is written: {ended:#}\n{}", site.log());
    assert_eq!(ended["conflicts"], Json::Array(Vec::new()));
    site.has_load(&ended);
    println!("{} writes until it settled, none in {WINDOWS} windows of 1s", writes(&begun));
    cost(&begun, &ended);
    site.stop_daemon();
    // A budget would shorten its windows.
    site.start_daemon("budget = \"off\"\n");
    // At first the status of the previous daemon is still there.
    let begun = site.until("the next daemon has begun", |status| {
        status["config"]["interval"]["secs"] == 10 && number(status, "/windows") >= STARTS
    });
    let last = number(&begun, "/windows") + LONG_WINDOWS;
    let ended = site.until("more windows", |status| number(status, "/windows") >= last);
    assert_eq!(writes(&ended), 0, "what was placed stays: {ended:#}\n{}", site.log());
    site.has_load(&ended);
    let share = cost(&begun, &ended);
    assert!(share <= BUDGET, "{share} of all CPU time: {ended:#}");
}

/// What the daemon used between two states, as a share of the machine's CPU time.
fn cost(begun: &Json, ended: &Json) -> f64 {
    let cpus = std::thread::available_parallelism().unwrap().get() as f64;
    let took = |path| seconds(ended, path) - seconds(begun, path);
    let all = took("/at") * cpus;
    let (own, programs) = (took("/own/cpu"), took("/counting/programs"));
    println!(
        "{} windows: own share {:.3}% of {cpus} cpus: daemon {:.3}%, eBPF programs {:.3}% ({})",
        number(ended, "/windows") - number(begun, "/windows"),
        100.0 * (own + programs) / all,
        100.0 * own / all,
        100.0 * programs / all,
        if ended["counting"]["measured"] == true { "measured" } else { "estimated" },
    );
    (own + programs) / all
}
