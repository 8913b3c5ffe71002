//! Network namespaces on the running kernel: what is lost in others, writing there, and what
//! commands that only read leave and take in one of their own.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests too")]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use netsilo_decide::judge::findings::{Finding, FindingId, check};
use netsilo_decide::plan::Plan;
use netsilo_model::cost::weights::Costs;
use netsilo_model::derive::analysis::Analysis;
use netsilo_model::drivers::loss_stage::LossStage;
use netsilo_model::parse::pid_status;
use netsilo_model::snapshot::attribution::Attribution;
use netsilo_model::snapshot::net_thread::NetThreadKind;
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::files::root::Root;
use netsilo_sys::read::snapshot::snapshot;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, listen, socket_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

/// Packets that are sent to the full buffer.
const SENT: u64 = 500;
/// Connections to the listener, whose queue takes two.
const CLIENTS: usize = 12;

/// A network namespace, which ends with this value.
struct Namespace(String);

impl Namespace {
    fn new(name: &str) -> Self {
        let name = format!("{name}-{}", std::process::id());
        let namespace = Self(name);
        ip(&["netns", "add", &namespace.0]);
        ip(&["-n", &namespace.0, "link", "set", "lo", "up"]);
        namespace
    }

    fn inode(&self) -> u32 {
        let file = std::fs::metadata(format!("/run/netns/{}", self.0)).unwrap();
        file.ino().try_into().unwrap()
    }

    /// Runs in a thread of this namespace.
    fn within<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        let file = File::open(format!("/run/netns/{}", self.0)).unwrap();
        let enter =
            || move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        let run = || {
            enter();
            run()
        };
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    /// A counter, as `nstat` shows it there.
    fn counter(&self, name: &str) -> u64 {
        let mut nstat = Command::new("ip");
        nstat.args(["netns", "exec", &self.0, "nstat", "-asz", name]);
        let text = String::from_utf8(nstat.output().unwrap().stdout).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().split_whitespace().next().unwrap().parse().unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn ip(words: &[&str]) {
    assert!(Command::new("ip").args(words).status().unwrap().success(), "ip {words:?}");
}

/// netsilo, with the journal in this folder; its exit code and output.
fn writing(words: &[&str], state: &Path) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netsilo"));
    let output = command.args(words).arg("--state-dir").arg(state).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout) + &text(output.stderr))
}

/// A veth whose RPS can be set, with the same name and interface index in each namespace.
fn veth(namespace: &Namespace) {
    let words = "link add va index 77 type veth peer name vb index 78";
    let words: Vec<&str> = words.split(' ').collect();
    ip(&[&["-n", &namespace.0], words.as_slice()].concat());
    ip(&["-n", &namespace.0, "link", "set", "va", "up"]);
}

fn rps(namespace: &Namespace) -> String {
    let file = "/sys/class/net/va/queues/rx-0/rps_cpus";
    let cat = Command::new("ip").args(["netns", "exec", &namespace.0, "cat", file]).output();
    String::from_utf8(cat.unwrap().stdout).unwrap().trim().to_owned()
}

const SET_RPS: [&str; 9] = ["apply", "--rps", "0", "-n", "va", "-y", "--no-bpf", "-i", "100ms"];

#[test]
fn undo_restores_each_namespace_where_it_was_written() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let [blue, green] = ["netsilo-west", "netsilo-east"].map(Namespace::new);
    for namespace in [&blue, &green] {
        veth(namespace);
        let (code, text) =
            writing(&[&["--netns", &namespace.0], &SET_RPS[..]].concat(), state.path());
        assert_eq!(code, Some(0), "{text}");
        assert_eq!(rps(namespace), "1");
    }
    let (_, list) = writing(&["undo", "--list"], state.path());
    for namespace in [&blue, &green] {
        assert!(list.contains(&format!(", in netns {}", namespace.0)), "{list}");
    }
    assert!(list.ends_with("undo would restore 2 settings\n"), "{list}");
    // from a third namespace, the newest only
    let (code, text) = writing(&["undo", "--last"], state.path());
    assert_eq!(code, Some(0), "{text}");
    assert_eq!([rps(&blue), rps(&green)], ["1", "0"]);
    // from one in which an equal netdev is
    ip(&["netns", "exec", &green.0, "sh", "-c", "echo 1 >/sys/class/net/va/queues/rx-0/rps_cpus"]);
    let (code, text) = writing(&["--netns", &green.0, "undo"], state.path());
    assert_eq!(code, Some(0), "{text}");
    assert_eq!([rps(&blue), rps(&green)], ["0", "1"]);
}

