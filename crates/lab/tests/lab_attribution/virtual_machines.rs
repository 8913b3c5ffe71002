//! Virtual machines in the guest: what a program or a vhost worker takes from a tap.

use netsilo_lab::exact::{self, Taken};
use netsilo_lab::{Job, Lab};
use netsilo_model::machine::cpuset::CpuId;
use netsilo_model::snapshot::attribution::{Consumption, Protocol, QueueResolution};
use netsilo_model::snapshot::host::Snapshot;
use netsilo_model::snapshot::tap_holders::TapThreadRole;

use crate::{COMM, PATIENCE, traced, traced_with};

const DATAGRAMS: u64 = 8 * 200;

/// Of each datagram: Ethernet, IPv4, UDP.
const HEADERS: u64 = 14 + 20 + 8;

/// A tap, and how packets get there. It has room for all of them: a guest may be slow.
struct Way {
    name: &'static str,
    /// Creates the netdev `machine`, whose virtual machine has this address.
    setup: &'static str,
    address: &'static str,
    /// Whether the program has opened it.
    is_open: &'static str,
    /// Arguments of the program.
    arguments: &'static str,
    resolved: &'static [QueueResolution],
}

macro_rules! tap {
    ($queues:literal) => {
        concat!(
            "modprobe tun; ip tuntap add dev machine mode tap",
            $queues,
            " && ip addr add 10.79.0.1/24 dev machine && ip link set machine txqueuelen 2000 up && \
             ip neigh add 10.79.0.2 lladdr 02:00:00:00:00:02 dev machine nud permanent && \
             echo 1 > /proc/sys/net/ipv4/ip_forward"
        )
    };
}

const TAP: &str = tap!("");
const TAP_OF_QUEUES: &str = tap!(" multi_queue");

/// A tap gets what the guest routes, and its packets have lost the NAPI id.
const BY_FLOW: &[QueueResolution] = &[QueueResolution::FlowHash, QueueResolution::FiveTuple];

const MACVTAP: &str = "modprobe macvtap; \
    ip link add link eth0 name machine type macvtap mode bridge && \
    ip link set machine address 02:00:00:00:00:02 txqueuelen 2000 up";

const WAYS: [Way; 4] = [
    Way {
        name: "tap, read by the program",
        setup: TAP,
        address: "10.79.0.2",
        is_open: "grep -qs 'iff:.machine' /proc/[0-9]*/fdinfo/*",
        arguments: "--tap machine",
        resolved: BY_FLOW,
    },
    Way {
        name: "tap of two queues, vhost",
        setup: TAP_OF_QUEUES,
        address: "10.79.0.2",
        is_open: "[ $(cat /proc/[0-9]*/fdinfo/* 2>/dev/null | grep -c 'iff:.machine') = 2 ]",
        arguments: "--tap machine --vhost --queues 2",
        resolved: BY_FLOW,
    },
    Way {
        name: "macvtap, vhost",
        setup: MACVTAP,
        address: "10.77.0.9",
        is_open: "find /proc/[0-9]*/fd -lname /dev/tap$(cat /sys/class/net/machine/ifindex) \
            2>/dev/null | grep -q .",
        arguments: "--tap /dev/tap$(cat /sys/class/net/machine/ifindex) --vhost",
        resolved: &[QueueResolution::Direct],
    },
    Way {
        name: BESIDE,
        setup: MACVTAP,
        address: "10.77.0.9",
        is_open: "find /proc/[0-9]*/fd -lname /dev/tap$(cat /sys/class/net/machine/ifindex) \
            2>/dev/null | grep -q .",
        arguments: "--tap /dev/tap$(cat /sys/class/net/machine/ifindex) --vhost",
        resolved: &[],
    },
];

/// The packets keep the socket of the sender, a macvlan beside it.
const BESIDE: &str = "macvtap, from a macvlan";

pub(crate) fn take_what_netsilo_counts(lab: &Lab) {
    lab.sh("modprobe vhost_net").unwrap();
    WAYS.iter().for_each(|way| takes_what_netsilo_counts(lab, way));
}

/// Before 6.4, vhost workers are kernel threads.
pub(crate) fn have_workers_of_the_kernel(lab: &Lab) {
    lab.sh("modprobe vhost_net").unwrap();
    takes_what_netsilo_counts(lab, &WAYS[1]);
}

