//! Exported files on a real kernel. The script writes exactly what the plan states, the real
//! irqbalance follows its policy script, and udev and tuned accept their files.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy lets only functions marked as tests do so"
)]

use std::collections::BTreeMap;

use netsilo_decide::plan::Plan;
use netsilo_decide::plan::export;
use netsilo_lab::{Kernel, Lab, NicModel, Spec};
use netsilo_model::change::{Change, Knob, NTUPLE_FILTER, Target, knobs};
use netsilo_model::machine::cpuset::{CpuId, CpuSet};
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::netdev::NetdevIdentity;

const NETSILO: &str = env!("CARGO_BIN_EXE_netsilo");
const FOLLOW_HINTS: &str = include_str!("../../../docs/examples/follow-hints");

/// CPUs by interrupt.
type Places = BTreeMap<Irq, CpuSet>;

struct Guest {
    lab: Lab,
    /// Interrupts of eth0's queues, with their action names.
    irqs: BTreeMap<Irq, String>,
    device_path: String,
}

/// A change to this value. Exports do not use the old value.
fn to<K: Knob + Into<Target>>(knob: K, new: K::Value) -> Change {
    Change::new(knob, new.clone(), new, "test")
}

impl Guest {
    fn boot() -> Self {
        let lab = Lab::boot(&Spec::new(Kernel::V6_1, NicModel::VirtioNet)).unwrap();
        let text = lab.sh("cd /sys/kernel/irq; grep -HE 'put[.]' */actions").unwrap();
        let irq = |line: &str| {
            let (file, action) = line.split_once(':').unwrap();
            (Irq(file.split_once('/').unwrap().0.parse().unwrap()), action.to_owned())
        };
        let irqs: BTreeMap<_, _> = text.lines().map(irq).collect();
        assert_eq!(irqs.len(), 8, "{irqs:?}");
        let device = lab.sh("readlink -f /sys/class/net/eth0/device").unwrap();
        Self { lab, irqs, device_path: device.trim().trim_start_matches("/sys").to_owned() }
    }

    fn files(&self, format: &str) -> String {
        self.irqs.keys().map(|irq| format.replace("{}", &irq.to_string())).collect()
    }

    /// Returns the requested CPUs of each interrupt.
    fn places(&self) -> Places {
        let text =
            self.lab.sh(&format!("cat{}", self.files(" /proc/irq/{}/smp_affinity_list"))).unwrap();
        self.irqs
            .keys()
            .copied()
            .zip(text.lines().map(|line| CpuSet::parse_list(line).unwrap()))
            .collect()
    }

    /// Writes the affinity of each interrupt.
    fn place(&self, wanted: &Places) {
        let write = |(irq, cpus): (&Irq, &CpuSet)| {
            format!("echo {} >/proc/irq/{irq}/smp_affinity\n", cpus.to_mask(8))
        };
        self.lab.sh(&wanted.iter().map(write).collect::<String>()).unwrap();
    }

    /// Assigns a CPU to each interrupt: `cpus` from last to first, repeatedly.
    fn wanted(&self, cpus: [u32; 4]) -> Places {
        let place = |(n, irq): (usize, &Irq)| (*irq, CpuSet::from_cpu(CpuId(cpus[3 - n % 4])));
        self.irqs.keys().enumerate().map(place).collect()
    }

    fn netdev(&self) -> NetdevIdentity {
        NetdevIdentity {
            name: "eth0".into(),
            device_path: Some(self.device_path.clone()),
            ifindex: None,
        }
    }

