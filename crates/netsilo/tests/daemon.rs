//! Tests of the daemon as used by a service manager and a scraper: the built binary, on a copy of a
//! fixture in place of the kernel. Its work on real kernels is tested in `lab_run.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy lets only functions marked as tests do so"
)]

mod conforms;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use netsilo_lab::{output_of, until};
use rustix::net::{AddressFamily, Shutdown, shutdown, sockopt};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Resource, Rlimit, Signal, getrlimit, kill_process,
    pidfd_getfd, pidfd_open, prlimit,
};
use serde_json::Value as Json;

/// A host, its daemon's configuration and its state folder.
struct Host {
    dir: tempfile::TempDir,
}

/// A daemon that is killed at the end of its test.
struct Daemon(Child);

impl Host {
    fn new(config: &str) -> Self {
        let host = Self { dir: tempfile::tempdir().unwrap() };
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/virtio-6.1");
        assert!(
            Command::new("cp")
                .arg("-a")
                .arg(fixture)
                .arg(host.path("tree"))
                .status()
                .unwrap()
                .success()
        );
        host.put("tree/proc/sys/kernel/random/boot_id", "6a5b\n");
        host.configure(config);
        host
    }

    fn path(&self, path: &str) -> std::path::PathBuf {
        self.dir.path().join(path)
    }

    fn put(&self, path: &str, text: &str) {
        std::fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        std::fs::write(self.path(path), text).unwrap();
    }

    fn configure(&self, config: &str) {
        self.put(
            "conf/netsilo.toml",
            &format!("interval = \"1s\"\nbpf = false\nwindow = \"always\"\n{config}\n"),
        );
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_netsilo"));
        command
            .arg("run")
            .arg("--config")
            .arg(self.path("conf"))
            .arg("--outcomes-dir")
            .arg(self.path("outcomes"))
            .arg("--root")
            .arg(self.path("tree"));
        command.arg("--state-dir").arg(self.path("state")).stdin(Stdio::null());
        command
    }

    /// Starts a daemon and waits for its first window.
    fn start(&self) -> Daemon {
        let log = std::fs::File::create(self.path("log")).unwrap();
        let daemon = Daemon(self.command().stderr(log).spawn().unwrap());
        self.until("the first window", |status| status["windows"].as_u64() > Some(0));
        daemon
    }

    fn ask(&self, more: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_netsilo"));
        command
            .arg("status")
            .arg("--state-dir")
            .arg(self.path("state"))
            .args(more)
            .output()
            .unwrap()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap()
    }

    /// Waits until `holds` is true for the daemon's status. Fails the test after two minutes.
    fn until(&self, what: &str, holds: impl Fn(&Json) -> bool) -> Json {
        let look = || serde_json::from_slice(&self.ask(&["--json"]).stdout).unwrap_or(Json::Null);
        until(what, look, holds).unwrap_or_else(|error| panic!("{error}\n{}", self.log()))
    }
}

impl Daemon {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Terminates the daemon and returns its exit code.
    fn stop(mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.0.wait().unwrap().code()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_daemon_reports_its_status_and_leaves_nothing_when_it_ends() {
    let host = Host::new("");
    let (code, text) = output_of(&host.ask(&[]));
    assert_eq!(code, Some(3), "{text}");
    assert!(
        text.contains("the daemon is not running") && text.contains("start it with `netsilo run`"),
        "{text}"
    );
    let daemon = host.start();
    let status = host.until("a window", |status| status["windows"].as_u64() > Some(1));
    conforms::conforming("status", status.to_string().as_bytes());
    assert_eq!((&status["schema"], &status["mode"]), (&1.into(), &"placing".into()));
    assert_eq!(status["pid"], daemon.0.id());
    let (code, text) = output_of(&host.ask(&[]));
    assert_eq!(code, Some(0));
    assert!(text.contains("writes knobs and hints"), "{text}");
    assert!(text.contains("a window every 1s"), "{text}");
    assert!(host.path("state/irq").is_dir());
    assert_eq!(daemon.stop(), Some(0));
    let left: Vec<_> =
        std::fs::read_dir(host.path("state")).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name == "irq" || name == "status.sock"), "{left:?}");
}

