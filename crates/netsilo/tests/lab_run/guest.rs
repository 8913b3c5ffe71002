//! A guest that runs the daemon, and a workload that the daemon follows.

use std::collections::BTreeMap;
use std::time::Duration;

use netsilo_lab::{Job, Kernel, Lab, NicModel, PeerJob, Spec, until};
use netsilo_model::machine::cpuset::CpuSet;
use serde_json::Value as Json;

pub(crate) const NETSILO: &str = env!("CARGO_BIN_EXE_netsilo");

/// Under emulation times are noise: they never cause a revert here, and the algorithm uses bytes.
/// All waits are short.
const CONFIG: &str = r#"
interval = "1s"
window = "always"
[goal]
algorithm = "near-consumer"
[controller]
dwell = "1s"
calm = "20s"
hold-off = "1s"
hold-off-most = "2s"
worse-by = 1.0
"#;

/// Keeps only the privileges that the unit file grants.
const RIGHTS: &str = "setpriv --no-new-privs --inh-caps -all \
    --bounding-set -all,+net_admin,+sys_nice,+bpf,+perfmon";

/// Prints every knob that the daemon may write, as `file:text`.
const KNOBS: &str = "cd /sys/class/net/eth0/queues; grep -H . /proc/irq/*/smp_affinity \
    /proc/irq/default_smp_affinity /proc/sys/net/core/rps_sock_flow_entries \
    $PWD/*/rps_* $PWD/*/xps_cpus; true";

pub(crate) struct Guest {
    pub(crate) lab: Lab,
}

impl Guest {
    pub(crate) fn boot(kernel: Kernel) -> Self {
        let guest = Self { lab: Lab::boot(&Spec::new(kernel, NicModel::VirtioNet)).unwrap() };
        guest.configure("");
        guest
    }

    pub(crate) fn configure(&self, more: &str) {
        self.lab
            .sh(&format!(
                "mkdir -p /tmp/conf; cat >/tmp/conf/netsilo.toml <<'END'\n{more}\n{CONFIG}\nEND"
            ))
            .unwrap();
    }

    /// Starts the daemon with the privileges of the service, and waits for its first window.
    pub(crate) fn start(&self) -> Job {
        let daemon = self.spawn();
        self.until("the first window", |status| status["windows"].as_u64() > Some(0));
        daemon
    }

    /// Starts the daemon with the privileges of the service.
    pub(crate) fn spawn(&self) -> Job {
        let run = format!("exec {RIGHTS} {NETSILO} run --config /tmp/conf >/tmp/log 2>&1");
        self.lab.spawn(&run).unwrap()
    }

    pub(crate) fn log(&self) -> String {
        self.lab.sh("cat /tmp/log").unwrap()
    }

    /// Returns the output of `netsilo status --json`, or `None` without a daemon.
    pub(crate) fn status(&self) -> Option<Json> {
        let ask = netsilo_lab::example(env!("CARGO_MANIFEST_DIR"), "guest_status").unwrap();
        let output =
            self.lab.run(&format!("'{}' /run/netsilo/status.sock", ask.display())).unwrap();
        serde_json::from_slice(&output.stdout).ok()
    }

    /// Waits until `holds` is true for the daemon's status. Fails the test after two minutes.
    pub(crate) fn until(&self, what: &str, mut holds: impl FnMut(&Json) -> bool) -> Json {
        let look = || {
            // leaves the emulated CPUs to the daemon for a moment
            std::thread::sleep(Duration::from_millis(300));
            self.status()
        };
        let seen = until(what, look, |status| status.as_ref().is_some_and(&mut holds));
        seen.ok().flatten().unwrap_or_else(|| {
            let all = format!("{NETSILO} status; {NETSILO} show; {NETSILO} plan -a near-consumer");
            panic!("never: {what}\n{}\n{}", self.lab.run(&all).unwrap().text(), self.log())
        })
    }