#[test]
fn undo_says_that_a_namespace_has_ended_and_a_guard_restores_in_it() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let blue = Namespace::new("netsilo-brief");
    veth(&blue);
    let within = ["--netns", &blue.0, "--confirm-within", "5s"];
    let (code, text) = writing(&[&SET_RPS[..], &within].concat(), state.path());
    assert_eq!((code, rps(&blue).as_str()), (Some(0), "1"), "{text}");
    let list = || writing(&["undo", "--list"], state.path()).1;
    let deadline = Instant::now() + Duration::from_secs(60);
    while !list().contains("undone by its guard") {
        assert!(Instant::now() < deadline, "{}", list());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(rps(&blue), "0");
    let (code, text) = writing(&[&["--netns", &blue.0], &SET_RPS[..]].concat(), state.path());
    assert_eq!(code, Some(0), "{text}");
    drop(blue);
    let (code, text) = writing(&["undo", "-v"], state.path());
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("rps_cpus: no process and no file holds its network namespace"),
        "{text}"
    );
}

#[test]
fn a_namespace_that_is_not_there_is_an_error_that_names_those_that_are() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let blue = Namespace::new("netsilo-near");
    let (code, text) = writing(&["--netns", "nea", "undo"], state.path());
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains(&blue.0), "{text}");
    let (code, _) = netsilo(&["--netns", &blue.0, "plan", "--from", "x"]);
    assert_eq!(code, Some(2));
}

/// A UDP socket with a small buffer.
fn reader() -> UdpSocket {
    let reader = UdpSocket::bind("127.0.0.1:0").unwrap();
    set_socket_recv_buffer_size(&reader, 4096).unwrap();
    reader
}

fn flood(to: SocketAddr) {
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    (0..SENT).for_each(|_| assert_eq!(sender.send_to(&[0; 64], to).unwrap(), 64));
}

/// Clients that nobody accepts.
fn clients(to: SocketAddr) -> Vec<OwnedFd> {
    let client = |_| {
        let (family, flags) = (AddressFamily::INET, SocketFlags::NONBLOCK);
        let client = socket_with(family, SocketType::STREAM, flags, None).unwrap();
        // in progress
        let _ = connect(&client, &to);
        client
    };
    (0..CLIENTS).map(client).collect()
}