#[test]
fn the_status_has_the_budget_the_window_and_the_cost() {
    let address = free_address();
    let host = Host::new(&format!("metrics = \"{address}\""));
    host.put("conf/conf.d/10.toml", "window = \"500ms\"\nbudget = \"0.5%\"\n");
    let _daemon = host.start();
    let status = host.until("a window", |status| status["windows"].as_u64() > Some(1));
    let counting = &status["counting"];
    assert_eq!((&counting["budget"], &counting["measured"]), (&0.005.into(), &false.into()));
    // without eBPF there is nothing whose window could be shortened
    assert_eq!(counting["window"], serde_json::json!({ "secs": 0, "nanos": 500_000_000 }));
    assert!(counting["share"].as_f64() > Some(0.0), "{counting}");
    let (_, text) = output_of(&host.ask(&[]));
    assert!(
        text.contains("attached for 500ms of a cycle") && text.contains("budget 0.50%"),
        "{text}"
    );
    let (_, metrics) = get(&address, "/metrics");
    assert!(metrics.contains("\nnetsilo_counting_window_seconds 0.5\n"), "{metrics}");
}

#[test]
fn a_second_daemon_is_refused_with_the_pid_of_the_first() {
    let host = Host::new("");
    let daemon = host.start();
    let (code, text) = output_of(&host.command().output().unwrap());
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains(&format!("netsilo is already running (pid {})", daemon.0.id())),
        "{text}"
    );
    daemon.signal(Signal::KILL);
    drop(daemon);
    assert_eq!(host.start().stop(), Some(0), "a dead daemon's lock and socket are no obstacle");
}

#[test]
fn an_invalid_configuration_is_refused_at_the_start_and_ignored_later() {
    let host = Host::new("metric = \"off\"");
    let (code, text) = output_of(&host.command().output().unwrap());
    assert_eq!(code, Some(78), "{text}");
    assert!(text.contains("netsilo.toml:4: unknown key metric; did you mean metrics?"), "{text}");
    host.configure("");
    let daemon = host.start();
    host.configure("hints-olny = true");
    daemon.signal(Signal::HUP);
    let status = host.until("refused", |status| status["totals"]["bad_reloads"] == 1);
    assert!(
        status["config"]["error"].as_str().unwrap().contains(":4: unknown key hints-olny"),
        "{status}"
    );
    assert_eq!(status["mode"], "placing");
    let kept = "configuration not reloaded, so the old one stays";
    assert!(host.log().contains(kept), "{}", host.log());
    host.configure("hints-only = true");
    daemon.signal(Signal::HUP);
    let status = host.until("taken", |status| status["totals"]["reloads"] == 1);
    assert_eq!((&status["config"]["error"], &status["mode"]), (&Json::Null, &"hints_only".into()));
    host.configure("hints = false");
    daemon.signal(Signal::HUP);
    host.until("taken", |status| status["totals"]["reloads"] == 2);
    assert!(!host.path("state/irq").exists());
}

/// A host with a journal. Its only transaction has moved an interrupt from CPU 0 to CPU 4.
fn moved(confirm_by: &Json) -> Host {
    let host = Host::new("");
    host.put("tree/proc/irq/90/smp_affinity", "10\n");
    host.put("tree/sys/kernel/irq/90/actions", "eth9-0\n");
    let target = serde_json::json!({
        "knob": "irq_affinity", "irq": 90, "action": "eth9-0", "netdev": null,
    });
    let entry = serde_json::json!({
        "target": target, "old": { "cpus": "0" }, "old_raw": "01\n", "new": { "cpus": "4" },
        "settles_as": { "cpus": "4" }, "reason": "",
    });
    let boot = serde_json::json!({ "record": "boot", "version": 1, "boot_id": "6a5b" });
    let begin = serde_json::json!({
        "record": "begin", "transaction": 1, "pid": 7, "origin": "daemon",
        "confirm_by": confirm_by, "entries": [entry],
    });
    host.put("state/journal", &format!("{boot}\n{begin}\n"));
    host
}