fn takes_what_netsilo_counts(lab: &Lab, way: &Way) {
    let Way { name, setup, address, is_open, arguments, resolved } = way;
    lab.sh(setup).unwrap();
    let (peer, guest) = (lab.peer(0).unwrap(), Lab::guest_address(0));
    peer.sh(&format!("ip route replace 10.79.0.0/24 via {guest}")).unwrap();
    peer.sh("ip neigh replace 10.77.0.9 lladdr 02:00:00:00:00:02 nud permanent dev \
         $(ip -o route get 10.77.0.9 | sed 's/.* dev \\([^ ]*\\).*/\\1/')")
        .unwrap();
    let start = |datagrams: u64| {
        let vmm = exact::command(&format!("vmm --datagrams {datagrams} --cpu 5")).unwrap();
        let vmm = lab.spawn(&format!("{vmm} {arguments}")).unwrap();
        lab.sh(&format!("for _ in $(seq 100); do {is_open} && exit 0; sleep 0.1; done; exit 1"))
            .unwrap();
        vmm
    };
    if *name == BESIDE {
        lab.sh("ip netns add inside && \
             ip link add link eth0 name inner netns inside type macvlan mode bridge && \
             ip -n inside addr add 10.77.0.8/24 dev inner && ip -n inside link set inner up && \
             ip -n inside neigh add 10.77.0.9 lladdr 02:00:00:00:00:02 dev inner nud permanent")
            .unwrap();
    }
    let send = || {
        let send = "send --udp --unanswered --port 7000 --ports 8 --flows 8 --bytes 200000";
        let send = format!("{send} --size 1000 --dest {address}");
        if *name == BESIDE {
            let program = exact::program().unwrap();
            lab.sh(&format!("ip netns exec inside '{}' exact {send}", program.display())).unwrap();
            return;
        }
        peer.exact(&send).unwrap().wait(PATIENCE).unwrap().ok().unwrap();
    };
    let vmm_taken = |vmm: Job| {
        let text = vmm.wait(PATIENCE).unwrap().ok().unwrap().text().into_owned();
        serde_json::from_str::<Taken>(&text).unwrap()
    };
    let mut counted = None;
    let attribution = traced(lab, || {
        let vmm = start(DATAGRAMS);
        send();
        counted = Some(vmm_taken(vmm));
    });
    let taken = counted.unwrap();
    let reads: Vec<&Consumption> =
        attribution.consumption.iter().filter(|it| it.protocol == Protocol::Tap).collect();
    let sum = |of: &dyn Fn(&Consumption) -> u64| reads.iter().map(|it| of(it)).sum::<u64>();
    let (bytes, packets) = (sum(&|it| it.bytes), sum(&|it| it.events));
    println!(
        "{name}: {bytes} bytes, {packets} packets, {} lost; {taken:?}",
        attribution.lost_events
    );
    let is_exact = (bytes, packets) == (taken.bytes, taken.packets);
    let is_announced = bytes < taken.bytes && attribution.lost_events > 0;
    assert!(is_exact || is_announced, "{name}: {reads:#?}");
    let by_vhost = arguments.contains("vhost");
    // A vhost worker is a thread of the program since 6.4, before that one of the kernel.
    let is_its = |it: &&Consumption| {
        let by_program = it.consumer.tgid == taken.pid && it.consumer.comm == COMM;
        by_program || (it.consumer.comm.starts_with("vhost-") && by_vhost)
    };
    assert!(reads.iter().all(is_its), "{name}: {reads:#?}");
    let pinned = |it: &&Consumption| it.consumer_cpu == CpuId(5) || by_vhost;
    assert!(reads.iter().all(pinned), "{name}: {reads:#?}");
    // The rest is ARP and IPv6, which has no flow.
    let from_nic = reads.iter().filter(|it| {
        let polls = attribution.polls.iter().find(|poll| Some(poll.napi) == it.napi);
        resolved.contains(&it.resolved) && polls.is_some_and(|poll| poll.netdev == "eth0")
    });
    let from_nic: u64 = from_nic.map(|it| it.bytes).sum();
    let all = if *name == BESIDE { 0 } else { DATAGRAMS * (1000 + HEADERS) };
    assert!(
        from_nic + 1042 * attribution.lost_events >= all,
        "{name}: {from_nic} of {all}: {reads:#?}"
    );
    let sent_on = attribution.forwarded.iter().any(|it| it.egress == "machine");
    assert!(!sent_on, "{name}: {:#?}", attribution.forwarded);
    // While it waits for packets, its threads are known.
    let vmm = start(1);
    traced_with(lab, "--snapshot", || ());
    let snapshot: Snapshot = serde_json::from_str(&lab.sh("cat /tmp/snapshot").unwrap()).unwrap();
    send();
    let pid = vmm_taken(vmm).pid;
    let holder = &snapshot.tap_holders.as_ref().unwrap()[&pid];
    let is_machine = |it: &String| it == "machine";
    assert!(
        holder.netdevs.iter().all(is_machine) && !holder.netdevs.is_empty(),
        "{name}: {holder:#?}"
    );
    assert_eq!(holder.here, holder.netdevs, "{name}");
    let is_vcpu = |role: &TapThreadRole| matches!(role, TapThreadRole::Vcpu(_));
    let vcpus = holder.threads.values().filter(|it| is_vcpu(&it.role)).count();
    assert_eq!(vcpus, if arguments.contains("--queues 2") { 2 } else { 1 }, "{name}: {holder:#?}");
    let has = |role| holder.threads.values().any(|it| it.role == role);
    assert!(has(TapThreadRole::Vcpu(0)), "{name}: {holder:#?}");
    assert_eq!(has(TapThreadRole::Vhost), by_vhost, "{name}: {holder:#?}");
    lab.sh("ip link del machine; ip netns del inside 2>/dev/null; \
         echo 0 > /proc/sys/net/ipv4/ip_forward")
        .unwrap();
}
