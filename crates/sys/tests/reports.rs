//! Reports of other collectors: a sosreport and folders of command outputs.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy lets only functions marked as tests do so"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use netsilo_model::derive::rates::rates;
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::ids::Irq;
use netsilo_model::snapshot::host::{Snapshot, Writable};
use netsilo_model::snapshot::netdev::NetdevIdentity;
use netsilo_model::snapshot::observation::Observation;
use netsilo_sys::bundle::{self, Bundle};
use tempfile::TempDir;

const SOSREPORT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/sosreport");

fn copied() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("sosreport");
    assert!(Command::new("cp").arg("-a").arg(SOSREPORT).arg(&copy).status().unwrap().success());
    (dir, copy)
}

fn why<'a>(snapshot: &'a Snapshot, what: &str) -> Option<&'a str> {
    Some(snapshot.gaps.iter().find(|gap| gap.what == what)?.why.as_str())
}

#[test]
fn a_sosreport_is_a_snapshot_and_what_it_lacks_is_named() {
    let Observation { before, after, attribution } = bundle::open(SOSREPORT).unwrap();
    assert_eq!((after.machine.hostname.as_str(), after.at), ("web1", Duration::from_secs(4000)));
    assert_eq!(after.topology.online.to_string(), "0-1");
    assert!(after.topology.cpus[&CpuId(0)].llc.contains(CpuId(1)), "from lscpu -ae");
    let nic = after.netdevs.named("ens1f0").unwrap();
    assert_eq!(nic.driver.as_deref(), Some("ixgbe"));
    assert_eq!((nic.mtu, nic.node.map(|node| node.0)), (1500, Some(0)));
    let irqs: Vec<_> = nic.rx_queues.iter().map(|rx| rx.irq.as_ref().unwrap().to).collect();
    assert_eq!(irqs, [Irq(25), Irq(26)], "two channels in use, of 64 allocated queues");
    assert!(nic.rx_queues.iter().all(|rx| rx.rps_cpus.is_none()));
    let ethtool = nic.ethtool.as_ref().unwrap();
    assert_eq!(ethtool.rss.reason(), Some("not recorded: ethtool -x ens1f0"));
    assert_eq!(ethtool.link.value().unwrap().speed_mbps, Some(10_000));
    let rss = why(&after, "RSS indirection table of ens1f0");
    assert_eq!(rss, Some("not recorded: ethtool -x ens1f0"));
    assert!(why(&after, "RPS and XPS masks").unwrap().starts_with("not recorded: grep"));
    assert!(why(&after, "present rates").unwrap().contains("totals since boot (1.1 hours)"));
    let rates = rates(&before, &after);
    assert_eq!((rates.elapsed, attribution.elapsed), (after.at, after.at));
    assert_eq!(rates.irqs[&Irq(25)].total_per_s, 75.0);
    assert_eq!(rates.cpus[&CpuId(0)].softnet.unwrap().dropped_per_s, Some(7.0 / 4000.0));
    assert_eq!(rates.netdevs["ens1f0"]["rx_packets"], 95.0);
}

#[test]
fn the_archive_says_the_same_as_the_folder() {
    let archive = format!("{SOSREPORT}.tar.xz");
    assert_eq!(bundle::open(archive).unwrap(), bundle::open(SOSREPORT).unwrap());
}

#[test]
fn two_reports_of_one_boot_give_the_rates_between_them() {
    let (_dir, later) = copied();
    let change = |file: &str, old: &str, new: &str| {
        let path = later.join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(old), "{file}");
        fs::write(path, text.replace(old, new)).unwrap();
    };
    change("proc/stat", "310000", "320000");
    change("proc/interrupts", "300000", "301000");
    let paths = [Path::new(SOSREPORT), &later];
    let Observation { before, after, .. } = Bundle::open(&paths).unwrap().whole().unwrap();
    let between = rates(&before, &after);
    assert_eq!(between.elapsed, Duration::from_secs(100));
    assert_eq!(between.irqs[&Irq(25)].total_per_s, 10.0);
    assert_eq!(between.cpus[&CpuId(0)].shares.unwrap().idle, 1.0);
    assert_eq!(why(&after, "present rates"), None);
    let error = |paths: &[&Path]| Bundle::open(paths).unwrap_err().to_string();
    assert!(error(&[&later, Path::new(SOSREPORT)]).contains("older than the first"));
    assert!(error(&[&later, &later]).contains("older"), "the same time");
    change("proc/sys/kernel/random/boot_id", "6f", "7f");
    assert!(error(&paths).contains("different boots of web1"));
    change("sos_commands/kernel/sysctl_-a", "web1", "web2");
    assert!(error(&paths).contains("different hosts: web1 and web2"));
    assert!(error(&[&later, &later, &later]).contains("--from takes"));
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/igb-6.12.tar.zst");
    assert!(error(&[Path::new(fixture), &later]).contains("--from takes"));
}