fn affinity(host: &Host) -> String {
    std::fs::read_to_string(host.path("tree/proc/irq/90/smp_affinity")).unwrap()
}

#[test]
fn a_transaction_whose_guard_was_killed_is_restored_after_its_deadline() {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime).tv_sec;
    let host = moved(&serde_json::json!({ "secs": now, "nanos": 0 }));
    let daemon = host.start();
    assert_eq!(affinity(&host), "10\n", "the guard has some seconds more");
    host.until("it is restored", |_| affinity(&host) == "01\n");
    let words = "transaction 1 was neither confirmed nor undone by its guard; netsilo undid it";
    host.until("it is told", |_| host.log().contains(words));
    assert_eq!(daemon.stop(), Some(0));
}

#[test]
fn a_transaction_that_a_dead_daemon_left_unfinished_is_restored_at_the_start() {
    let host = moved(&Json::Null);
    let daemon = host.start();
    assert_eq!(affinity(&host), "01\n");
    assert!(
        host.log().contains("transaction 1 was left unfinished; netsilo undid it"),
        "{}",
        host.log()
    );
    assert_eq!(daemon.stop(), Some(0));
}

/// Sends a GET request. Returns head and body of the response.
fn get(address: &str, path: &str) -> (String, String) {
    scrape(address, &format!("GET {path} HTTP/1.0\r\n\r\n")).unwrap()
}

/// Sends a request as a scraper does. Returns head and body of the response.
fn scrape(address: &str, request: &str) -> Result<(String, String), String> {
    let exchange = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(request.as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    let text = exchange().map_err(|error| error.to_string())?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(|| format!("answer: {text}"))?;
    Ok((head.to_owned(), body.to_owned()))
}

/// As Prometheus asks.
const SCRAPE: &str = "GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: text/plain\r\n\r\n";

fn assert_scraped(address: &str, beside: &str) {
    let scraped = scrape(address, SCRAPE);
    let (head, body) = scraped.unwrap_or_else(|error| panic!("beside {beside}: {error}"));
    assert!(head.starts_with("HTTP/1.1 200"), "beside {beside}: {head}");
    assert!(body.contains("process_cpu_seconds_total "), "beside {beside}: {body}");
}

/// Returns an address that was free a moment ago.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn promtool_accepts_the_metrics_and_they_count() {
    let address = free_address();
    let host = Host::new(&format!("metrics = \"{address}\""));
    let daemon = host.start();
    host.until("some windows", |status| status["windows"].as_u64() > Some(2));
    let (head, metrics) = get(&address, "/metrics");
    assert!(
        head.starts_with("HTTP/1.0 200")
            && head.contains("Content-Type: text/plain; version=0.0.4"),
        "{head}"
    );
    let value = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse::<f64>().unwrap()
    };
    assert!(value("netsilo_windows_total") >= 2.0 && value("process_cpu_seconds_total") > 0.0);
    assert!(value("process_resident_memory_bytes") > 1e6);
    assert_eq!(
        (value("netsilo_placing"), value("netsilo_read_bytes_total{distance=\"llc\"}")),
        (1.0, 0.0)
    );
    assert_eq!(value("netsilo_outcome_followed"), 0.0);
    assert!(get(&address, "/").0.starts_with("HTTP/1.0 404"));
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let mut promtool = Command::new(netsilo_lab::promtool().unwrap());
    promtool
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut promtool = promtool.spawn().unwrap();
    promtool.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
    assert_eq!(output_of(&promtool.wait_with_output().unwrap()), (Some(0), String::new()));
    host.configure("metrics = \"off\"");
    daemon.signal(Signal::HUP);
    host.until("taken", |status| status["totals"]["reloads"] == 1);
    until("the port is closed", || TcpStream::connect(&address).is_ok(), |open| !open).unwrap();
}

