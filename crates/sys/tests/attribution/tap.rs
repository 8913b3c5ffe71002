//! What a program takes from a tap, and which processes hold taps.

use std::process::Stdio;
use std::time::{Duration, Instant};

use netsilo_lab::exact::{Taken, program};
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::snapshot::attribution::{Protocol, QueueResolution};
use netsilo_model::snapshot::tap_holders::{TapHolder, TapThread, TapThreadRole};
use netsilo_sys::bpf::tracer::{Options, Tracer};
use netsilo_sys::files::root::Root;
use netsilo_sys::read::snapshot::snapshot;

use super::{in_own_netns, ip, netns, unshare_mounts_and_see_own_sysfs};

const SENT: u64 = 700;

/// Starts a program that takes this number of datagrams to 10.10.0.2 from `tap-here`.
pub(crate) fn machine(datagrams: u64) -> std::process::Child {
    ip("tuntap add dev tap-here mode tap");
    // It would send packets of its own.
    std::fs::write("/proc/sys/net/ipv6/conf/tap-here/disable_ipv6", "1").unwrap();
    ip("addr add 10.10.0.1/24 dev tap-here");
    ip("link set tap-here up");
    ip("neigh add 10.10.0.2 lladdr 02:00:00:00:00:02 dev tap-here nud permanent");
    let datagrams = datagrams.to_string();
    let mut vmm = std::process::Command::new(program().unwrap());
    vmm.args(["exact", "vmm", "--tap", "tap-here", "--cpu", "1", "--datagrams", &datagrams]);
    let vmm = vmm.stdout(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !has_opened_its_tap(vmm.id()) {
        assert!(Instant::now() < deadline, "the tap is not opened");
        std::thread::sleep(Duration::from_millis(10));
    }
    vmm
}

fn has_opened_its_tap(pid: u32) -> bool {
    let files = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    let mut texts = files.filter_map(|it| std::fs::read_to_string(it.path()).ok());
    texts.any(|text| text.contains("iff:\ttap-here"))
}

fn holder(pid: u32) -> Option<TapHolder> {
    let taken = snapshot(&Root::live()).unwrap();
    let is_ready = |it: &TapThread| it.role == TapThreadRole::Vcpu(0) && it.cpu == CpuId(1);
    taken.tap_holders.unwrap().remove(&pid).filter(|it| it.threads.values().any(is_ready))
}

#[test]
fn a_tap_is_read_by_the_program_that_holds_it() {
    in_own_netns(|| {
        unshare_mounts_and_see_own_sysfs();
        let vmm = machine(SENT);
        let pid = vmm.id();
        let deadline = Instant::now() + Duration::from_secs(20);
        let holder = loop {
            match holder(pid) {
                Some(holder) => break holder,
                None => assert!(Instant::now() < deadline, "no holder is seen"),
            }
        };
        assert_eq!(holder.comm, "netsilo-lab");
        assert_eq!(holder.netdevs.iter().collect::<Vec<_>>(), ["tap-here"]);
        assert_eq!(holder.here, holder.netdevs);
        let mut tracer = Tracer::attach(Options::exact());
        let sender = std::net::UdpSocket::bind("10.10.0.1:0").unwrap();
        for _ in 0..SENT {
            sender.send_to(&[7; 1000], "10.10.0.2:7000").unwrap();
            std::thread::sleep(Duration::from_micros(100));
        }
        let output = vmm.wait_with_output().unwrap();
        let taken: Taken = serde_json::from_slice(&output.stdout).unwrap();
        let attribution = tracer.read().unwrap();
        let rows = attribution.consumption.iter().filter(|it| it.protocol == Protocol::Tap);
        let rows: Vec<_> = rows.filter(|it| it.consumer.netns == netns()).collect();
        let sum = rows.iter().fold((0, 0), |sum, row| (sum.0 + row.bytes, sum.1 + row.events));
        assert_eq!((sum, taken.bytes), ((SENT * (1000 + 42), SENT), SENT * (1000 + 42)));
        for row in rows {
            assert_eq!((row.consumer.tgid, row.consumer_cpu), (pid, CpuId(1)));
            assert_eq!((row.resolved, row.rx_queue), (QueueResolution::Local, None), "{row:#?}");
        }
    });
}