    /// Waits until all interrupts with traffic are at their placement, on these CPUs, in the status
    /// and in the kernel, and until the next window places them in the same way. The first window
    /// after a workload's start may have seen only one packet.
    pub(crate) fn until_placed(&self, what: &str, allowed: &str) -> BTreeMap<u64, String> {
        let windows = |status: &Json| status["windows"].as_u64().unwrap();
        let started = self.status().as_ref().map_or(0, windows);
        let allowed = CpuSet::parse_list(allowed).unwrap();
        let there = |cpus: &String| CpuSet::parse_list(cpus).unwrap().is_subset(&allowed);
        let mut last = (started, BTreeMap::new());
        self.until(what, |status| {
            if windows(status) == last.0 {
                return false;
            }
            let moves = array(status, "placements").iter().any(|it| it["moves"] == true);
            let before = std::mem::replace(&mut last, (windows(status), placed(status))).1;
            // The status is from the last window; the kernel's files are from now.
            let all_there = || {
                let now = self.affinities();
                last.1.iter().all(|(irq, cpus)| there(cpus) && now[irq].contains(cpus))
            };
            !moves && !last.1.is_empty() && last.1 == before && all_there()
        });
        last.1
    }

    pub(crate) fn knobs(&self) -> BTreeMap<String, String> {
        let text = self.lab.sh(KNOBS).unwrap();
        let line = |line: &str| {
            line.split_once(':').map(|(file, text)| (file.to_owned(), text.to_owned()))
        };
        text.lines().filter_map(line).collect()
    }

    /// Returns where every interrupt is: its effective CPU, because the kernel chooses one if a
    /// driver requested several. A request takes effect with the next interrupt, and a tx queue
    /// that sends nothing has none. In that case the requested CPUs count as well.
    pub(crate) fn affinities(&self) -> BTreeMap<u64, Vec<String>> {
        let text = self
            .lab
            .sh("cd /proc/irq; grep -H . */effective_affinity_list
                 for irq in $(grep -l output /sys/kernel/irq/*/actions | cut -d/ -f5); do
                     grep -H . $irq/smp_affinity_list
                 done")
            .unwrap();
        let mut at = BTreeMap::<_, Vec<_>>::new();
        for line in text.lines() {
            let (file, cpus) = line.split_once(':').unwrap();
            let irq = file.split_once('/').unwrap().0.parse().unwrap();
            at.entry(irq).or_default().push(cpus.to_owned());
        }
        at
    }

    /// Moves all interrupts of eth0 to one CPU.
    pub(crate) fn all_on(&self, cpu: u32) {
        let all =
            "for irq in $(grep -lE '^virtio.*(in|out)put' /sys/kernel/irq/*/actions | cut -d/ -f5)";
        self.lab
            .sh(&format!("{all}; do echo {cpu} >/proc/irq/$irq/smp_affinity_list; done"))
            .unwrap();
    }

    /// Starts a reader on this CPU, and steady traffic on eight flows to it.
    pub(crate) fn workload(&self, port: u16, cpu: &str) -> Workload {
        let ports = format!("--port {port} --flows 8");
        let receive = format!("receive --mode udp-unconnected {ports} --cpus {cpu} --idle 300");
        let send = format!("send --udp --dest 10.77.0.2 {ports} --bytes 1000000000 --rate 400");
        let receiver = self.lab.exact(&receive).unwrap();
        Workload { _sender: self.lab.peer(0).unwrap().exact(&send).unwrap(), _receiver: receiver }
    }
}

/// A running workload; ends when dropped.
pub(crate) struct Workload {
    _sender: PeerJob,
    _receiver: Job,
}

pub(crate) fn array<'a>(status: &'a Json, name: &str) -> &'a Vec<Json> {
    status[name].as_array().unwrap()
}

/// Returns the CPUs of each interrupt that has a placement.
pub(crate) fn placed(status: &Json) -> BTreeMap<u64, String> {
    let placement = |it: &Json| Some((it["irq"].as_u64()?, it["cpus"].as_str()?.to_owned()));
    array(status, "placements").iter().filter_map(placement).collect()
}