#[test]
fn hostile_readers_of_the_metrics_delay_no_scrape_and_cost_no_memory() {
    let address = free_address();
    let host = Host::new(&format!("metrics = \"{address}\""));
    // As a service starts by default.
    let mut command = host.command();
    command.stderr(std::fs::File::create(host.path("log")).unwrap());
    let daemon = Daemon(command.spawn().unwrap());
    limit_descriptors(Some(&daemon), 1024);
    host.until("the first window", |status| status["windows"].as_u64() > Some(0));
    let open = |sent: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        // The server may have closed it already.
        let _ = stream.write_all(sent.as_bytes());
        stream
    };

    let announced = "POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999\r\n\r\nab";
    let (head, _) = scrape(&address, announced).unwrap();
    assert!(head.starts_with("HTTP/1.1 405"), "{head}");
    let _body = open("GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\nab");
    assert_scraped(&address, "a short body");
    let _pipelining = open(&SCRAPE.repeat(1000));
    assert_scraped(&address, "requests whose answers nobody reads");
    let _long = open(&format!("GET /metrics HTTP/1.1\r\nA: {}", "a".repeat(1 << 20)));
    assert_scraped(&address, "a header without end");

    limit_descriptors(None, 6000);
    let mut half_open = Vec::new();
    for i in 0..5000 {
        half_open.push(open(if i % 2 == 0 { "" } else { "GET /metrics HTTP/1.1\r\nHo" }));
        if i % 100 == 99 {
            assert_scraped(&address, &format!("{i} requests that never end"));
        }
    }
    let mut slow = half_open.pop().unwrap();
    slow.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(slow.read(&mut [0; 1]).unwrap_or_default(), 0, "the header's deadline is over");
    assert_scraped(&address, "the deadline of others");

    let status = host.until("a window after it", |status| status["windows"].as_u64() > Some(2));
    assert!(!status["notes"].to_string().contains("metrics"), "{}", status["notes"]);
    let resident = status["own"]["resident_bytes"].as_u64().unwrap();
    assert!(resident < 64 << 20, "{resident} bytes");
}

#[test]
fn a_listener_without_descriptors_says_so_and_goes_on() {
    let address = free_address();
    let host = Host::new(&format!("metrics = \"{address}\""));
    let daemon = host.start();
    let fds = format!("/proc/{}/fd", daemon.0.id());
    let used = std::fs::read_dir(&fds).unwrap().count();
    let before = limit_descriptors(Some(&daemon), used as u64 / 2);
    let waiting = TcpStream::connect(&address).unwrap();
    let reported = |log: &String| log.contains(&format!("cannot serve metrics at {address}: "));
    until("it reports what is missing", || host.log(), reported).unwrap();
    limit_descriptors(Some(&daemon), before);
    drop(waiting);
    assert_scraped(&address, "a lack of descriptors that has ended");
    let status = host.until("an answer", |status| status["windows"].as_u64() > Some(0));
    let note =
        |note: &Json| note.as_str().is_some_and(|note| note.contains("cannot serve metrics"));
    assert!(status["notes"].as_array().unwrap().iter().any(note), "{}", status["notes"]);
}

#[test]
fn a_listener_that_ended_is_started_again_and_log_and_status_say_so() {
    let address = free_address();
    let host = Host::new(&format!("metrics = \"{address}\""));
    let daemon = host.start();
    assert_eq!(end_tcp_listeners(&daemon), 1);
    let notes = |status: &Json| status["notes"].to_string();
    let ended = format!("the server of metrics at {address} ended: starting it again");
    let status = host.until("it to be started again", |status| notes(status).contains(&ended));
    let why = format!("cannot serve metrics at {address}: Invalid argument");
    for text in [notes(&status), host.log()] {
        assert!(text.contains(&ended) && text.contains(&why), "{text}");
    }
    assert_scraped(&address, "a listener that ended");
    assert_eq!(daemon.stop(), Some(0));
}