#[test]
fn what_is_lost_in_another_namespace_is_counted_there_and_named_with_its_process() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let blue = Namespace::new("netsilo-blue");
    let (reader, listener) = blue.within(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listen(&listener, 1).unwrap();
        (reader(), listener)
    });
    let root = Root::live();
    let before = snapshot(&root).unwrap();
    blue.within(|| {
        flood(reader.local_addr().unwrap());
        drop(clients(listener.local_addr().unwrap()));
    });
    let after = snapshot(&root).unwrap();
    reader.set_nonblocking(true).unwrap();
    let waiting = (0..).find(|_| reader.recv(&mut [0; 64]).is_err()).unwrap();
    let [lost, rejected] =
        ["UdpRcvbufErrors", "TcpExtListenDrops"].map(|counter| blue.counter(counter));
    assert_eq!(lost, SENT - waiting);
    assert!(rejected > 0);

    let observation = Observation { before, after, attribution: Attribution::default() };
    let costs = Costs::default();
    let check = check(&Analysis::new(&observation, &costs));
    let inode = Some(blue.inode());
    let counted = |stage| check.ledger.stage(stage).unwrap().by_counters(inode);
    assert_eq!([LossStage::Socket, LossStage::Listen].map(counted), [lost, rejected]);
    let line = check.ledger.namespaces.iter().flatten().find(|it| Some(it.inode) == inode).unwrap();
    assert_eq!((line.name.as_str(), line.lost), (blue.0.as_str(), lost + rejected));
    assert!(check.findings.iter().all(|finding| finding.id != FindingId::NothingLost));

    let port = |address: SocketAddr| address.port();
    let subjects = [
        (FindingId::SocketBufferOverflow, "udp", port(reader.local_addr().unwrap()), lost),
        (FindingId::ListenOverflow, "tcp", port(listener.local_addr().unwrap()), rejected),
    ];
    for (id, protocol, port, lost) in subjects {
        let subject = format!("{protocol} port {port} in netns {}", blue.0);
        let is_it = |it: &&Finding| it.id == id && it.subject.to_string() == subject;
        let finding = check.findings.iter().find(is_it).unwrap_or_else(|| panic!("{subject}"));
        let holder = format!("(pid {})", std::process::id());
        assert!(finding.title.contains(&holder), "{}", finding.title);
        assert!(finding.title.contains(&format!(": {lost} ")), "{}", finding.title);
        assert!(finding.remedies.iter().all(|remedy| remedy.changes.is_empty()), "not written");
        let place = format!("inode {}, /run/netns/{}", blue.inode(), blue.0);
        let evidence = serde_json::to_string(&finding.evidence).unwrap();
        assert!(evidence.contains(&place), "{evidence}");
    }
}

fn netsilo(words: &[&str]) -> (Option<i32>, Vec<u8>) {
    let mut netsilo = Command::new(env!("CARGO_BIN_EXE_netsilo"));
    let output = netsilo.args(words).output().unwrap();
    (output.status.code(), output.stdout)
}

fn others(check: &Value) -> &Value {
    let rows = check["ledger"]["coverage"].as_array().unwrap();
    rows.iter().find(|it| it["stage"] == "other-namespaces").unwrap()
}

#[test]
fn a_bundle_has_the_namespaces_and_an_old_one_says_that_it_does_not() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let blue = Namespace::new("netsilo-saved");
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("host.tar.zst");
    let bundle = bundle.to_str().unwrap();
    assert_eq!(netsilo(&["capture", "--interval", "100ms", "-o", bundle]).0, Some(0));
    let check: Value =
        serde_json::from_slice(&netsilo(&["check", "--json", "--from", bundle]).1).unwrap();
    let namespaces = check["ledger"]["namespaces"].as_array().unwrap();
    let saved = namespaces.iter().find(|it| it["inode"] == blue.inode()).unwrap();
    assert_eq!(
        (&saved["name"], &saved["not_counted"]),
        (&Value::from(blue.0.clone()), &Value::Null)
    );

    let old = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/igb-6.12.tar.zst");
    let check: Value =
        serde_json::from_slice(&netsilo(&["check", "--json", "--from", old]).1).unwrap();
    assert_eq!(others(&check)["not_counted"], "N/A: not recorded");
    assert!(check["ledger"].get("namespaces").is_none(), "never an empty list");
}

