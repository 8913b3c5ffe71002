//! Containers, each a network namespace in the guest: their data is that of the NIC's queues.

use std::collections::BTreeMap;

use netsilo_lab::Lab;
use netsilo_model::snapshot::attribution::QueueResolution;

use crate::forwarding::counters;
use crate::{Traffic, accounted, of, passed, sum, traced};

/// To a container. The bytes are per flow.
const CONTAINER: Traffic = Traffic { flows: 8, bytes: 100_001 };

/// Of a container beside the guest, and of one that has the guest as its router.
const BESIDE: &str = "10.77.0.9";
const ROUTED: &str = "10.78.0.2";
/// A service's address, which no netdev has.
const SERVICE: &str = "10.96.0.1";

/// A way to connect the namespace `inside` to the NIC.
struct Stack {
    name: &'static str,
    /// Where the peer sends to, which is the address of the namespace's netdev, or NAT leads to it.
    address: &'static str,
    /// Creates that netdev, `inner`. If packets come through the guest's IP, `outer` is the
    /// guest's end.
    setup: &'static str,
    /// Between the peer and the guest's IP, if it is not the NIC.
    overlay: Option<&'static str>,
    expected: &'static [QueueResolution],
}

/// netkit needs 6.7. The NAPI id and queue stay in the packet, or a netdev in between clears them.
const OTHER_STACKS: [Stack; 8] = [
    Stack {
        name: "macvlan",
        address: BESIDE,
        setup: "ip link add link eth0 name inner netns inside type macvlan mode bridge",
        overlay: None,
        expected: &[QueueResolution::Direct],
    },
    Stack {
        name: "ipvlan",
        address: BESIDE,
        setup: "ip link add link eth0 name inner netns inside type ipvlan mode l2",
        overlay: None,
        expected: &[QueueResolution::Direct],
    },
    Stack {
        name: "netkit",
        address: ROUTED,
        setup: "ip link add outer type netkit && ip link set nk0 name inner netns inside",
        overlay: None,
        expected: &[QueueResolution::FlowHash, QueueResolution::FiveTuple, QueueResolution::Direct],
    },
    Stack {
        name: "peer",
        address: ROUTED,
        setup: VETH,
        overlay: None,
        expected: &[QueueResolution::Direct],
    },
    Stack { name: "neigh", ..BEHIND_A_VETH },
    Stack { name: "NAT", address: SERVICE, ..BEHIND_A_VETH },
    Stack { name: "VXLAN", overlay: Some("vxlan id 7 dstport 4789"), ..BEHIND_A_VETH },
    WIREGUARD,
];

const VETH: &str = "ip link add outer type veth peer name inner netns inside";
const BEHIND_A_VETH: Stack = Stack {
    name: "veth",
    address: ROUTED,
    setup: VETH,
    overlay: None,
    expected: &[QueueResolution::FlowHash, QueueResolution::FiveTuple],
};
const WIREGUARD: Stack = Stack { name: "WireGuard", overlay: Some("wireguard"), ..BEHIND_A_VETH };

pub(crate) fn behind_a_veth_are_resolved_by(lab: &Lab, expected: &'static [QueueResolution]) {
    is_resolved(lab, &Stack { expected, ..BEHIND_A_VETH });
}

pub(crate) fn of_other_stacks_are_resolved(lab: &Lab) {
    OTHER_STACKS.iter().for_each(|stack| is_resolved(lab, stack));
}

/// Behind NAT too: it changes the addresses once more.
pub(crate) fn behind_wireguard_are_resolved(lab: &Lab) {
    is_resolved(lab, &Stack { address: SERVICE, ..WIREGUARD });
}

fn is_resolved(lab: &Lab, stack: &Stack) {
    let inner = if stack.address == BESIDE { BESIDE } else { ROUTED };
    lab.sh(&format!(
        "ip netns add inside && {} && ip -n inside addr add {inner}/24 dev inner && \
         ip -n inside link set inner up",
        stack.setup
    ))
    .unwrap();
    if stack.address != BESIDE {
        route(lab, stack);
    }
    let mut consumed = Vec::new();
    let before = counters(lab, "eth0");
    let attribution = traced(lab, || {
        for mode in ["recv", "udp-connected", "udp-unconnected"] {
            let received = passed(lab, "ip netns exec inside", stack.address, mode, CONTAINER);
            consumed.push((format!("{}, {mode}", stack.name), received));
        }
    });
    let after = counters(lab, "eth0");
    let netns: u32 = lab.sh("stat -Lc %i /run/netns/inside").unwrap().trim().parse().unwrap();
    lab.sh("tc qdisc del dev eth0 clsact 2>/dev/null; rm -f /sys/fs/bpf/redirect; \
            ip netns del inside; ip link del over 2>/dev/null; \
            nft delete table ip service 2>/dev/null; echo 0 > /proc/sys/net/ipv4/ip_forward")
        .unwrap();
    lab.peer(0).unwrap().sh("ip link del over 2>/dev/null; true").unwrap();
    let mut by_queue: BTreeMap<u32, u64> = BTreeMap::new();
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
            assert!(polls.netdev == "eth0", "{what}: {read:#?}");
            *by_queue.entry(read.rx_queue.unwrap()).or_default() += read.bytes;
        }
    }
    // A flow to virtio-net moves to the queue on which its answers leave.
    let of_igb =
        |(queue, _): &(u32, u64)| after.contains_key(&format!("rx_queue_{queue}_csum_err"));
    for (queue, bytes) in by_queue.into_iter().filter(of_igb) {
        let counter = format!("rx_queue_{queue}_bytes");
        let arrived = after[&counter] - before[&counter];
        // headers, acknowledgements and strangers come on top
        let expected = arrived * 3 / 4..=arrived - arrived / 30;
        assert!(expected.contains(&bytes), "{}, {queue}: {bytes} of {arrived}", stack.name);
    }
}

