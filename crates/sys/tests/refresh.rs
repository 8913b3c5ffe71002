//! A refreshed snapshot equals a full read, except for data that is not refreshed; undetectable
//! changes force a full read.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use netsilo_model::derive::rates::rates;
use netsilo_model::machine::cpuset::CpuSet;
use netsilo_model::machine::ids::Irq;
use netsilo_model::machine::reading::Reading;
use netsilo_model::snapshot::host::Snapshot;
use netsilo_sys::files::root::Root;
use netsilo_sys::observe::{CountingMode, Observer};
use netsilo_sys::read::refresh::Refresher;
use netsilo_sys::snapshot;

#[path = "trees/big_host.rs"]
mod big_host;

const BIG: big_host::BigHost = big_host::BigHost { cpus: 24, irqs: 30, netdevs: 2, queues: 4 };

struct Host {
    dir: tempfile::TempDir,
    root: Root,
}

impl Host {
    fn made_up() -> Self {
        let dir = tempfile::tempdir().unwrap();
        BIG.write(dir.path()).unwrap();
        let host = Self { root: Root::at(dir.path()).unwrap(), dir };
        host.put("proc/uptime", "100.0 0\n");
        host.put("sys/class/net/eth0/statistics/rx_crc_errors", "3\n");
        for folder in ["queues/rx-0", "queues/tx-0", "statistics"] {
            fs::create_dir_all(host.dir.path().join("sys/class/net/veth0").join(folder)).unwrap();
        }
        for (file, text) in [
            ("ifindex", "9\n"),
            ("flags", "0x1003\n"),
            ("queues/rx-0/rps_cpus", "0\n"),
            ("statistics/rx_packets", "7\n"),
            ("statistics/rx_bytes", "700\n"),
        ] {
            host.put(&format!("sys/class/net/veth0/{file}"), text);
        }
        host
    }

    fn put(&self, path: &str, text: &str) {
        fs::write(self.dir.path().join(path), text).unwrap();
    }

    fn edit(&self, path: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.dir.path().join(path)).unwrap();
        assert!(text.contains(from), "{path}: {text}");
        self.put(path, &text.replacen(from, to, 1));
    }

    /// Changes everything that changes without an announcement, and the interrupts' settings, as
    /// other programs may do.
    fn a_second_later(&self) {
        self.put("proc/uptime", "101.0 0\n");
        self.edit("proc/stat", "cpu5 1000000000 0 1000000000", "cpu5 1000000020 0 1000000030");
        self.edit("proc/softirqs", " NET_RX:          0", " NET_RX:         77");
        self.edit("proc/net/softnet_stat", "0000000f", "000000ff");
        self.edit("sys/kernel/irq/31/per_cpu_count", ",1015,", ",1016,");
        self.edit("proc/interrupts", "       1015", "       1016");
        self.put("proc/irq/31/smp_affinity_list", "9\n");
        self.put("proc/irq/31/effective_affinity_list", "9\n");
        self.put("sys/class/net/eth1/carrier", "0\n");
        self.put("sys/class/net/eth1/flags", "0x1002\n");
        self.put("sys/class/net/eth1/statistics/rx_packets", "5001\n");
        self.put("sys/class/net/veth0/statistics/rx_packets", "17\n");
        self.put("sys/class/net/veth0/statistics/rx_bytes", "1700\n");
    }
}

/// A full read, without the data that the refresher does not read.
fn without_the_rest(mut whole: Snapshot) -> Snapshot {
    whole.audit = None;
    let netdevs = || whole.netdevs.iter();
    let queues =
        netdevs().flat_map(|dev| dev.rx_queues.iter().filter_map(|rx| Some(rx.irq.as_ref()?.to)));
    let sends =
        netdevs().flat_map(|dev| dev.tx_queues.iter().filter_map(|tx| Some(tx.irq.as_ref()?.to)));
    let wanted: Vec<Irq> =
        netdevs().flat_map(|dev| dev.irqs.iter().copied()).chain(queues).chain(sends).collect();
    let others = whole.irqs.iter().filter(|(irq, _)| !wanted.contains(irq));
    for cpu in others.filter_map(|(_, state)| state.effective.as_ref()?.single()) {
        *whole.other_vectors.entry(cpu).or_default() += 1;
    }
    whole.irqs.retain(|irq, _| wanted.contains(irq));
    whole.arch_interrupts.values_mut().for_each(|row| row.clear());
    for counters in whole.cpus.values_mut() {
        let net = counters.softirqs.iter().filter(|(name, _)| name.starts_with("NET_"));
        counters.softirqs = net.map(|(name, count)| (Arc::clone(name), count)).collect();
    }
    const SHOWN: [&str; 8] = [
        "rx_packets",
        "rx_bytes",
        "tx_packets",
        "tx_bytes",
        "rx_dropped",
        "tx_dropped",
        "rx_missed_errors",
        "rx_errors",
    ];
    for netdev in whole.netdevs.iter_mut() {
        let hardware = netdev.device_path.is_some();
        let counts_queue = netdev.rx_queues.len() == 1 && netdev.name != "lo";
        netdev.statistics.retain(|name, _| {
            if hardware {
                SHOWN.contains(&name.as_str())
            } else {
                counts_queue && name == "rx_packets"
            }
        });
        if let Some(ethtool) = &mut netdev.ethtool {
            ethtool.stats = Reading::Absent("not read by a refresh".into());
        }
    }
    whole
}

