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
        .filter_map(|(cpu, c)| Some((cpu, c.softnet?.processed?, c.softnet?.input_qlen)));
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
fn a_newer_bundle_is_refused_with_the_version_that_reads_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("host.tar.zst");
    let file = std::fs::File::create(&path).unwrap();
    let mut archive = tar::Builder::new(zstd::Encoder::new(file, 1).unwrap());
    let manifest = br#"{"schema":9,"netsilo":"0.4.0","trees":[]}"#;
    let mut header = tar::Header::new_gnu();
    header.set_size(manifest.len() as u64);
    header.set_mode(0o644);
    archive.append_data(&mut header, "manifest.json", &manifest[..]).unwrap();
    archive.into_inner().unwrap().finish().unwrap();
    let refused = bundle::open(&path).unwrap_err().to_string();
    let begin = "the bundle has schema 9, written by netsilo 0.4.0; this is ";
    assert!(refused.starts_with(begin), "{refused}");
    assert!(refused.ends_with("reads up to 2: use netsilo 0.4.0 or newer"), "{refused}");
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
#[path = "trees/nic_host.rs"]
mod nic_host;

use nic_host::Nic;

fn nics(rows: &str, nics: &[Nic], files: &[(&str, &str)]) -> Snapshot {
    let dir = tempfile::tempdir().unwrap();
    nic_host::write(dir.path(), rows, nics, files);
    snapshot(&Root::at(dir.path()).unwrap()).unwrap()
}

/// The interrupts of the rx queues of each netdev, and the interrupts of its device.
fn edges(snapshot: &Snapshot) -> String {
    let line = |netdev: &Netdev| {
        let rx: Vec<String> = netdev.rx_queues.iter().map(|rx| edge(&rx.irq)).collect();
        let irqs: Vec<String> = netdev.irqs.iter().map(ToString::to_string).collect();
        format!("{}: {} of [{}]", netdev.name, rx.join(", "), irqs.join(" "))
    };
    snapshot.netdevs.iter().map(line).collect::<Vec<_>>().join("; ")
}

const PCI: &str = "pci0000:00/0000:01:00.0";

#[test]
fn a_platform_nic_has_the_interrupts_with_the_name_of_its_device() {
    let rows = "  23:  100  MIPS GIC  10  1e100000.ethernet\n  24:  0  MIPS GIC  11  reset\n";
    let router = [Nic("eth0", "platform/1e100000.ethernet", "mtk_soc_eth", 1, true)];
    assert_eq!(edges(&nics(rows, &router, &[])), "eth0: 23 (DeviceName(\"{device}\")) of [23]");
    let rows = "  208:  0  GICv3 150 Level  30be0000.ethernet\n  \
                210:  3898  GICv3 152 Level  30be0000.ethernet\n";
    let board = [Nic("eth0", "platform/30be0000.ethernet", "fec", 1, true)];
    let fec = "eth0: 210 (DeviceName(\"{device}\")) of [208 210]";
    assert_eq!(edges(&nics(rows, &board, &[])), fec);
}

#[test]
fn a_usb_nic_shares_the_interrupt_of_its_host_controller() {
    let usb = "pci0000:00/0000:00:14.0/usb2/2-1/2-1:1.0";
    let nic = [Nic("eth0", usb, "r8152", 1, true)];
    let bus = ("sys/devices/pci0000:00/0000:00:14.0/usb1/busnum", "1\n");
    let rows = "  30:  100  PCI-MSI 327680-edge  xhci_hcd\n  31:  1  IO-APIC 4-edge  ttyS0\n";
    let msi = ("sys/devices/pci0000:00/0000:00:14.0/msi_irqs/30", "msi\n");
    let shared = |sure: &str| format!("eth0: 30{sure} (Ancestor(\"0000:00:14.0\")) of []");
    assert_eq!(edges(&nics(rows, &nic, &[bus, msi])), shared(""));
    // the action names the first bus of the controller
    let rows = "  30:  100  IO-APIC 16-fasteoi  ehci_hcd:usb3, xhci_hcd:usb1\n";
    assert_eq!(edges(&nics(rows, &nic, &[bus])), shared(""));
    let rows = "  30:  100  IO-APIC 16-fasteoi  xhci_hcd:usb3\n";
    assert_eq!(edges(&nics(rows, &nic, &[bus])), "eth0: - of []", "another controller");
}

