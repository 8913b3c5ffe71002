//! The snapshots of the hosts in `fixtures/`: captured ones, and one per driver written from its
//! source.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fmt::{Display, Write};
use std::path::PathBuf;

use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::netdev::{Association, AssociationSource, Confidence, Netdev};
use netsilo_sys::bundle;
use netsilo_sys::files::root::Root;
use netsilo_sys::snapshot;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures")).join(name)
}

fn host(name: &str) -> Snapshot {
    snapshot(&Root::at(fixture(name)).unwrap()).unwrap()
}

/// The facts that a change of the readers could lose, as text to compare.
fn told(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    let mut line = |line: String| writeln!(text, "{line}").unwrap();
    let topology = &snapshot.topology;
    line(format!(
        "kernel {} cpus {} of {}",
        snapshot.machine.release, topology.online, topology.possible
    ));
    let softnet = snapshot
        .cpus
        .iter()
        .filter_map(|(cpu, c)| Some((cpu, c.softnet?.processed, c.softnet?.input_qlen)));
    line(format!(
        "softnet {:?}",
        softnet
            .map(|(cpu, n, q)| format!("{cpu}:{n}{}", if q.is_some() { "+" } else { "" }))
            .collect::<Vec<_>>()
    ));
    for netdev in snapshot.netdevs.iter().filter(|netdev| netdev.device_path.is_some()) {
        line(device(netdev));
        for rx in &netdev.rx_queues {
            let at = rx.vmbus_cpu.map(|cpu| format!(" vmbus cpu {cpu}")).unwrap_or_default();
            let (rps, flows) = (option(&rx.rps_cpus), option(&rx.rps_flow_cnt));
            line(format!(
                "  rx-{} irq {} napi {}{at} rps {{{rps}}} flows {flows}",
                rx.index,
                edge(&rx.irq),
                edge(&rx.napi)
            ));
        }
        for tx in &netdev.tx_queues {
            line(format!(
                "  tx-{} irq {} napi {} xps {{{}}}",
                tx.index,
                edge(&tx.irq),
                edge(&tx.napi),
                option(&tx.xps_cpus)
            ));
        }
        for thread in netdev.napis.iter().filter_map(|napi| napi.thread.as_ref()) {
            line(format!("  kthread {} pid {} on {}", thread.comm, thread.pid, thread.cpus));
        }
    }
    for (irq, state) in &snapshot.irqs {
        let cpus = format!("{} -> {}", option(&state.requested), option(&state.effective));
        let hint = state.hint.as_ref().map(|hint| format!(" hint {hint}")).unwrap_or_default();
        let actions = state.actions.join(", ");
        line(format!(
            "irq {irq} [{}] {actions}: {cpus}{hint} {:?} {:?}",
            state.chip, state.writable, state.counts
        ));
    }
    snapshot.gaps.iter().for_each(|gap| line(format!("gap {}: {}", gap.what, gap.why)));
    text
}

fn device(netdev: &Netdev) -> String {
    let driver = netdev.driver.as_deref().unwrap_or("-");
    let (bus, path) =
        (netdev.bus.as_deref().unwrap_or("-"), netdev.device_path.as_deref().unwrap_or("-"));
    let (node, speed) = (option(&netdev.node), option(&netdev.speed_mbps));
    format!(
        "{} {driver} {bus} at {path} node {node} speed {speed} up {} irqs {:?}",
        netdev.name, netdev.up, netdev.irqs
    )
}

fn option(value: &Option<impl Display>) -> String {
    value.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string)
}

fn edge<T: Display>(edge: &Option<Association<T>>) -> String {
    let Some(edge) = edge else {
        return "-".to_owned();
    };
    let source = match &edge.source {
        AssociationSource::ActionName(pattern) => pattern.clone(),
        other => format!("{other:?}"),
    };
    let sure = match edge.confidence {
        Confidence::Certain => "!",
        Confidence::Named => "",
        Confidence::Guess => "?",
    };
    format!("{}{sure} ({source})", edge.to)
}

#[test]
fn captured_hosts_read_as_before() {
    for name in ["virtio-6.1", "igb-6.12", "vmxnet3-e1000e-7.2"] {
        insta::assert_snapshot!(name, told(&host(name)));
    }
}

#[test]
fn synthetic_hosts_read_as_the_driver_sources_say() {
    let mut names: Vec<String> = std::fs::read_dir(fixture(""))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.retain(|name| name.starts_with("synthetic-"));
    names.sort();
    assert!(names.len() >= 13, "{names:?}");
    for name in names {
        insta::assert_snapshot!(name.clone(), told(&host(&name)));
    }
}

#[test]
fn a_bundle_of_layout_1_can_still_be_read() {
    let observation = bundle::open(fixture("igb-6.12.tar.zst")).unwrap();
    assert_eq!(observation.after, host("igb-6.12"));
    assert!(observation.after.at > observation.before.at);
}

#[test]
fn an_offline_cpu_has_neither_counters_nor_a_column() {
    let snapshot = host("virtio-6.1");
    let cpu = netsilo_model::machine::cpuset::CpuId(5);
    assert!(!snapshot.cpus.contains_key(&cpu) && snapshot.topology.cpus.contains_key(&cpu));
    let six = netsilo_model::machine::cpuset::CpuId(6);
    assert!(snapshot.arch_interrupts["LOC"].contains_key(&six));
    assert!(snapshot.cpus[&six].softnet.is_some());
}

fn case(name: &str) -> Snapshot {
    let cases = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../cases"));
    bundle::open(cases.join(name).join("before.tar.zst")).unwrap().after
}

#[test]
fn advisory_files_refuse_no_machine() {
    let empty = case("cpu-online-file-empty");
    let gap = empty.gaps.iter().find(|gap| gap.what.ends_with("/online")).unwrap();
    assert!(gap.why.ends_with("assumed online"), "{}", gap.why);
    assert!(empty.topology.online.contains(netsilo_model::machine::cpuset::CpuId(0)));
    let centos = case("nohz-full-of-linux-3.10");
    assert!(centos.topology.nohz_full.is_empty());
    assert!(!centos.gaps.iter().any(|gap| gap.what.ends_with("/nohz_full")), "{:?}", centos.gaps);
}

#[path = "trees/big_host.rs"]
mod big_host;

#[test]
fn a_host_of_320_cpus_reads_whole() {
    let dir = tempfile::tempdir().unwrap();
    let big = big_host::BigHost { cpus: 320, irqs: 40, netdevs: 2, queues: 8 };
    big.write(dir.path()).unwrap();
    let snapshot = snapshot(&Root::at(dir.path()).unwrap()).unwrap();
    assert_eq!(
        (snapshot.topology.online.len(), snapshot.topology.nr_cpu_ids, snapshot.cpus.len()),
        (320, 320, 320)
    );
    assert_eq!(snapshot.default_smp_affinity.as_ref().map(|cpus| cpus.len()), Some(320));
    let last = netsilo_model::machine::cpuset::CpuId(319);
    let row = &snapshot.irqs[&netsilo_model::machine::ids::Irq(31)];
    assert_eq!((row.counts[&last], row.counts.len()), (1319, 20));
    assert_eq!(snapshot.topology.cpus[&last].llc.to_string(), "304-319");
    let irqs: Vec<u32> =
        snapshot.netdevs[1].rx_queues.iter().filter_map(|rx| Some(rx.irq.as_ref()?.to.0)).collect();
    assert_eq!(irqs, (38..46).collect::<Vec<u32>>());
}