    /// Returns a plan that moves the interrupts and changes some more knobs.
    fn plan(&self, wanted: &Places) -> Plan {
        let cpus = |list: &str| CpuSet::parse_list(list).unwrap();
        let mut changes: Vec<Change> = wanted
            .iter()
            .map(|(irq, cpus)| {
                let (action, netdev) = (self.irqs[irq].clone(), Some(self.netdev()));
                to(knobs::IrqAffinity { irq: *irq, action, netdev }, cpus.clone())
            })
            .collect();
        let netdev = || self.netdev();
        changes.push(to(knobs::RpsCpus { netdev: netdev(), queue: 1 }, cpus("2-3")));
        changes.push(to(knobs::RpsSockFlowEntries, 5000));
        changes.push(to(knobs::RpsFlowCnt { netdev: netdev(), queue: 0 }, 1000));
        changes.push(to(knobs::XpsCpus { netdev: netdev(), queue: 1 }, cpus("5-6")));
        Plan { changes, ..Plan::default() }
    }

    fn give(&self, path: &str, text: &str) {
        self.lab
            .sh(&format!("cat >{path} <<'END_OF_FILE'\n{text}\nEND_OF_FILE\nchmod 755 {path}"))
            .unwrap();
    }

    /// Writes a hint for each interrupt, as `netsilo run` publishes them.
    fn hint(&self, wanted: &Places) {
        let hint = |(irq, cpus): (&Irq, &CpuSet)| {
            let dir = format!("/run/netsilo/irq/{irq}");
            format!(
                "mkdir -p {dir}; echo {} >{dir}/affinity_hint; \
                 echo near-consumer: test >{dir}/affinity_alg\n",
                cpus.to_mask(8)
            )
        };
        self.lab.sh(&wanted.iter().map(hint).collect::<String>()).unwrap();
    }

    /// Runs irqbalance for one balancing pass.
    fn irqbalance(&self, options: &str) {
        let program = netsilo_lab::irqbalance().unwrap();
        let command =
            format!("{} --oneshot --foreground --interval=1 {options}", program.display());
        self.lab.run(&command).unwrap().ok().unwrap();
    }
}

#[test]
fn exported_files_work_on_a_real_kernel() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let guest = Guest::boot();
    the_script_writes_what_differs_and_then_nothing(&guest);
    irqbalance_leaves_placed_interrupts_alone(&guest);
    let old = netsilo_lab::irqbalance().unwrap();
    irqbalance_is_told_and_balances_all_others(&guest, &format!("exec {}", old.display()));
    udev_applies_the_link_file_to_its_netdev(&guest);
}

#[test]
#[ignore = "too slow for make test: make test-long"]
fn the_newest_irqbalance_is_told_too_and_hints_are_followed() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let guest = Guest::boot();
    let newest = netsilo_lab::newest_irqbalance().unwrap();
    irqbalance_is_told_and_balances_all_others(&guest, &newest);
    irqbalance_moves_interrupts_to_the_node_of_the_hint(&guest);
    the_example_follows_hints_exactly(&guest);
}

fn the_script_writes_what_differs_and_then_nothing(guest: &Guest) {
    let wanted = guest.wanted([0, 3, 4, 7]);
    guest.give("/tmp/plan.json", &serde_json::to_string(&guest.plan(&wanted)).unwrap());
    guest.lab.sh(&format!("{NETSILO} export script --plan /tmp/plan.json --dir /tmp")).unwrap();
    let first = guest.lab.sh("/tmp/netsilo-placement.sh").unwrap();
    assert_eq!(guest.places(), wanted, "{first}");
    let queues = "/sys/class/net/eth0/queues";
    let knobs = format!(
        "cd {queues}; cat rx-1/rps_cpus rx-0/rps_flow_cnt tx-1/xps_cpus \
         /proc/sys/net/core/rps_sock_flow_entries"
    );
    assert_eq!(guest.lab.sh(&knobs).unwrap(), "0c\n1024\n60\n8192\n", "{first}");
    // The files are read-only now, so a write would fail. An equal value must not be written,
    // because that would flush the flow table.
    let again = format!(
        "for f in /proc/sys/net/core/rps_sock_flow_entries {queues}/rx-0/rps_flow_cnt; do
        copy=$(mktemp); cat $f >$copy; mount --bind $copy $f; mount -o remount,bind,ro $f; done
        /tmp/netsilo-placement.sh; e=$?
        umount /proc/sys/net/core/rps_sock_flow_entries {queues}/rx-0/rps_flow_cnt; exit $e"
    );
    let second = guest.lab.sh(&again).unwrap();
    assert_eq!(second.lines().count(), 12, "{second}");
    assert!(second.lines().all(|line| line.ends_with(" already")), "{second}");
    // A missing interrupt is reported, and the others are moved.
    let stray = to(
        knobs::IrqAffinity { irq: Irq(9999), action: "eth9-rx-0".into(), netdev: None },
        CpuSet::from_cpu(CpuId(0)),
    );
    let script = export::script(&Plan { changes: vec![stray], ..Plan::default() });
    guest.give("/tmp/stray.sh", &script.text);
    let output = guest.lab.run("/tmp/stray.sh").unwrap();
    assert_eq!(
        (output.status, String::from_utf8_lossy(&output.stderr).trim()),
        (1, "netsilo-placement: no interrupt is called eth9-rx-0")
    );
}