/// Ends all TCP sockets on which a daemon listens, as `ss --kill` does. Returns how many there
/// were.
fn end_tcp_listeners(daemon: &Daemon) -> usize {
    let pid = Pid::from_child(&daemon.0);
    let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    let fds = std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).unwrap();
    let numbers = fds.map(|fd| fd.unwrap().file_name().to_str().unwrap().parse().unwrap());
    let listens = |number: i32| {
        let socket = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok()?;
        let is_tcp = sockopt::socket_domain(&socket).is_ok_and(|it| it == AddressFamily::INET);
        let listens = is_tcp && sockopt::socket_acceptconn(&socket).unwrap_or(false);
        listens.then(|| shutdown(&socket, Shutdown::Read).unwrap())
    };
    numbers.filter_map(listens).count()
}

/// Sets the soft limit of open files of the daemon, or of this process if there is no daemon.
/// Returns the previous limit.
fn limit_descriptors(daemon: Option<&Daemon>, most: u64) -> u64 {
    let pid = daemon.map(|daemon| Pid::from_child(&daemon.0));
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let new = Rlimit { current: Some(most), maximum };
    prlimit(pid, Resource::Nofile, new).unwrap().current.unwrap()
}

#[test]
fn a_reload_whose_port_is_taken_keeps_the_old_one_and_fails() {
    let address = free_address();
    let host = Host::new(&format!("metrics = \"{address}\""));
    let daemon = host.start();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = taken.local_addr().unwrap();
    host.configure(&format!("metrics = \"{other}\"\nhints-only = true"));
    daemon.signal(Signal::HUP);
    let status = host.until("refused", |status| status["totals"]["bad_reloads"] == 1);
    let error = status["config"]["error"].as_str().unwrap();
    assert!(error.contains(&format!("cannot serve metrics at {other}")), "{error}");
    assert_eq!((&status["totals"]["reloads"], &status["mode"]), (&0.into(), &"placing".into()));
    let (_, metrics) = get(&address, "/metrics");
    assert!(metrics.contains("netsilo_config_reload_success 0"), "{metrics}");
    drop(taken);
    daemon.signal(Signal::HUP);
    host.until("accepted", |status| status["totals"]["reloads"] == 1);
    assert_scraped(&other.to_string(), "nothing");
    assert!(TcpStream::connect(&address).is_err(), "the old port is closed");
}

#[test]
fn a_reload_moves_the_metrics_to_another_address_of_the_same_port() {
    let address = free_address();
    let port = address.rsplit_once(':').unwrap().1.to_owned();
    let all = format!("0.0.0.0:{port}");
    let host = Host::new(&format!("metrics = \"{address}\""));
    let daemon = host.start();
    for (reloads, (from, to)) in (1..).zip([(&address, &all), (&all, &address)]) {
        host.configure(&format!("metrics = \"{to}\""));
        daemon.signal(Signal::HUP);
        host.until(&format!("{from} to {to}"), |status| status["totals"]["reloads"] == reloads);
        assert_scraped(&address, "nothing");
    }
    // Another program has the port at another address, so the old listener is back.
    let taken = TcpListener::bind(format!("127.0.0.2:{port}")).unwrap();
    host.configure(&format!("metrics = \"{all}\""));
    daemon.signal(Signal::HUP);
    let status = host.until("refused", |status| status["totals"]["bad_reloads"] == 1);
    let error = status["config"]["error"].as_str().unwrap();
    assert!(error.contains(&format!("cannot serve metrics at {all}")), "{error}");
    assert_scraped(&address, "a refused reload");
    drop(taken);
}

#[test]
fn a_setting_that_is_read_rarely_is_the_daemons_after_it_wrote_it() {
    let host = Host::new("[goal]\ndefault-smp-affinity = \"1\"\nrps = \"0-1\"");
    let _daemon = host.start();
    let windows = |status: &Json| status["windows"].as_u64().unwrap_or(0);
    let changes = |status: &Json| status["totals"]["changes"].as_u64();
    let written = host.until("something is written", |status| changes(status) > Some(1));
    let later = windows(&written) + 2;
    let status = host.until("two more windows", |status| windows(status) >= later);
    assert_eq!(status["conflicts"], Json::Array(Vec::new()), "{}", host.log());
    assert_eq!(status["pending"], Json::Array(Vec::new()), "{}", host.log());
    let mask = std::fs::read_to_string(host.path("tree/proc/irq/default_smp_affinity")).unwrap();
    assert_eq!(u64::from_str_radix(mask.trim(), 16), Ok(2), "{}", host.log());
}

