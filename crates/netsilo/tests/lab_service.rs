//! The daemon as the systemd service, in a guest whose first process is systemd. The unit's sandbox
//! lets the daemon see, write and restore all it needs, and nobody else reaches its metrics.

#![allow(clippy::unwrap_used, reason = "clippy lets only functions marked as tests do so")]

use std::collections::BTreeMap;

use netsilo_lab::{Init, Job, Kernel, Lab, NicModel, PeerJob, Spec, until};
use netsilo_model::machine::cpuset::CpuSet;
use serde_json::Value as Json;

const NETSILO: &str = env!("CARGO_BIN_EXE_netsilo");
const UNIT: &str = include_str!("../../../dist/netsilo.service");

/// The sandbox hides /tmp and the home folders, where the tested program may be.
const PROGRAM: &str = "/run/lab/netsilo";

/// Wants a knob of each kind that the daemon writes. Under emulation times are noise.
const CONFIG: &str = r#"
interval = "1s"
window = "always"
restore-on-exit = true
metrics = "0.0.0.0:9798"
[goal]
algorithm = "near-consumer"
rps = "2-3"
rfs = 1024
xps = "near"
default-smp-affinity = "2-3"
rps-default-mask = "2-3"
[controller]
dwell = "1s"
hold-off = "1s"
hold-off-most = "2s"
worse-by = 1.0
"#;

/// Describes the drop-ins of the unit.
const PAGE: &str = include_str!("../../../docs/daemon.md");

/// Prints each knob of the goal, as `file:text`, and the CPUs of the NAPI kthreads.
const KNOBS: &str = "cd /sys/class/net/eth0/queues; grep -H . \
    $(grep -lE '^virtio.*put' /sys/kernel/irq/*/actions | \
        sed 's|/sys/kernel/irq/\\([0-9]*\\)/actions|/proc/irq/\\1/smp_affinity|') \
    /proc/irq/default_smp_affinity /proc/sys/net/core/rps_sock_flow_entries \
    /proc/sys/net/core/rps_default_mask $PWD/*/rps_* $PWD/*/xps_cpus \
    $(grep -l ^napi/eth0 /proc/[0-9]*/comm | sed s/comm/status/) | grep -v status:[^C] | \
    grep -v 'status:Cpus_allowed:' | grep -v 'status:C[^p]'; true";

struct Guest(Lab);