/// All that a setting of netsilo could be: interrupts, sysctls, files of netdevs and queues, and
/// what drivers are asked for.
const SETTINGS: &str = "\
grep -rHs '' /proc/irq --include=smp_affinity --include=default_smp_affinity
grep -rHs '' /proc/sys/net/ipv4 /proc/sys/kernel/numa_balancing
grep -Hs '' /sys/class/net/*/{mtu,tx_queue_len,threaded,gro_flush_timeout,napi_defer_hard_irqs} \
    /sys/class/net/*/queues/*/{rps_cpus,rps_flow_cnt,xps_cpus,xps_rxqs}
for netdev in va vb; do
    for what in c g k l x; do ethtool -$what $netdev 2>&1; done; tc -d qdisc show dev $netdev
done
ps -eo pid,comm | awk '$2 ~ /^napi[/]v[ab]/ { print $1 }' | xargs -rn1 taskset -cp";
/// Those that no other network namespace shows.
const GLOBAL_SETTINGS: &str = "grep -rHs '' /proc/sys/net/core";

#[test]
fn commands_that_read_change_no_setting() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let green = Namespace::new("netsilo-read");
    veth(&green);
    let settings = || {
        let words = ["netns", "exec", &green.0, "bash", "-c", SETTINGS];
        let own = Command::new("ip").args(words).output().unwrap().stdout;
        let global = Command::new("sh").args(["-c", GLOBAL_SETTINGS]).output().unwrap().stdout;
        String::from_utf8([own, global].concat()).unwrap()
    };
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("host.tar.zst");
    let before = settings();
    for expected in ["/queues/rx-0/rps_cpus:0", "generic-receive", "rps_sock_flow_entries"] {
        assert!(before.contains(expected), "{expected}");
    }
    for (command, codes) in [
        ("show -i 100ms", [0, 0]),
        ("check -i 100ms", [0, 11]),
        ("explain va -i 100ms", [0, 0]),
        ("plan --rps 0 -n va -i 100ms", [0, 0]),
        ("predict --setting rps=0 -i 100ms", [0, 1]), // without traffic it has nothing to say
        ("export script --rps 0 -n va -i 100ms", [0, 0]),
        ("rss show", [0, 1]), // no netdev has RSS
        ("doctor", [0, 0]),
        ("status", [0, 3]), // no daemon runs
        (&format!("capture -i 100ms -o {}", bundle.display()), [0, 0]),
        (&format!("report --incident -i 100ms -o {}.html", bundle.display()), [0, 0]),
    ] {
        let words = ["--netns", &green.0].into_iter().chain(command.split(' '));
        let (code, _) = netsilo(&words.collect::<Vec<_>>());
        assert!(codes.map(Some).contains(&code), "{command}: {code:?}");
        assert_eq!(settings(), before, "{command}");
    }
}

/// Reads a request and answers, again and again, until the client ends.
fn answers(listener: &TcpListener) {
    let (mut stream, _) = listener.accept().unwrap();
    let mut request = [0; SECRET.len()];
    while stream.read_exact(&mut request).is_ok() && stream.write_all(&request).is_ok() {}
}

/// What clients send.
const SECRET: &str = "a payload that nobody else may see";

#[test]
fn a_bundle_has_no_payload_no_address_and_no_name_of_the_host() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let here = Namespace::new("netsilo-shy");
    let name = &here.0;
    ip(&["-n", name, "link", "add", "va", "address", "02:de:ad:77:12:34", "type", "veth"]);
    for address in ["10.99.77.1/24", "fd77:99::77:1/64"] {
        ip(&["-n", name, "address", "add", address, "dev", "va"]);
    }
    ip(&["-n", name, "link", "set", "va", "up"]);
    let listener = here.within(|| TcpListener::bind("10.99.77.1:0").unwrap());
    let to = listener.local_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("host.tar.zst");
    let until = Instant::now() + Duration::from_secs(60);
    let mut client = here.within(|| TcpStream::connect(to).unwrap());
    let bytes = std::thread::scope(|scope| {
        scope.spawn(|| answers(&listener));
        let (file, capture) = (&file, "exec \"$0\" --netns $2 capture -i 500ms -o \"$1\"");
        let capture = format!("hostname shy-host-of-tests; {capture}");
        let mut command = Command::new("unshare");
        command.args(["--uts", "sh", "-c", &capture, env!("CARGO_BIN_EXE_netsilo")]);
        let mut capture = command.arg(file).arg(name).spawn().unwrap();
        while capture.try_wait().unwrap().is_none() && Instant::now() < until {
            client.write_all(SECRET.as_bytes()).unwrap();
            client.read_exact(&mut [0; SECRET.len()]).unwrap();
        }
        assert!(capture.wait().unwrap().success());
        drop(client);
        Command::new("zstd").arg("-dc").arg(file).output().unwrap().stdout
    });
    let has = |wanted: &[u8]| bytes.windows(wanted.len()).any(|at| at.eq_ignore_ascii_case(wanted));
    assert!(has(b"smp_affinity") && has(b"/va/"), "{} bytes", bytes.len());
    let of_mac = ["02:de:ad:77:12:34", "02dead771234"];
    let of_ip = ["10.99.77.1", "014D630A", "0A634D01", "fd77:99::77:1", "fd770099"];
    let all = of_mac.into_iter().chain(of_ip).chain([SECRET, "shy-host-of-tests"]);
    let found: Vec<_> = all.filter(|it| has(it.as_bytes())).collect();
    assert!(found.is_empty(), "{found:?}");
    assert!(!has(&[0x02, 0xde, 0xad, 0x77, 0x12, 0x34]) && !has(&[0x0a, 0x63, 0x4d, 0x01]));
}

/// As those of a driver's own netdev, which sysfs does not list.
#[test]
fn a_kthread_of_a_netdev_that_is_not_listed_is_measured_placed_and_restored() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let [wifi, air] = ["netsilo-wifi", "netsilo-air"].map(Namespace::new);
    let veth = format!("link add wf netns {} type veth peer name wg netns {}", wifi.0, air.0);
    ip(&veth.split(' ').collect::<Vec<_>>());
    for (namespace, netdev, address) in
        [(&wifi, "wf", "198.51.100.1/24"), (&air, "wg", "198.51.100.2/24")]
    {
        ip(&["-n", &namespace.0, "addr", "add", address, "dev", netdev]);
        ip(&["-n", &namespace.0, "link", "set", netdev, "up"]);
    }
    let threaded = "ethtool -K wf gro on rx-udp-gro-forwarding on && \
                    echo 1 > /sys/class/net/wf/threaded";
    ip(&["netns", "exec", &wifi.0, "sh", "-c", threaded]);
    let root = Root::live();
    let before = snapshot(&root).unwrap();
    air.within(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        // Nobody listens: some sends fail with the answer to an earlier one.
        (0..20_000).for_each(|_| _ = socket.send_to(&[0; 100], "198.51.100.1:9"));
    });
    let after = snapshot(&root).unwrap();
    let attribution = Attribution::default();
    let observation = Observation { before, after, attribution };
    let costs = Costs::default();
    let analysis = Analysis::new(&observation, &costs);
    let threads = &analysis.net_threads;
    let thread = threads.iter().find(|it| it.comm.starts_with("napi/wf-")).unwrap();
    assert_eq!((thread.kind, thread.movable), (NetThreadKind::Napi, true));
    assert!(thread.netdevs.is_empty() && thread.ran() > Some(0.0), "{thread:?}");
    assert!(threads.iter().any(|it| it.kind == NetThreadKind::Ksoftirqd && it.cpu.is_some()));
    let cpu = observation.after.topology.online.lowest().unwrap();
    let changes = thread.moved_to(cpu, "test".into()).into_iter().collect();
    let plan = Plan { changes, ..Plan::default() };
    let state = tempfile::tempdir().unwrap();
    let file = state.path().join("plan.json");
    std::fs::write(&file, serde_json::to_string(&plan).unwrap()).unwrap();
    let now = || allowed_cpus(thread.pid);
    let old = now();
    let (code, text) = writing(&["apply", "-y", "--plan", file.to_str().unwrap()], state.path());
    assert_eq!((code, now()), (Some(0), cpu.to_string()), "{text}");
    let (code, text) = writing(&["undo", "-y"], state.path());
    assert_eq!((code, now()), (Some(0), old), "{text}");
}

fn allowed_cpus(pid: u32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    pid_status::cpus_allowed(&status).unwrap().to_string()
}
