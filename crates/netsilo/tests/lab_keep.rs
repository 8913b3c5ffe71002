//! `netsilo keep` over a reboot, a reload of the driver and a hotplug, in a guest whose first
//! process is systemd, with udev. The story `reboot` has the reboot alone.

#![allow(clippy::unwrap_used, reason = "clippy lets only functions marked as tests do so")]

use std::path::PathBuf;

use netsilo_lab::{Init, Kernel, Lab, Nic, NicModel, Spec, until};

const NETSILO: &str = env!("CARGO_BIN_EXE_netsilo");

/// Where the units run it: the guest's own disk.
const PROGRAM: &str = "/var/lib/netsilo-program";

const UNITS: [(&str, &str); 4] = [
    ("systemd/system/netsilo.service", include_str!("../../../dist/netsilo.service")),
    ("systemd/system/netsilo-keep.service", include_str!("../../../dist/netsilo-keep.service")),
    ("systemd/system/netsilo-keep.path", include_str!("../../../dist/netsilo-keep.path")),
    ("udev/rules.d/90-netsilo-keep.rules", include_str!("../../../dist/90-netsilo-keep.rules")),
];

struct Machine {
    disk: PathBuf,
    _folder: tempfile::TempDir,
}

impl Machine {
    /// Boots it, with udev, as its disk is.
    fn boot(&self, kernel_args: &[&str]) -> Lab {
        let lab = Lab::boot(&Spec {
            init: Init::Systemd,
            disk: Some(self.disk.clone()),
            nics: vec![Nic::from(NicModel::VirtioNet); 2],
            kernel_args: kernel_args.iter().map(|&it| it.to_owned()).collect(),
            ..Spec::new(Kernel::V6_12, NicModel::VirtioNet)
        });
        let lab = lab.unwrap();
        lab.sh("cd /run/systemd/system; rm -f systemd-udevd*; systemctl daemon-reload
                systemctl start systemd-udevd.service; udevadm control --ping")
            .unwrap();
        lab
    }
}

/// The RPS CPUs of both netdevs' first queues, without leading zeros.
fn rps(lab: &Lab) -> Vec<String> {
    let text =
        lab.run("cat /sys/class/net/eth[01]/queues/rx-0/rps_cpus").unwrap().text().into_owned();
    text.lines().map(|it| it.trim_start_matches('0').to_owned()).collect()
}

fn waits_for_rps(lab: &Lab, what: &str) {
    until(what, || rps(lab), |all| *all == ["3", "3"]).unwrap_or_else(|error| {
        unreachable!("{error}\n{}", lab.sh("journalctl -b --no-pager | tail -n 100").unwrap())
    });
}

/// What systemd says about a unit.
fn unit(lab: &Lab, question: &str, name: &str) -> String {
    lab.run(&format!("systemctl {question} {name}")).unwrap().text().trim().to_owned()
}

#[test]
#[ignore = "needs udev on the host: make test-long"]
fn what_is_kept_survives_a_reboot_a_reload_and_a_hotplug() {
    if netsilo_lab::skip().unwrap() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine { disk: folder.path().join("disk"), _folder: folder };
    let lab = machine.boot(&[]);
    lab.sh(&format!("cp {NETSILO} {PROGRAM}")).unwrap();
    for (file, text) in UNITS {
        let text = text.replace("/usr/local/bin/netsilo", PROGRAM);
        lab.sh(&format!("mkdir -p $(dirname /etc/{file}); cat >/etc/{file} <<'END'\n{text}\nEND"))
            .unwrap();
    }
    lab.sh("systemctl daemon-reload; udevadm control --reload").unwrap();
    let apply = |lab: &Lab, goal: &str| {
        let apply = format!("{PROGRAM} apply {goal} -i 100ms --yes --confirm-within 10m");
        lab.sh(&format!("{apply} && {PROGRAM} confirm && {PROGRAM} keep && sync")).unwrap()
    };
    let text = apply(&lab, "--no-irqs --rps 0-1");
    assert!(text.contains("netsilo-keep.service is enabled"), "{text}");
    assert_eq!(rps(&lab), ["3", "3"]);

    // the driver is loaded again: it makes another netdev of the same name
    lab.sh("device=$(basename $(readlink -f /sys/class/net/eth1/device))
            cd /sys/bus/virtio/drivers/virtio_net; echo $device >unbind; echo $device >bind
            until ip link set eth1 up; do sleep 0.1; done")
        .unwrap();
    waits_for_rps(&lab, "the new netdev has its settings");

    lab.unplug(1).unwrap();
    until("eth1 is gone", || rps(&lab).len(), |netdevs| *netdevs == 1).unwrap();
    lab.plug(1).unwrap();
    lab.sh("until ip link set eth1 up; do sleep 0.1; done").unwrap();
    waits_for_rps(&lab, "the netdev that was plugged has its settings");
    drop(lab);

    let lab = machine.boot(&[]);
    waits_for_rps(&lab, "the boot has written them");
    drop(lab);

    let lab = machine.boot(&["netsilo=off"]);
    assert_eq!(unit(&lab, "is-enabled", "netsilo-keep"), "enabled");
    until(
        "the boot has ended",
        || unit(&lab, "is-active", "multi-user.target"),
        |it| it == "active",
    )
    .unwrap();
    let skipped = unit(&lab, "show -P ConditionResult", "netsilo-keep");
    assert_eq!((skipped.as_str(), rps(&lab)), ("no", vec![String::new(), String::new()]));
    drop(lab);

    // a goal that follows the load: the daemon's
    let lab = machine.boot(&[]);
    waits_for_rps(&lab, "the boot has written them again");
    assert_eq!(lab.sh(&format!("{PROGRAM} undo")).map(|_| rps(&lab)).unwrap(), ["", ""]);
    let text = apply(&lab, "-a near-consumer --rps 0-1");
    assert!(text.contains("netsilo.service is enabled"), "{text}");
    drop(lab);
    let lab = machine.boot(&[]);
    waits_for_rps(&lab, "the daemon writes the goal");
    assert_eq!(unit(&lab, "is-active", "netsilo"), "active");
    let text = lab.sh(&format!("{PROGRAM} keep --off")).unwrap();
    assert!(text.contains("netsilo.service is disabled"), "{text}");
    assert_eq!(unit(&lab, "is-enabled", "netsilo"), "disabled");
    assert_eq!(lab.sh("find /etc/netsilo -type f").unwrap(), "");
}