fn irqbalance_leaves_placed_interrupts_alone(guest: &Guest) {
    // All on one cpu, which no balancer would choose.
    let wanted = guest.wanted([1, 1, 1, 1]);
    let plan = guest.plan(&wanted);
    guest.place(&wanted);
    guest.irqbalance("");
    assert_ne!(guest.places(), wanted, "irqbalance moves interrupts without the policy script");
    guest.place(&wanted);
    guest.give("/tmp/policy", &export::irqbalance_policy(&plan).text);
    guest.irqbalance("--policyscript=/tmp/policy");
    assert_eq!(guest.places(), wanted);
}

/// A running irqbalance is told on its socket. It leaves the plan's interrupts alone, moves the
/// others, and takes all back after undo. What its options ban stays banned.
fn irqbalance_is_told_and_balances_all_others(guest: &Guest, program: &str) {
    guest.lab.sh("mkdir -p /run/irqbalance; rm -f /run/irqbalance/*").unwrap();
    // All on one cpu, which no balancer would choose; the others too.
    let others = "for i in 2 3 4 5 6 7; do echo 2 >/proc/irq/2$i/smp_affinity; done 2>/dev/null";
    let place_others = || guest.lab.run(others).map(drop).unwrap();
    let others = || guest.lab.sh("cat /proc/irq/2[2-7]/smp_affinity_list").unwrap();
    let balancer =
        guest.lab.spawn(&format!("{program} --foreground --interval=1 --banirq=9")).unwrap();
    guest.lab.sh("until ls /run/irqbalance/* 2>/dev/null; do sleep 0.1; done").unwrap();
    let banned = || {
        let host: serde_json::Value =
            guest.lab.json(&format!("{NETSILO} show -i 100ms --json")).unwrap();
        host["knob_owners"][0]["bans"].clone()
    };
    let bans = banned();
    assert_eq!(bans["irqs"], serde_json::json!([9]), "{program}");
    let cuts_lists = ["/1.9.2", "/1.9.4"].iter().any(|version| program.contains(version));
    assert_eq!(bans["most_bytes"], if cuts_lists { 499 } else { 16_383 }, "{program}");
    place_others();
    let before = others();
    let apply = format!("{NETSILO} apply -i 1s --cpus 1 --algorithm spread --yes");
    let applied = guest.lab.sh(&apply).unwrap();
    assert!(applied.contains("alone: off -> on"), "{applied}");
    let placed = guest.places();
    assert!(placed.values().all(|cpus| *cpus == CpuSet::from_cpu(CpuId(1))), "{placed:?}");
    let moved = || {
        std::thread::sleep(std::time::Duration::from_secs(1));
        others()
    };
    let moved = netsilo_lab::until("the others are balanced", moved, |now| *now != before);
    assert!(moved.is_ok(), "{before}");
    guest.lab.sh("sleep 4").unwrap();
    assert_eq!(guest.places(), placed, "{program}");
    let undone = guest.lab.sh(&format!("{NETSILO} undo")).unwrap();
    assert_eq!(banned()["irqs"], serde_json::json!([9]), "{undone}");
    guest.place(&placed);
    let places = || {
        std::thread::sleep(std::time::Duration::from_secs(1));
        guest.places()
    };
    // It writes an affinity only when it moves an interrupt; HUP makes it place all of them.
    guest.lab.sh("kill -HUP $(pidof irqbalance)").unwrap();
    let back = netsilo_lab::until("irqbalance has them back", places, |now| *now != placed);
    assert!(back.is_ok(), "{program}");
    balancer.stop().unwrap();
}

