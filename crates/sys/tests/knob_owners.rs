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
    ]);
    let expected = [
        ("bpftune".to_owned(), 11, vec![Sysctls]),
        ("cri-o".to_owned(), 8, vec![LaterDevices]),
        ("google guest agent".to_owned(), 9, vec![LaterDevices]),
        ("irqbalance".to_owned(), 7, vec![IrqAffinity]),
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
    ]);
    let names: Vec<(&str, u32)> =
        found.iter().map(|(name, pid, _)| (name.as_str(), *pid)).collect();
    assert_eq!(
        names,
        [("perftune.py", 21), ("set_irq_affinity", 24), ("set_irq_affinity", 25), ("tuned", 20)]
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
fn udev_writes_the_settings_of_link_files() {
    let link = (
        "etc/systemd/network/10-rps.link",
        "[Match]\nDriver=igb\n[Link]\nReceivePacketSteeringCPUMask=0-3\n",
    );
    let other = ("usr/lib/systemd/network/99-default.link", "[Link]\nNamePolicy=keep\n");
    let udev = (300, "systemd-udevd", "/usr/lib/systemd/systemd-udevd");
    let knob_owners = host(&[udev], &[link, other]).knob_owners;
    assert_eq!(knob_owners.len(), 1);
    assert_eq!((knob_owners[0].pid, &knob_owners[0].writes[..]), (300, &[LaterDevices][..]));
    assert!(knob_owners[0].name.contains("10-rps.link"));
    assert_eq!(host(&[], &[link]).knob_owners, []);
}

#[test]
fn an_empty_host_has_gaps_and_no_error() {
    let read = host(&[], &[]);
    assert_eq!(read.topology.online.to_string(), "0");
    let what: Vec<&str> = read.gaps.iter().map(|gap| gap.what.as_str()).collect();
    assert!(what.contains(&"/proc/interrupts") && what.contains(&"/sys/class/net"), "{what:?}");
}