/// Makes the guest the router of the namespace.
fn route(lab: &Lab, stack: &Stack) {
    lab.sh("ip addr add 10.78.0.1/24 dev outer && ip link set outer up && \
            echo 1 > /proc/sys/net/ipv4/ip_forward && \
            ip -n inside route add default via 10.78.0.1")
        .unwrap();
    let mut via = Lab::guest_address(0).to_string();
    if let Some(kind) = stack.overlay {
        overlay(lab, kind);
        via = "10.79.0.1".to_owned();
    }
    let address = stack.address;
    lab.peer(0).unwrap().sh(&format!("ip route replace {address} via {via}")).unwrap();
    if ["peer", "neigh"].contains(&stack.name) {
        redirect(lab, stack.name);
    }
    if address == SERVICE {
        // as kube-proxy does
        lab.sh(&format!(
            "nft 'add table ip service; \
             add chain ip service to {{ type nat hook prerouting priority -100; }}; \
             add rule ip service to ip daddr {SERVICE} dnat to {ROUTED}; \
             add chain ip service from {{ type nat hook postrouting priority 100; }}; \
             add rule ip service from oifname outer masquerade'"
        ))
        .unwrap();
    }
}

/// A tunnel between the guest, 10.79.0.1, and the peer, 10.79.0.2.
fn overlay(lab: &Lab, kind: &str) {
    let (guest, peer) = (Lab::guest_address(0), Lab::peer_address(0));
    if kind == "wireguard" {
        return wireguard(lab, &format!("endpoint {guest}:51820"));
    }
    // The emulated igb does not compute checksums within a tunnel.
    let end = |local, remote, address| {
        format!(
            "ip link add over type {kind} local {local} remote {remote} && \
             ethtool -K over tx off && \
             ip addr add {address}/24 dev over && ip link set over up"
        )
    };
    lab.sh(&end(guest, peer, "10.79.0.1")).unwrap();
    lab.peer(0).unwrap().sh(&end(peer, guest, "10.79.0.2")).unwrap();
}

fn wireguard(lab: &Lab, endpoint: &str) {
    let wg = netsilo_lab::wg().unwrap();
    let (wg, daemon) = (wg.display(), netsilo_lab::wireguard_go().unwrap());
    let peer = lab.peer(0).unwrap();
    let key = |private| lab.sh(&format!("echo {private} | '{wg}' pubkey")).unwrap();
    let [ours, theirs] = [1, 2].map(|_| lab.sh(&format!("'{wg}' genkey")).unwrap());
    let end = |private: &str, public: &str, more: &str, address| {
        let (private, public) = (private.trim(), public.trim());
        format!(
            "f=$(mktemp) && echo {private} > $f && \
             '{wg}' set over private-key $f listen-port 51820 peer {public} \
             allowed-ips 0.0.0.0/0 {more} && rm $f && \
             ip addr add {address}/24 dev over && ip link set over up"
        )
    };
    lab.sh(&format!(
        "ip link add over type wireguard && {}",
        end(&ours, &key(theirs.trim()), "", "10.79.0.1")
    ))
    .unwrap();
    // The peer's kernel is the host's, which may not have WireGuard.
    peer.sh(&format!(
        "'{}' over && {}",
        daemon.display(),
        end(&theirs, &key(ours.trim()), endpoint, "10.79.0.2")
    ))
    .unwrap();
}

/// Has packets to the container skip the guest's IP, as Cilium does.
fn redirect(lab: &Lab, way: &str) {
    let sys = concat!(env!("CARGO_MANIFEST_DIR"), "/../sys");
    let helper = netsilo_lab::example(sys, "test_helper").unwrap();
    let helper = helper.display();
    lab.sh(&format!(
        "mountpoint -q /sys/fs/bpf || mount -t bpf none /sys/fs/bpf; \
         '{helper}' pin-redirect {way} $(cat /sys/class/net/outer/ifindex) {ROUTED} \
         /sys/fs/bpf/redirect && tc qdisc add dev eth0 clsact && \
         tc filter add dev eth0 ingress bpf direct-action object-pinned /sys/fs/bpf/redirect"
    ))
    .unwrap();
}