fn irqbalance_moves_interrupts_to_the_node_of_the_hint(guest: &Guest) {
    guest.give("/tmp/suggest", &export::irqbalance_suggest().text);
    // Neighbouring interrupts to different nodes, so that no other rule has the same result.
    let wanted = guest.wanted([6, 2, 6, 2]);
    guest.hint(&wanted);
    guest.irqbalance("--policyscript=/tmp/suggest");
    let nodes = ["0-3", "4-7"].map(|list| CpuSet::parse_list(list).unwrap());
    for (irq, cpus) in guest.places() {
        let node = nodes.iter().find(|node| wanted[&irq].is_subset(node)).unwrap();
        assert!(cpus.is_subset(node), "irq {irq} is on {cpus}, not on {node}");
    }
}

fn the_example_follows_hints_exactly(guest: &Guest) {
    let wanted = guest.wanted([2, 5, 6, 1]);
    guest.hint(&wanted);
    guest.give("/tmp/follow-hints", FOLLOW_HINTS);
    let moved = guest.lab.sh("/tmp/follow-hints --once").unwrap();
    assert_eq!(guest.places(), wanted, "{moved}");
    assert!(moved.contains("(near-consumer: test)"), "{moved}");
    assert_eq!(guest.lab.sh("/tmp/follow-hints --once").unwrap(), "");
}

/// Runs the real udev with two rules that act like its own. udev must find the device by its path,
/// apply our file and understand everything in it. If udev is older than systemd 256, it may ignore
/// keys of that version.
fn udev_applies_the_link_file_to_its_netdev(guest: &Guest) {
    let ntuple =
        to(knobs::Offload { netdev: guest.netdev(), feature: NTUPLE_FILTER.into() }, false);
    let rps = guest
        .plan(&Places::new())
        .changes
        .into_iter()
        .find(|it| matches!(it.target, Target::RpsCpus(_)));
    let (files, _) =
        export::systemd_link(&Plan { changes: vec![rps.unwrap(), ntuple], ..Plan::default() });
    let [file] = files.as_slice() else { unreachable!("{files:?}") };
    let builtin = |name: &str| format!("SUBSYSTEM==\"net\", IMPORT{{builtin}}=\"{name}\"\n");
    let rules = builtin("path_id") + &builtin("net_setup_link");
    guest.lab.sh("mkdir -p /run/systemd/network /run/udev/rules.d").unwrap();
    let path = format!("/run/systemd/network/{}", file.name);
    guest.give(&path, &file.text);
    guest.give("/run/udev/rules.d/10-netsilo-test.rules", &rules);
    let udevadm = netsilo_lab::udevadm().unwrap();
    let output =
        guest.lab.sh(&format!("{} test /sys/class/net/eth0 2>&1", udevadm.display())).unwrap();
    assert!(output.lines().any(|line| line == format!("ID_NET_LINK_FILE={path}")), "{output}");
    // virtio_net has no ntuple filter, but udev's attempt to set it shows that it understood the
    // key.
    assert!(output.contains("rx-ntuple-filter"), "{output}");
    let complaints = output.lines().filter(|line| line.contains(&format!("{path}:")));
    let unknown: Vec<&str> =
        complaints.filter(|line| !line.contains("ReceivePacketSteeringCPUMask")).collect();
    assert!(unknown.is_empty(), "{output}");
}