#[test]
fn a_refreshed_snapshot_equals_a_full_read() {
    for by_table in [false, true] {
        let host = Host::made_up();
        if by_table {
            fs::remove_dir_all(host.dir.path().join("sys/kernel/irq")).unwrap();
            fs::create_dir_all(host.dir.path().join("sys/kernel/irq/31")).unwrap();
            host.put("sys/kernel/irq/31/per_cpu_count", ",1015,");
        }
        let mut refresher = Refresher::default();
        let first = refresher.first(&host.root).unwrap();
        assert_eq!(first, without_the_rest(snapshot(&host.root).unwrap()));
        host.a_second_later();
        let second = refresher.next(&host.root, &first).unwrap();
        assert_eq!(second, without_the_rest(snapshot(&host.root).unwrap()));
        assert_eq!(refresher.full_reads(), 1);
        assert_eq!(second.irqs[&Irq(31)].requested, Some(CpuSet::parse_list("9").unwrap()));
        assert!(!second.netdevs[1].up && second.netdevs[1].carrier == Some(false));
        assert!(first != second && first.topology == second.topology);
    }
}

#[test]
fn data_that_is_not_refreshed_has_no_rate() {
    let host = Host::made_up();
    let mut refresher = Refresher::default();
    let first = refresher.first(&host.root).unwrap();
    host.a_second_later();
    let second = refresher.next(&host.root, &first).unwrap();
    let rates = rates(&first, &second);
    assert_eq!(rates.elapsed, Duration::from_secs(1));
    assert_eq!(rates.irqs[&Irq(31)].total_per_s, 1.0);
    assert_eq!(rates.irqs.len(), 8);
    assert!(!rates.irqs.contains_key(&Irq(40)));
    assert!(rates.cpus.values().all(|cpu| cpu.cal_per_s.is_none() && cpu.net_rx_per_s.is_some()));
    assert_eq!(rates.netdevs["eth1"]["rx_packets"], 5000.0);
    assert_eq!(rates.netdevs["eth0"].get("rx_crc_errors"), None);
    // a netdev without hardware: the packets of its one queue
    assert_eq!(rates.netdevs["veth0"], [("rx_packets".to_owned(), 10.0)].into());
}

#[test]
fn a_refresh_of_a_captured_host_changes_nothing() {
    for name in
        ["virtio-6.1", "igb-6.12", "vmxnet3-e1000e-7.2", "synthetic-ice", "synthetic-mlx5_core"]
    {
        let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures")).join(name);
        let root = Root::at(dir).unwrap();
        let mut refresher = Refresher::default();
        let first = refresher.first(&root).unwrap();
        let second = refresher.next(&root, &first).unwrap();
        assert_eq!(refresher.full_reads(), 1, "{name}");
        assert_eq!(second, without_the_rest(snapshot(&root).unwrap()), "{name}");
    }
}