#[test]
fn the_controller_of_a_vector_tells_its_device_if_sysfs_does_not() {
    let rows = "  40:  5  PCI-MSI 524290-edge  enp1s0\n  41:  5  PCI-MSI 524289-edge  enp1s0\n  \
                42:  5  PCI-MSI 524288-edge  enp1s0\n  43:  5  PCI-MSI 540672-edge  enp2s0\n";
    let two = [
        Nic("enp1s0", PCI, "atlantic", 2, true),
        Nic("enp2s0", "pci0000:00/0000:01:01.0", "atlantic", 1, true),
    ];
    let order = "(VectorOrder(\"{dev}\"))";
    assert_eq!(
        edges(&nics(rows, &two, &[])),
        format!("enp1s0: 42 {order}, 41 {order} of [40 41 42]; enp2s0: 43 {order} of [43]")
    );
}

#[test]
fn a_port_that_is_down_has_no_queue_on_its_other_vector() {
    let rows = "  807:  0  IR-PCI-MSI 524288-edge  i40e-0000:01:00.0:misc\n  \
                808:  0  IR-PCI-MSI 524289-edge\n";
    let down = [Nic("eth0", PCI, "i40e", 2, false)];
    assert_eq!(edges(&nics(rows, &down, &[])), "eth0: -, - of [807 808]");
}

#[test]
fn an_interrupt_with_the_drivers_name_is_a_guess_for_two_netdevs() {
    let rows = "  26:  5  mpic  8  mvneta\n  27:  5  mpic  10  mvneta\n";
    let two = [
        Nic("eth0", "platform/soc/f1070000.ethernet", "mvneta", 1, true),
        Nic("eth1", "platform/soc/f1074000.ethernet", "mvneta", 1, true),
    ];
    let guessed = "eth0: 26? (DriverName) of []; eth1: 27? (DriverName) of []";
    assert_eq!(edges(&nics(rows, &two, &[])), guessed);
}

#[test]
fn what_netlink_and_the_drivers_name_tell_differently_is_kept() {
    let rows = "  40:  5  PCI-MSI 524288-edge  eth0-TxRx-0\n  41:  5  PCI-MSI 524289-edge  x\n";
    let nic = [Nic("eth0", PCI, "igb", 1, true)];
    let genl = |irq: u32| {
        format!(
            r#"{{"value": {{"queues": [{{"ifindex": 2, "id": 0, "direction": "rx", "napi_id": 9,
               "owners": []}}], "napis": [{{"ifindex": 2, "id": 9, "irq": {irq}, "pid": null}}]}}}}"#
        )
    };
    let conflicts = |irq: u32| {
        let host = nics(rows, &nic, &[("netdev_genl.json", &genl(irq))]);
        let rx = host.netdevs[0].rx_queues[0].clone();
        (rx.irq.unwrap().to.0, rx.irq_conflicts.iter().map(|it| it.to.0).collect::<Vec<_>>())
    };
    assert_eq!(conflicts(41), (41, vec![40]));
    assert_eq!(conflicts(40), (40, vec![]));
}

#[test]
fn the_architecture_is_what_the_kernel_says_or_what_its_controllers_show() {
    let loc = " LOC:  25755  Local timer interrupts for timer event device\n";
    let host = |rows: &str, files: &[(&str, &str)]| nics(&format!("{rows}{loc}"), &[], files);
    let arch = |name: &'static str| [("proc/sys/kernel/arch", name)];
    assert!(!host("  16:  1  XIVE-PCI-MSI 4096 Edge  nvme0q0\n", &[]).is_x86());
    assert!(host("  16:  1  IO-APIC 16-fasteoi  acpi\n", &[]).is_x86());
    assert!(host("", &arch("x86_64\n")).is_x86() && host("", &arch("i686\n")).is_x86());
    assert!(!host("  16:  1  IO-APIC 16-fasteoi  acpi\n", &arch("ia64\n")).is_x86());
}

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