/// Reads the profile with tuned's Python modules. tuned itself needs D-Bus and a system to tune,
/// but reading a profile needs only the standard library.
#[test]
fn tuned_reads_the_exported_profile() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    const READ: &str = "
import json, sys
sys.path.insert(0, sys.argv[1])
from tuned.profiles import Factory, Loader, Locator, Merger
from tuned.profiles.variables import Variables
profile = Loader(Locator([sys.argv[2]]), Factory(), Merger(), None, Variables()).load(['netsilo'])
units = {name: [unit.type, unit.devices, dict(unit.options)]
         for name, unit in profile.units.items()}
print(json.dumps(units))";
    let netdev = || NetdevIdentity {
        name: "eth0".into(),
        device_path: Some("/devices/pci0000:00/0000:00:04.0".into()),
        ifindex: None,
    };
    let cpus = |list| CpuSet::parse_list(list).unwrap();
    let irq =
        knobs::IrqAffinity { irq: Irq(27), action: "eth0-TxRx-1".into(), netdev: Some(netdev()) };
    let changes = vec![
        to(irq, cpus("5")),
        to(knobs::RpsCpus { netdev: netdev(), queue: 1 }, cpus("2-3")),
        to(knobs::RpsSockFlowEntries, 8192),
        to(knobs::Offload { netdev: netdev(), feature: NTUPLE_FILTER.into() }, true),
        to(knobs::Offload { netdev: netdev(), feature: "rx-lro".into() }, false),
    ];
    let dir = tempfile::tempdir().unwrap();
    let profile = dir.path().join("netsilo");
    std::fs::create_dir(&profile).unwrap();
    let file = export::tuned(&Plan { changes, ..Plan::default() });
    std::fs::write(profile.join(&file.name), &file.text).unwrap();
    let mut python = std::process::Command::new("python3");
    let output = python
        .args(["-B", "-c", READ])
        .arg(netsilo_lab::tuned().unwrap())
        .arg(dir.path())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let units: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {errors}"));
    let expected = serde_json::json!({
        "sysctl": ["sysctl", "*", { "net.core.rps_sock_flow_entries": "8192" }],
        "sysfs": [
            "sysfs", "*",
            { "/sys/devices/pci0000:00/0000:00:04.0/net/*/queues/rx-1/rps_cpus": "c" },
        ],
        "net_eth0": ["net", "eth0", { "features": "rx-ntuple-filter on rx-lro off" }],
        "irq_27": ["irq", "irq27", { "affinity": "5" }],
    });
    assert_eq!(units, expected, "{}", file.text);
}

/// Tests masks that are longer than those of a guest with eight CPUs.
#[test]
fn the_policy_finds_the_node_of_a_hint_on_a_large_machine() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().display();
    let text = export::irqbalance_suggest().text;
    let text = text
        .replace("/run/netsilo", &format!("{root}/run"))
        .replace("/sys/devices", &format!("{root}/sys"));
    let policy = dir.path().join("policy");
    std::fs::write(&policy, text).unwrap();
    let hints = dir.path().join("run/irq/27");
    std::fs::create_dir_all(&hints).unwrap();
    for (cpu, node) in [(0, 0), (31, 0), (32, 1), (63, 1), (100, 12)] {
        let folder = dir.path().join(format!("sys/system/cpu/cpu{cpu}/node{node}"));
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(
            hints.join("affinity_hint"),
            CpuSet::from_cpu(CpuId(cpu)).to_mask(128) + "\n",
        )
        .unwrap();
        let output =
            std::process::Command::new("sh").arg(&policy).args(["/sys/x", "27"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text, format!("numa_node={node}\nbalance_level=core\n"), "cpu {cpu}");
    }
    let none =
        std::process::Command::new("sh").arg(&policy).args(["/sys/x", "28"]).output().unwrap();
    assert_eq!((none.status.code(), none.stdout.len()), (Some(0), 0));
}