#[test]
fn a_plain_folder_has_what_its_names_say() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    let error = || bundle::open(dir.path()).unwrap_err().to_string();
    assert!(error().contains("neither a netsilo bundle nor a sosreport"), "{}", error());
    write(
        "proc_interrupts.txt",
        "     CPU0  CPU1\n 24:  90     0  PCI-MSI 1-edge      virtio0-input.0\n",
    );
    assert!(error().contains("/proc/stat and /proc/uptime"), "{}", error());
    write("uptime", "100.00 150.00\n");
    let link = "2: eth0: <UP,LOWER_UP> mtu 1500 qdisc mq\n    link/ether 02:00:00:00:00:01 \
        numtxqueues 4 numrxqueues 4 parentbus virtio parentdev virtio0\n";
    write("ip -d link", link);
    let after = bundle::open(dir.path()).unwrap().after;
    assert_eq!(after.topology.online.to_string(), "0-1", "the header of interrupts");
    let lacks = why(&after, "rx queues of eth0");
    assert_eq!(lacks, Some("not recorded: ethtool -l eth0"));
    assert!(after.netdevs[0].rx_queues.is_empty() && after.netdevs[0].statistics.is_empty());
    assert!(why(&after, "where interrupts may arrive").is_some());
    let irq = &after.irqs[&Irq(24)];
    assert_eq!((irq.requested.as_ref(), &irq.writable), (None, &Writable::Yes));
    assert_eq!(why(&after, "/proc/softirqs"), Some("not recorded: cat /proc/softirqs"));
    write("ethtool-n-eth0.txt", "1 RX rings available\nTotal 0 rules\n");
    write(
        "ethtool -i eth0",
        "driver: virtio_net\nbus-info: 0000:00:03.0\nsupports-register-dump: no\n",
    );
    write("grep_sys", "/sys/class/net/eth0/queues/rx-0/rps_cpus:2\n/etc/passwd:x\n");
    write("grep_irq", "/proc/irq/24/smp_affinity_list:0-1\n");
    let after = bundle::open(dir.path()).unwrap().after;
    let rx = &after.netdevs[0].rx_queues[0];
    assert_eq!(rx.rps_cpus.as_ref().unwrap().to_string(), "1");
    assert_eq!(rx.irq.as_ref().unwrap().to, Irq(24), "virtio0 is its device");
    assert_eq!(after.irqs[&Irq(24)].requested.as_ref().unwrap().to_string(), "0-1");
}

#[test]
fn a_small_text_with_many_netdevs_and_queues_takes_no_more_than_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write("uptime", "100.00 150.00\n");
    let veth = |n: u32| {
        format!(
            "{n}: v{n}: <UP> mtu 1500\n    link/ether 02:00:00:00:00:01\n    veth numtxqueues \
             4096 numrxqueues 4096\n"
        )
    };
    write("ip_-d_link", &(1..=250).map(veth).collect::<String>());
    let after = bundle::open(dir.path()).unwrap().after;
    assert_eq!(after.netdevs.iter().map(|it| it.rx_queues.len()).sum::<usize>(), 250);
    // NICs, whose drivers have 1024 queues each
    for n in 1..=250 {
        let rings = "1024 RX rings available\nTotal 0 rules\n";
        write(&format!("ethtool_-n_v{n}"), rings);
        write(
            &format!("ethtool_-l_v{n}"),
            "Channel parameters:\nPre-set maximums:\nRX: 1024\n\
            TX: 1024\nOther: 0\nCombined: 0\nCurrent hardware settings:\nRX: 1024\nTX: 1024\n\
            Other: 0\nCombined: 0\n",
        );
    }
    let error = bundle::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("too many files or netdevs"), "{error}");
    write("ip_-d_link", &(1..=20_001).map(veth).collect::<String>());
    let after = bundle::open(dir.path()).unwrap().after;
    let why = why(&after, "ip_-d_link").unwrap();
    assert_eq!(why, "line 60001 column 1: more than 20000 netdevs");
}

