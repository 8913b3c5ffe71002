//! Containers, each a network namespace in the guest: their data is that of the NIC's queues.

use netsilo_lab::Lab;
use netsilo_model::snapshot::attribution::QueueResolution;

use crate::{Traffic, accounted, of, passed, sum, traced};

/// To a container. The bytes are per flow.
const CONTAINER: Traffic = Traffic { flows: 8, bytes: 100_001 };

/// The address of a container that has the guest as its router, and of one beside the guest.
const ADDRESSES: [&str; 2] = ["10.78.0.2", "10.77.0.9"];

/// A way to connect the namespace `inside` to the NIC.
struct Stack {
    name: &'static str,
    /// Creates its netdev `inner`.
    setup: &'static str,
    /// Whether packets come through the guest's IP, which `inner` has as its router.
    routed: bool,
    expected: &'static [QueueResolution],
}

/// netkit needs 6.7. The NAPI id and queue stay in the packet, or a netdev in between clears them.
const OTHER_STACKS: [Stack; 4] = [
    Stack {
        name: "macvlan",
        setup: "ip link add link eth0 name inner netns inside type macvlan mode bridge",
        routed: false,
        expected: &[QueueResolution::Direct],
    },
    Stack {
        name: "ipvlan",
        setup: "ip link add link eth0 name inner netns inside type ipvlan mode l2",
        routed: false,
        expected: &[QueueResolution::Direct],
    },
    Stack {
        name: "netkit",
        setup: "ip link add outer type netkit && ip link set nk0 name inner netns inside",
        routed: true,
        expected: &[QueueResolution::FlowHash, QueueResolution::FiveTuple, QueueResolution::Direct],
    },
    Stack {
        name: "bpf_redirect_peer",
        setup: VETH,
        routed: true,
        expected: &[QueueResolution::Direct],
    },
];

const VETH: &str = "ip link add outer type veth peer name inner netns inside";

pub(crate) fn behind_a_veth_are_resolved_by(lab: &Lab, expected: &'static [QueueResolution]) {
    is_resolved(lab, &Stack { name: "veth", setup: VETH, routed: true, expected });
}

pub(crate) fn of_other_stacks_are_resolved(lab: &Lab) {
    OTHER_STACKS.iter().for_each(|stack| is_resolved(lab, stack));
}

fn is_resolved(lab: &Lab, stack: &Stack) {
    let address = ADDRESSES[usize::from(!stack.routed)];
    lab.sh(&format!(
        "ip netns add inside && {} && ip -n inside addr add {address}/24 dev inner && \
         ip -n inside link set inner up",
        stack.setup
    ))
    .unwrap();
    if stack.routed {
        lab.sh("ip addr add 10.78.0.1/24 dev outer && ip link set outer up && \
             echo 1 > /proc/sys/net/ipv4/ip_forward && \
             ip -n inside route add default via 10.78.0.1")
            .unwrap();
        let route = format!("ip route replace 10.78.0.0/24 via {}", Lab::guest_address(0));
        lab.peer(0).unwrap().sh(&route).unwrap();
    }
    if stack.name == "bpf_redirect_peer" {
        redirect(lab, address);
    }
    let mut consumed = Vec::new();
    let attribution = traced(lab, || {
        for mode in ["recv", "udp-connected", "udp-unconnected"] {
            let received = passed(lab, "ip netns exec inside", address, mode, CONTAINER);
            consumed.push((format!("{}, {mode}", stack.name), received));
        }
    });
    let netns: u32 = lab.sh("stat -Lc %i /run/netns/inside").unwrap().trim().parse().unwrap();
    for (what, truth) in &consumed {
        let reads = of(&attribution, truth.pid);
        accounted(lab, &attribution, sum(&reads), truth);
        let (resolved, others): (Vec<_>, Vec<_>) =
            reads.into_iter().partition(|read| stack.expected.contains(&read.resolved));
        // A lost event may be the first one of a flow, which identifies its queue.
        let most = attribution.lost_events * CONTAINER.bytes;
        assert!(sum(&others) <= most && !resolved.is_empty(), "{what}: {others:#?}");
        for read in resolved {
            assert_eq!(read.consumer.netns, netns);
            let polls = attribution.polls.iter().find(|poll| Some(poll.napi) == read.napi).unwrap();
            assert!(polls.netdev == "eth0" && read.rx_queue.is_some(), "{what}: {read:#?}");
        }
    }
    lab.sh(
        "tc qdisc del dev eth0 clsact 2>/dev/null; rm -f /sys/fs/bpf/peer; ip netns del inside; \
         echo 0 > /proc/sys/net/ipv4/ip_forward",
    )
    .unwrap();
}

/// Has packets to the container skip the guest's IP, as Cilium does.
fn redirect(lab: &Lab, address: &str) {
    let sys = concat!(env!("CARGO_MANIFEST_DIR"), "/../sys");
    let helper = netsilo_lab::example(sys, "test_helper").unwrap();
    let helper = helper.display();
    lab.sh(&format!(
        "mountpoint -q /sys/fs/bpf || mount -t bpf none /sys/fs/bpf; \
         '{helper}' pin-redirect-peer $(cat /sys/class/net/outer/ifindex) {address} \
         /sys/fs/bpf/peer && tc qdisc add dev eth0 clsact && \
         tc filter add dev eth0 ingress bpf direct-action object-pinned /sys/fs/bpf/peer"
    ))
    .unwrap();
}