#[test]
fn systemd_is_notified_of_ready_watchdog_and_stopping() {
    let host = Host::new("");
    let socket = UnixDatagram::bind(host.path("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let mut command = host.command();
    command
        .env("NOTIFY_SOCKET", host.path("notify"))
        .env("WATCHDOG_USEC", "300000")
        .stderr(Stdio::null());
    let daemon = Daemon(command.spawn().unwrap());
    let until = |wanted: &str| {
        let mut buffer = [0; 512];
        loop {
            let length = socket.recv(&mut buffer).unwrap_or_else(|e| panic!("no {wanted}: {e}"));
            if String::from_utf8_lossy(&buffer[..length]).lines().any(|line| line == wanted) {
                return;
            }
        }
    };
    until("READY=1");
    for _ in 0..3 {
        until("WATCHDOG=1");
    }
    assert_eq!(daemon.stop(), Some(0));
    until("STOPPING=1");
}

#[test]
fn without_permission_to_write_it_only_observes() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("NETSILO_NO_SKIP").is_none(), "becoming nobody needs root");
        let _ = writeln!(std::io::stderr(), "SKIPPED: becoming nobody needs root");
        return;
    }
    let host = Host::new("");
    // As user nobody, with a program that nobody may run and a state folder that nobody may create.
    let open = |path: &Path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap()
    };
    open(host.dir.path());
    let program = host.path("netsilo");
    std::fs::copy(env!("CARGO_BIN_EXE_netsilo"), &program).unwrap();
    let as_nobody = |state: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program).arg("run");
        command.arg("--config").arg(host.path("conf")).arg("--root").arg(host.path("tree"));
        command
            .arg("--state-dir")
            .arg(host.path(state))
            .stderr(std::fs::File::create(host.path("log")).unwrap());
        Daemon(command.spawn().unwrap())
    };
    let daemon = as_nobody("not-allowed/state");
    let reported = |log: &String| log.contains("no journal, hints and status: cannot make");
    until("it reports what is missing", || host.log(), reported).unwrap();
    assert_eq!(daemon.stop(), Some(0));
}

#[test]
fn systemds_journal_receives_each_decision_with_fields_and_a_terminal_lines() {
    let host = Host::new("[goal]\ndefault-smp-affinity = \"1\"");
    let socket = UnixDatagram::bind(host.path("journald")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let log = std::fs::File::create(host.path("log")).unwrap();
    let stderr = rustix::fs::fstat(&log).unwrap();
    let mut command = host.command();
    command.arg("--journald-socket").arg(host.path("journald")).stderr(log);
    command.env("JOURNAL_STREAM", format!("{}:{}", stderr.st_dev, stderr.st_ino));
    let daemon = Daemon(command.spawn().unwrap());
    let mut entry = [0; 4096];
    let length = socket.recv(&mut entry).unwrap();
    let entry = std::str::from_utf8(&entry[..length]).unwrap().to_owned();
    assert!(entry.contains("\nNETSILO_DECISION=write\n"), "{entry}");
    assert!(entry.contains("\nNETSILO_KNOB=default_smp_affinity\n"), "{entry}");
    assert!(!host.log().contains("default_smp_affinity"), "{}", host.log());
    drop(daemon);

    let host = Host::new("[goal]\ndefault-smp-affinity = \"1\"");
    let _daemon = host.start();
    host.until("a write", |status| status["totals"]["changes"].as_u64() > Some(0));
    assert!(host.log().contains("default_smp_affinity: write: "), "{}", host.log());
}