#[test]
fn kernel_threads_of_ps_are_known_and_their_time_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write("uptime", "100.00 150.00\n");
    let names = ["napi/eth0-8193", "irq/24-eth0", "backlog_napi/1", "ksoftirqd/0", "kthreadd"];
    let line = |(pid, name): (usize, &&str)| format!("root {pid} 0.0 [{name}]\n");
    let threads: String = names.iter().enumerate().map(line).collect();
    write("ps_aux", &format!("USER PID %CPU COMMAND\n{threads}root 9 0.0 napi/eth0-9\n"));
    let after = bundle::open(dir.path()).unwrap().after;
    let comms: Vec<_> = after.net_threads.values().map(|thread| thread.comm.as_str()).collect();
    assert_eq!(comms, names[..4]);
    assert!(after.net_threads.values().all(|it| it.time.is_none() && !it.is_movable()));
    let what = "CPU time of kernel threads that receive";
    assert_eq!(why(&after, what), Some("not recorded: grep -H . /proc/[0-9]*/schedstat"));
    write("grep_schedstat", "/proc/0/schedstat:7000 8 9\n");
    let Observation { before, after, .. } = bundle::open(dir.path()).unwrap();
    let run = |snapshot: &Snapshot| snapshot.net_threads[&0].time.map(|time| time.run_ns);
    assert_eq!((run(&before), run(&after), why(&after, what)), (Some(0), Some(7000), None));
}

#[test]
fn a_device_path_that_was_not_recorded_is_that_of_the_same_device() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write("uptime", "100.00 150.00\n");
    write(
        "ip_-d_link",
        "2: eth0: <UP> mtu 1500\n    link/ether 02:00:00:00:00:01 parentdev 0000:3b:00.0\n",
    );
    let after = bundle::open(dir.path()).unwrap().after;
    let mut netdev = after.netdevs[0].clone();
    let identity = NetdevIdentity::from_netdev(&netdev);
    assert_eq!(identity.device_path.as_deref(), Some("/devices/unrecorded/0000:3b:00.0"));
    for (path, is_it) in [
        ("/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0", true),
        ("/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1", false),
    ] {
        netdev.device_path = Some(path.into());
        assert_eq!(identity.is(&netdev), is_it, "{path}");
    }
    assert!(!NetdevIdentity::from_netdev(&netdev).is(&after.netdevs[0]));
}

/// Cuts and garbles each file: the report is refused, or what was not read is named.
#[test]
fn a_file_that_was_cut_or_garbled_is_named() {
    let (_dir, copy) = copied();
    let mut files = Vec::new();
    let mut open = vec![copy.clone()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => open.push(entry.path()),
                kind if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    assert!(files.len() > 40, "{}", files.len());
    let known = bundle::open(&copy).unwrap().after.gaps;
    for path in files {
        let whole = fs::read(&path).unwrap();
        let name = path.strip_prefix(&copy).unwrap().display().to_string();
        // one value: a cut number is another number
        // names and settings, in which any character may stand
        let words = ["boot_id", "hostname", "sysctl_-a", "uname_-a", "-k_ens1f0", "-i_ens1f0"];
        let has_words = words.iter().any(|end| name.ends_with(end));
        let is_value = whole.iter().filter(|byte| **byte == b'\n').count() < 2;
        let garbled = String::from_utf8_lossy(&whole)
            .replace(|c: char| c.is_ascii_digit(), "\u{fffd}")
            .into_bytes();
        let cuts = [1, 2, 5].map(|part| whole[..whole.len() / 7 * part].to_vec());
        let last = whole[..whole.len().saturating_sub(2)].to_vec();
        for text in cuts.into_iter().chain([last, garbled.clone()]) {
            let is_cut = !text.is_empty() && !text.ends_with(b"\n");
            fs::write(&path, &text).unwrap();
            match bundle::open(&copy) {
                Err(error) => assert!(!error.to_string().is_empty()),
                Ok(Observation { after, .. }) if is_cut && !is_value => {
                    let found = after.gaps.iter().find(|gap| gap.what == name);
                    let why = &found.unwrap_or_else(|| panic!("{name}: {:?}", after.gaps)).why;
                    assert!(why.starts_with("line "), "{name}: {why}");
                }
                Ok(Observation { after, .. }) if text == garbled && text != whole && !has_words => {
                    assert!(after.gaps.iter().any(|gap| !known.contains(gap)), "{name}");
                }
                Ok(_) => {}
            }
        }
        fs::write(&path, whole).unwrap();
    }
}