impl Guest {
    fn boot() -> Self {
        let spec = Spec { init: Init::Systemd, ..Spec::new(Kernel::V6_12, NicModel::VirtioNet) };
        let lab = Lab::boot(&spec).unwrap();
        let unit = UNIT.replace(
            "/usr/local/bin/netsilo run",
            &format!("{PROGRAM} run --config /run/lab/netsilo.toml"),
        );
        assert_ne!(unit, UNIT);
        lab.sh(&format!(
            "cp {NETSILO} {PROGRAM}
             mount -t tmpfs tmpfs /var/lib
             cat >/run/systemd/system/netsilo.service <<'END'\n{unit}\nEND
             cd /sys/class/net/eth0; echo 1 >threaded
             for file in queues/tx-*/xps_cpus; do echo 1 >$file; done
             for irq in $(grep -lE '^virtio.*put' /sys/kernel/irq/*/actions | cut -d/ -f5); do
                 echo 0 >/proc/irq/$irq/smp_affinity_list
             done"
        ))
        .unwrap();
        let guest = Self(lab);
        guest.configure(CONFIG);
        guest
    }

    fn configure(&self, text: &str) {
        self.0.sh(&format!("cat >/run/lab/netsilo.toml <<'END'\n{text}\nEND")).unwrap();
    }

    /// Sends datagrams to a reader on CPU 5 until both are dropped.
    fn traffic(&self) -> (Job, PeerJob) {
        let ports = "--port 7000 --flows 8";
        let reader = format!("receive --mode udp-unconnected {ports} --cpus 5 --idle 600");
        let reader = self.0.exact(&reader).unwrap();
        let sender = format!("send --udp --dest 10.77.0.2 {ports} --bytes 1000000000 --rate 400");
        (reader, self.0.peer(0).unwrap().exact(&sender).unwrap())
    }

    fn knobs(&self) -> BTreeMap<String, String> {
        let text = self.0.sh(KNOBS).unwrap();
        let line = |line: &str| {
            line.split_once(':').map(|(file, text)| (file.to_owned(), text.to_owned()))
        };
        text.lines().filter_map(line).collect()
    }

    fn status(&self) -> Json {
        let output = self.0.run(&format!("{PROGRAM} status --json")).unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    fn start(&self) {
        let started = self.0.sh("systemctl start netsilo");
        started.unwrap_or_else(|error| unreachable!("{error:#}\n{}", self.log()));
    }

    /// Restarts the service with one drop-in only: the one of docs/daemon.md that has this word.
    fn restart_with(&self, word: &str) {
        let blocks = PAGE.split("      [Service]\n").skip(1);
        let blocks = blocks.map(|it| it.split("\n\n").next().unwrap());
        let drop_in: String = blocks.filter(|it| it.contains(word)).collect();
        assert_eq!(drop_in.matches(word).count(), 1, "{drop_in}");
        self.0
            .sh(&format!(
                "systemctl stop netsilo; cd /run/systemd/system; rm -f netsilo.service.d/*
                 mkdir -p netsilo.service.d
                 printf '[Service]\\n{}' >netsilo.service.d/one.conf
                 systemctl daemon-reload; systemctl start netsilo",
                drop_in.replace("      ", "").replace('\n', "\\n")
            ))
            .unwrap();
    }

    fn log(&self) -> String {
        self.0.sh("journalctl -b --no-pager -u netsilo | tail -n 400").unwrap()
    }

    fn until(&self, what: &str, holds: impl FnMut(&Json) -> bool) -> Json {
        let seen = until(what, || self.status(), holds);
        seen.unwrap_or_else(|error| unreachable!("{error}\n{}", self.log()))
    }
}

#[test]
#[ignore = "too slow for make test: make test-long"]
fn the_service_writes_every_knob_in_its_sandbox_and_restores_it() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let guest = Guest::boot();
    let lab = &guest.0;
    assert_eq!(lab.sh("cat /proc/1/comm").unwrap(), "systemd\n");
    let _traffic = guest.traffic();
    let before = guest.knobs();

    guest.start();
    let status = guest.until("all is in place", |status| {
        let placed = status["placements"].as_array().is_some_and(|all| !all.is_empty());
        placed && status["pending"].as_array().is_some_and(Vec::is_empty)
    });
    assert_eq!(status["attribution"]["source"], "bpf", "{status:#}");
    // "Operation not permitted", "Permission denied", and the like.
    for list in [&status["attribution"]["refused"], &status["refusals"], &status["notes"]] {
        assert!(!list.to_string().contains("ermi"), "{status:#}");
    }
    assert_eq!(status["totals"]["refused"], 0, "{status:#}");
    assert_each_kind_is_written(&before, &guest.knobs());
    hints_can_be_read_by_others(lab);
    metrics_are_for_this_machine(lab);

    lab.sh("systemctl stop netsilo").unwrap();
    assert_eq!(guest.knobs(), before, "restored");
    namespaces_need_a_drop_in(&guest);
    readers_without_bpf_need_ptrace(&guest);
}

fn assert_each_kind_is_written(before: &BTreeMap<String, String>, now: &BTreeMap<String, String>) {
    let kinds = [
        "/smp_affinity",
        "/proc/irq/default_smp_affinity",
        "/rps_cpus",
        "/rps_flow_cnt",
        "rps_sock_flow_entries",
        "rps_default_mask",
        "/xps_cpus",
        "/status",
    ];
    for kind in kinds {
        let written = now.iter().any(|(file, text)| file.ends_with(kind) && before[file] != *text);
        assert!(written, "{kind} is as it was: {now:#?}");
    }
}

fn hints_can_be_read_by_others(lab: &Lab) {
    let hints = "setpriv --reuid=65534 --clear-groups cat /run/netsilo/irq/*/affinity_hint";
    let masks = lab.sh(hints).unwrap();
    assert!(masks.lines().count() > 0, "no hints");
    assert!(masks.lines().all(|mask| CpuSet::parse_mask(mask).is_ok()), "{masks}");
    let private = "setpriv --reuid=65534 --clear-groups cat /run/netsilo/journal";
    assert_ne!(lab.run(private).unwrap().status, 0, "the journal is private");
}

fn metrics_are_for_this_machine(lab: &Lab) {
    let scrape = |address: &str| {
        format!(
            "python3 -c \"import urllib.request as r; \
             print(r.urlopen('http://{address}:9798/metrics', timeout=5).status)\""
        )
    };
    assert_eq!(lab.sh(&scrape("127.0.0.1")).unwrap(), "200\n");
    let remote = lab.peer(0).unwrap().run(&scrape("10.77.0.2")).unwrap();
    assert_ne!(remote.status, 0, "IPAddressDeny= keeps others out");
    let allow = "mkdir -p /run/systemd/system/netsilo.service.d
        printf '[Service]\\nIPAddressAllow=10.77.0.0/24\\n' \
            >/run/systemd/system/netsilo.service.d/scrape.conf
        systemctl daemon-reload; systemctl restart netsilo";
    lab.sh(allow).unwrap();
    assert_eq!(lab.peer(0).unwrap().sh(&scrape("10.77.0.2")).unwrap(), "200\n");
}

/// The sandbox keeps the daemon out of other network namespaces, and the status reports that. With
/// the drop-in of docs/daemon.md it reads them: one that a file holds, and one that only a process
/// of another user holds.
fn namespaces_need_a_drop_in(guest: &Guest) {
    let lab = &guest.0;
    lab.sh("ip netns add shop").unwrap();
    let held = "unshare --net setpriv --reuid=65534 --clear-groups sleep 600";
    let _held = lab.spawn(held).unwrap();
    guest.start();
    let of = |status: &Json, field: &str| status["namespaces"][field].as_u64();
    guest.until("no namespace is read", |status| {
        let why = status["namespaces"]["why_not"].to_string();
        of(status, "found") > Some(0)
            && of(status, "read") == Some(0)
            && why.contains("CAP_SYS_ADMIN")
    });
    let shown = lab.sh(&format!("{PROGRAM} status")).unwrap();
    assert!(shown.contains("not looked at"), "{shown}");
    guest.restart_with("CAP_SYS_ADMIN");
    guest.until("both are read", |status| {
        of(status, "read") >= Some(2) && of(status, "found") == of(status, "read")
    });
    lab.sh("systemctl stop netsilo; ip netns delete shop").unwrap();
}

/// Without eBPF the sandbox hides the readers of sockets, and the status reports that. With the
/// drop-in of docs/daemon.md they are visible.
fn readers_without_bpf_need_ptrace(guest: &Guest) {
    let lab = &guest.0;
    guest.configure(&format!("bpf = false\n{CONFIG}"));
    // Another user's process.
    let server = "setpriv --reuid=65534 --clear-groups python3 -c \"
import socket
listener = socket.create_server(('10.77.0.2', 7100))
stream = listener.accept()[0]
while stream.recv(65536): pass\"";
    let _server = lab.spawn(server).unwrap();
    let client = "python3 -c \"
import socket, time
while True:
    try:
        stream = socket.create_connection(('10.77.0.2', 7100))
        break
    except OSError: time.sleep(0.1)
while True:
    stream.sendall(bytes(1000)); time.sleep(0.05)\"";
    let _client = lab.peer(0).unwrap().spawn(client).unwrap();
    guest.start();
    let refused = |status: &Json| status["attribution"]["refused"].to_string();
    let hidden = "belong to no visible process: run as root, with CAP_SYS_PTRACE and CAP_DAC";
    guest.until("the hidden reader is told", |status| refused(status).contains(hidden));
    guest.restart_with("CAP_DAC_READ_SEARCH");
    guest.until("the reader is seen", |status| {
        status["windows"].as_u64() > Some(1)
            && status["attribution"]["source"] == "sock_diag"
            && !refused(status).contains(hidden)
    });
    lab.sh("systemctl stop netsilo").unwrap();
}
