//! Bundles built from a fixture: virtio-net with four queues, where all packets arrive on rx-3 and
//! are read on another node.

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::machine::ids::NapiId;
use netsilo_model::snapshot::attribution::{
    Attribution, AttributionSource, Consumer, Consumption, Poll, Protocol, QueueResolution,
};
use netsilo_sys::bundle::{Addresses, Capture};
use netsilo_sys::files::root::Root;

/// Path of a bundle of the host.
pub(crate) static VIRTIO: LazyLock<String> = LazyLock::new(|| bundle("virtio", &[]));

/// Path of a bundle of the same host with irqbalance running.
pub(crate) static OWNED: LazyLock<String> = LazyLock::new(|| {
    bundle(
        "owned",
        &[("proc/812/comm", "irqbalance\n"), ("proc/812/cmdline", "/usr/sbin/irqbalance\0")],
    )
});

fn bundle(name: &str, more: &[(&str, &str)]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let mut capture = Capture::start().unwrap();
    for second in [8, 9] {
        let tree = dir.path().join(second.to_string());
        write_tree(&tree, second, more);
        netsilo_sys::snapshot(&capture.sample(&Root::at(tree).unwrap()).unwrap()).unwrap();
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.tar.zst"));
    capture.window(&attribution());
    capture.write(&path, "6.1", Addresses::Replace).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Writes the fixture at that second after boot. All CPUs are idle except CPU 1.
pub(crate) fn write_tree(tree: &Path, second: u64, more: &[(&str, &str)]) {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/virtio-6.1");
    assert!(
        Command::new("cp").arg("-a").args([fixture.as_path(), tree]).status().unwrap().success()
    );
    let ticks = |cpu: u64| if cpu == 1 { (second * 90, second * 10) } else { (0, second * 100) };
    let stat = |cpu| format!("cpu{cpu} {} 0 0 {} 0 0 0 0 0 0\n", ticks(cpu).0, ticks(cpu).1);
    let stat: String = [0, 1, 2, 3, 4, 6, 7].map(stat).concat();
    let uptime = format!("{second}.00 9.00\n");
    // without this, `tree.json` would override the time in `uptime`
    for (path, text) in
        [("tree.json", "{}"), ("proc/uptime", &uptime), ("proc/stat", &stat)].iter().chain(more)
    {
        let path = tree.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

/// The attribution: rx-3 is polled on CPU 7, redis reads it on CPU 0.
fn attribution() -> Attribution {
    let (napi, polled, read) = (NapiId(8196), CpuId(7), CpuId(0));
    let poll = Poll {
        napi,
        netdev: "eth0".into(),
        ifindex: 2,
        netns: 0,
        cpu: polled,
        polls: 9000,
        packets: 30_000,
        ns: None,
    };
    let consumption = Consumption {
        napi: Some(napi),
        rx_queue: Some(3),
        resolved: QueueResolution::Direct,
        poll_cpu: Some(polled),
        protocol_cpu: Some(polled),
        consumer_cpu: read,
        consumer: Consumer {
            tgid: 900,
            comm: "redis-server".into(),
            work: false,
            cgroup: None,
            netns: 0,
        },
        protocol: Protocol::Tcp,
        bytes: 40_000_000,
        events: 20_000,
        first_reads: 0,
        approximate: false,
        connected: None,
    };
    Attribution {
        source: AttributionSource::Bpf,
        elapsed: Duration::from_secs(1),
        polls: vec![poll],
        consumption: vec![consumption],
        ..Attribution::default()
    }
}