#[test]
fn this_machine_refreshes() {
    let root = Root::live();
    let mut refresher = Refresher::default();
    let first = refresher.first(&root).unwrap();
    let second = refresher.next(&root, &first).unwrap();
    assert_eq!(refresher.full_reads(), 1);
    assert!(second.at > first.at);
    let names = |snapshot: &Snapshot| {
        snapshot.netdevs.iter().map(|dev| dev.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!((names(&second), second.topology), (names(&first), first.topology));
}

#[test]
fn changes_that_a_refresh_cannot_apply_force_a_full_read() {
    type Edit = fn(&Host);
    let edits: [(&str, Edit); 6] = [
        ("an interrupt of another name", |host| {
            host.put("sys/kernel/irq/31/actions", "ice-eth9-TxRx-1\n");
            host.edit("proc/interrupts", "ice-eth0-TxRx-1\n", "ice-eth9-TxRx-1\n");
        }),
        ("an interrupt that has gone", |host| {
            let kept = |line: &&str| !line.starts_with("  31:");
            let text = fs::read_to_string(host.dir.path().join("proc/interrupts")).unwrap();
            host.put(
                "proc/interrupts",
                &(text.lines().filter(kept).collect::<Vec<_>>().join("\n") + "\n"),
            );
            // a tree cannot reproduce the errors of a cached file whose object is gone, so its
            // actions change instead
            host.put("sys/kernel/irq/31/actions", "\n");
        }),
        ("a netdev that has gone", |host| {
            fs::remove_file(host.dir.path().join("sys/class/net/eth1")).unwrap()
        }),
        ("a netdev of another name", |host| {
            let net = |name: &str| -> PathBuf { host.dir.path().join("sys/class/net").join(name) };
            fs::rename(net("eth1"), net("lan1")).unwrap();
        }),
        ("another netdev of the same name", |host| {
            let link = host.dir.path().join("sys/class/net/eth1");
            let target = fs::read_link(&link).unwrap();
            // both exist for a moment, so that they have different inodes
            std::os::unix::fs::symlink(target, link.with_extension("new")).unwrap();
            fs::rename(link.with_extension("new"), link).unwrap();
        }),
        ("a cpu that went offline", |host| {
            host.put("sys/devices/system/cpu/online", "0-22\n");
        }),
    ];
    for (what, edit) in edits {
        let host = Host::made_up();
        let mut refresher = Refresher::default();
        let first = refresher.first(&host.root).unwrap();
        edit(&host);
        let second = refresher.next(&host.root, &first).unwrap();
        assert_eq!(refresher.full_reads(), 2, "{what}");
        assert_eq!(second, without_the_rest(snapshot(&host.root).unwrap()), "{what}");
        refresher.next(&host.root, &second).unwrap();
        assert_eq!(refresher.full_reads(), 2, "{what}, once");
    }
}

#[test]
fn an_effective_affinity_is_read_again_if_it_can_have_changed() {
    let host = Host::made_up();
    let effective = |snapshot: &Snapshot| snapshot.irqs[&Irq(31)].effective.clone().unwrap();
    let put = |cpus: &str| host.put("proc/irq/31/effective_affinity_list", &format!("{cpus}\n"));
    let mut refresher = Refresher::default();
    let mut last = refresher.first(&host.root).unwrap();
    let mut next = |last: &mut Snapshot| {
        *last = refresher.next(&host.root, last).unwrap();
        effective(last).to_string()
    };
    assert_eq!(next(&mut last), "1");
    put("9");
    assert_eq!(next(&mut last), "1", "it has not come since");
    host.edit("sys/kernel/irq/31/per_cpu_count", ",1015,", ",1016,");
    assert_eq!(next(&mut last), "9", "it has come elsewhere");
    put("8");
    host.put("proc/uptime", "161.0 0\n");
    assert_eq!(next(&mut last), "8", "a minute later");
    host.put("proc/irq/31/smp_affinity_list", "3-4\n");
    assert_eq!(next(&mut last), "8");
    put("3");
    assert_eq!(next(&mut last), "3", "the request is not in effect yet");
}

#[test]
fn rarely_written_settings_are_refreshed_each_minute() {
    let host = Host::made_up();
    let mut refresher = Refresher::default();
    let first = refresher.first(&host.root).unwrap();
    host.put("sys/class/net/eth0/queues/rx-3/rps_cpus", "3\n");
    host.put("proc/uptime", "159.0 0\n");
    let soon = refresher.next(&host.root, &first).unwrap();
    assert_eq!(soon.netdevs, first.netdevs);
    host.put("proc/uptime", "160.0 0\n");
    let later = refresher.next(&host.root, &soon).unwrap();
    assert_eq!(later.netdevs[0].rx_queues[3].rps_cpus, Some(CpuSet::parse_list("0-1").unwrap()));
    host.edit("netdev_genl.json", r#""owners":[]"#, r#""owners":["xsk"]"#);
    host.put("proc/uptime", "221.0 0\n");
    let held = refresher.next(&host.root, &later).unwrap();
    assert_eq!(
        (held.netdevs[0].rx_queues[0].leased.as_deref(), refresher.full_reads()),
        (Some("AF_XDP"), 2)
    );
}

#[test]
fn a_program_that_moves_interrupts_is_reported_at_once() {
    let host = Host::made_up();
    fs::create_dir_all(host.dir.path().join("proc/77")).unwrap();
    let mut refresher = Refresher::default();
    let first = refresher.first(&host.root).unwrap();
    host.put("proc/77/comm", "irqbalance\n");
    host.put("proc/77/cmdline", "irqbalance\0");
    let unmoved = refresher.next(&host.root, &first).unwrap();
    assert!(unmoved.knob_owners.is_empty());
    host.put("proc/irq/31/smp_affinity_list", "9\n");
    let moved = refresher.next(&host.root, &unmoved).unwrap();
    assert_eq!(
        moved.knob_owners.iter().map(|it| (it.name.as_str(), it.pid)).collect::<Vec<_>>(),
        [("irqbalance", 77)]
    );
}

#[test]
fn an_observer_refreshes_until_it_is_invalidated() {
    let host = Host::made_up();
    let mut observer = Observer::start_light(&host.root, CountingMode::WithoutBpf).unwrap();
    let mut next = |change: &dyn Fn(&mut Observer)| {
        change(&mut observer);
        observer.next(&host.root, Duration::ZERO, |_| {}).unwrap()
    };
    let seen = next(&|_| host.a_second_later());
    assert_eq!(seen.after.irqs.len(), 8);
    assert_eq!(rates(&seen.before, &seen.after).irqs[&Irq(31)].total_per_s, 1.0);
    host.put("sys/class/net/eth0/mtu", "9000\n");
    let seen = next(&|observer| observer.give_back(seen.clone()));
    assert_eq!(seen.after.netdevs[0].mtu, 1500);
    next(&|observer| observer.give_back(seen.clone()));
    assert_eq!(next(&Observer::invalidate).after.netdevs[0].mtu, 9000);
}
