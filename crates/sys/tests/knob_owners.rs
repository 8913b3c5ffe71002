//! Programs that write the same knobs, found in synthetic `/proc` trees.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::Path;

use netsilo_model::snapshot::host::OwnedKnob::{IrqAffinity, LaterDevices, Sysctls};
use netsilo_model::snapshot::host::{OwnedKnob, Snapshot};
use netsilo_sys::files::root::Root;
use netsilo_sys::snapshot;

fn put(dir: &Path, path: &str, contents: &str) {
    let at = dir.join(path);
    fs::create_dir_all(at.parent().unwrap()).unwrap();
    fs::write(at, contents).unwrap();
}

/// A host with one CPU and these processes: pid, comm, command line.
fn host(processes: &[(u32, &str, &str)], files: &[(&str, &str)]) -> Snapshot {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "sys/devices/system/cpu/online", "0\n");
    for (pid, comm, cmdline) in processes {
        put(dir.path(), &format!("proc/{pid}/comm"), &format!("{comm}\n"));
        put(dir.path(), &format!("proc/{pid}/cmdline"), &cmdline.replace(' ', "\0"));
    }
    for (path, contents) in files {
        put(dir.path(), path, contents);
    }
    let saved = tempfile::tempdir().unwrap();
    let (root, recorder) = Root::at(dir.path()).unwrap().recording(saved.path()).unwrap();
    let read = snapshot(&root).unwrap();
    recorder.finish().unwrap();
    assert_eq!(snapshot(&Root::at(saved.path()).unwrap()).unwrap().knob_owners, read.knob_owners);
    read
}

fn found(processes: &[(u32, &str, &str)]) -> Vec<(String, u32, Vec<OwnedKnob>)> {
    host(processes, &[])
        .knob_owners
        .into_iter()
        .map(|writer| (writer.name, writer.pid, writer.writes))
        .collect()
}

#[test]
fn known_programs_are_reported_with_the_knobs_they_write() {
    let found = found(&[
        (7, "irqbalance", "/usr/sbin/irqbalance --foreground"),
        (8, "crio", "/usr/bin/crio"),
        (9, "google_guest_ag", "/usr/bin/google_guest_agent"),
        (11, "bpftune", "/usr/sbin/bpftune"),
        (10, "sshd", "sshd: irqbalance"),
        (12, "nri-resource-po", "/bin/nri-resource-policy-balloons"),
        (13, "nri-resource-po", "/bin/nri-resource-policy-topology-aware"),
        (14, "nri-memory-qos", "/bin/nri-memory-qos -idx 40"),
    ]);
    let expected = [
        ("bpftune".to_owned(), 11, vec![Sysctls]),
        ("cri-o".to_owned(), 8, vec![LaterDevices]),
        ("google guest agent".to_owned(), 9, vec![LaterDevices]),
        ("irqbalance".to_owned(), 7, vec![IrqAffinity]),
        ("nri-plugins".to_owned(), 12, vec![LaterDevices]),
        ("nri-plugins".to_owned(), 13, vec![LaterDevices]),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_script_is_recognised_by_its_name_after_the_interpreter() {
    let found = found(&[
        (20, "python3", "/usr/bin/python3 -Es /usr/sbin/tuned -l -P"),
        (21, "python3.11", "/usr/bin/python3.11 /opt/perftune.py --tune net"),
        (22, "python3", "python3 -c print('tuned')"),
        (23, "vim", "vim /usr/sbin/tuned"),
        (24, "set_irq_affinit", "/bin/bash /usr/local/bin/set_irq_affinity eth0"),
        (25, "bash", "bash ./set_irq_affinity eth0"),
        (26, "ucode", "ucode /usr/libexec/network/packet-steering.uc 1"),
        (27, "ecs_mq_rps_rfs", "/bin/bash /sbin/ecs_mq_rps_rfs"),
    ]);
    let names: Vec<(&str, u32)> =
        found.iter().map(|(name, pid, _)| (name.as_str(), *pid)).collect();
    assert_eq!(
        names,
        [
            ("ecs_mq_rps_rfs", 27),
            ("packet-steering.uc", 26),
            ("perftune.py", 21),
            ("set_irq_affinity", 24),
            ("set_irq_affinity", 25),
            ("tuned", 20)
        ]
    );
}

#[test]
fn scx_layered_writes_only_with_its_option() {
    assert_eq!(found(&[(5, "scx_layered", "scx_layered f:/etc/layers.json")]), []);
    assert_eq!(
        found(&[(5, "scx_layered", "scx_layered --netdev-irq-balance f:/etc/layers.json")]).len(),
        1
    );
}

#[test]
fn programs_write_the_settings_of_their_files() {
    let rules =
        "SUBSYSTEM==\"net\", DRIVERS==\"mana\", RUN+=\"/usr/sbin/ethtool -C %k rx-cqe-frames 8\"\n";
    let table = [
        (
            "systemd-udevd",
            "etc/systemd/network/1.link",
            "[Link]\nReceivePacketSteeringCPUMask=0-3\n",
        ),
        ("(udev-worker)", "run/systemd/network/1.link", "[Link]\nCombinedChannels=4\n"),
        ("systemd-udevd", "usr/lib/udev/rules.d/10-mana-cqe.rules", rules),
        (
            "NetworkManager",
            "etc/NetworkManager/system-connections/a.nmconnection",
            "[ethtool]\nring-rx=512\n",
        ),
        (
            "netifd",
            "usr/libexec/network/packet-steering.uc",
            "glob(`/sys/class/net/${dev}/queues/${rx_queue}/rps_cpus`);\n",
        ),
        (
            "netifd",
            "etc/hotplug.d/net/20-smp-packet-steering",
            "\tset_hex_val \"$q/rps_cpus\" \"$PROC_MASK\"\n",
        ),
    ];
    for (comm, path, text) in table {
        let found = host(&[(300, comm, comm)], &[(path, text)]).knob_owners;
        let [owner] = &found[..] else { panic!("{path}: {found:?}") };
        assert_eq!((owner.pid, &owner.writes[..]), (300, &[LaterDevices][..]), "{path}");
        assert!(owner.name.ends_with(&format!(" (/{path})")), "{}", owner.name);
        assert_eq!(host(&[], &[(path, text)]).knob_owners, [], "{path}: nobody runs it");
    }
    let others = [
        ("systemd-udevd", "usr/lib/systemd/network/99-default.link", "[Link]\nNamePolicy=keep\n"),
        (
            "systemd-udevd",
            "etc/udev/rules.d/70-a.rules",
            "# ethtool -C\nRUN+=\"/sbin/ethtool -s %k wol g\"\n",
        ),
        (
            "NetworkManager",
            "etc/NetworkManager/system-connections/a.nmconnection",
            "[wifi-security]\npsk=ring-rx\n",
        ),
    ];
    for (comm, path, text) in others {
        assert_eq!(host(&[(300, comm, comm)], &[(path, text)]).knob_owners, [], "{path}");
    }
}

#[test]
fn an_empty_host_has_gaps_and_no_error() {
    let read = host(&[], &[]);
    assert_eq!(read.topology.online.to_string(), "0");
    let what: Vec<&str> = read.gaps.iter().map(|gap| gap.what.as_str()).collect();
    assert!(what.contains(&"/proc/interrupts") && what.contains(&"/sys/class/net"), "{what:?}");
}
