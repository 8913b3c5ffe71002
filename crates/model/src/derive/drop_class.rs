//! What it means that the kernel dropped a packet, by the reason that it gave; where it gave none
//! (before Linux 5.17, and `NOT_SPECIFIED`), by the function that dropped it.

use serde::{Deserialize, Serialize};

use crate::drivers::loss_stage::LossStage;
use crate::snapshot::drops::DroppedPackets;

/// What a drop means.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum DropClass {
    /// A queue was full, memory was short, or the packet was damaged or could not be sent on.
    Lost,
    /// The kernel did not say why, and its function does not tell.
    #[default]
    Unknown,
    /// A rule, a policer or a program dropped it on purpose.
    Decided,
    /// It was addressed to another host, or nobody here receives it.
    NotForUs,
    /// Nothing is missing: old or merged data, or what a closed socket had not read.
    NoLoss,
}

impl DropClass {
    /// The class as printed.
    pub fn label(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Unknown => "not known",
            Self::Decided => "decided",
            Self::NotForUs => "not for us",
            Self::NoLoss => "no loss",
        }
    }

    /// The class of dropped packets by their reason and function alone. What was observed may show
    /// more: see [`crate::derive::drop_judge`].
    pub fn of(drop: &DroppedPackets) -> Self {
        cause(drop).0
    }
}

/// Where dropped packets were lost, if they were.
pub(crate) fn lost_at(drop: &DroppedPackets) -> Option<LossStage> {
    let (class, stage) = cause(drop);
    matches!(class, DropClass::Lost | DropClass::Unknown).then_some(stage)
}

/// Whether the kernel gave a reason.
pub(crate) fn has_reason(drop: &DroppedPackets) -> bool {
    !matches!(drop.reason.as_str(), "" | "NOT_SPECIFIED")
}

/// What the drop means, and the stage; the latter matters only for packets that were lost.
fn cause(drop: &DroppedPackets) -> (DropClass, LossStage) {
    let find = |rows: &[Row], name: &str| {
        let row = rows.iter().find(|(_, _, names)| matches(names, name));
        row.map(|(class, stage, _)| (*class, *stage))
    };
    let by_function = find(FUNCTIONS, &drop.function);
    let by_reason = find(REASONS, &drop.reason);
    if !has_reason(drop) || by_reason.is_none() && is_of_a_module(&drop.reason) {
        return by_function.unwrap_or((DropClass::Unknown, LossStage::Other));
    }
    // `include/net/dropreason-core.h`: all others are full queues, short memory, and packets that
    // are damaged or cannot be sent on.
    let stage = match by_function {
        Some((DropClass::Lost, stage)) => stage,
        _ => LossStage::Other,
    };
    by_reason.unwrap_or((DropClass::Lost, stage))
}

/// Whether one of these names is this one; those that end with `*` are beginnings.
fn matches(names: &[&str], text: &str) -> bool {
    names.iter().any(|name| match name.strip_suffix('*') {
        Some(start) => text.starts_with(start),
        None => *name == text,
    })
}

/// Whether it is a reason of a module (mac80211, Open vSwitch), which is not in the kernel's own
/// list: a number without a name, or `OVS_DROP_METER`.
fn is_of_a_module(reason: &str) -> bool {
    reason.contains("_DROP_") || reason.bytes().all(|byte| byte.is_ascii_digit())
}

/// A class, a stage, and the names of reasons or functions.
type Row = (DropClass, LossStage, &'static [&'static str]);

/// Reasons (`enum skb_drop_reason`, without their prefix).
const REASONS: &[Row] = &[
    (
        DropClass::Decided,
        LossStage::Other,
        &[
            "NETFILTER_DROP",
            "SOCKET_FILTER",
            "IP_RPFILTER",
            "XFRM_POLICY",
            "BPF_CGROUP_EGRESS",
            "TC_INGRESS",
            "TC_EGRESS",
            "XDP",
            "SECURITY_HOOK",
            "TAP_FILTER",
            "TAP_TXFILTER",
            "TCP_AUTH_HDR",
            "TCP_MD5*",
            "TCP_AO*",
            "TCP_MINTTL",
            "ARP_PVLAN_DISABLE",
            "BRIDGE_INGRESS_STP_STATE",
            "QDISC_CONGESTED",
            "QDISC_DROP_CONGESTED",
            "QDISC_DROP_L4S_STEP_NON_ECN",
            "OVS_DROP_EXPLICIT*",
            "OVS_DROP_LAST_ACTION",
            "OVS_DROP_METER",
        ],
    ),
    (
        DropClass::NotForUs,
        LossStage::Other,
        &[
            "OTHERHOST",
            "NO_SOCKET",
            "IP_NOPROTO",
            "UNHANDLED_PROTO",
            "INVALID_PROTO",
            "UNICAST_IN_L2_MULTICAST",
            "IPV6DISABLED",
            "LOCAL_MAC",
            "NO_TX_TARGET",
            "RX_DROP_U_UNHANDLED_*",
        ],
    ),
    (
        DropClass::NoLoss,
        LossStage::Other,
        &[
            "CONSUMED",
            "NOT_DROPPED_YET",
            "SOCKET_CLOSE",
            "QUEUE_PURGE",
            "UNIX_*",
            "DUP_FRAG",
            "TCP_OLD_*",
            "TCP_TOO_OLD_ACK",
            "TCP_OFOMERGE",
            "TCP_RFC7323_PAWS_ACK",
            "TCP_CLOSE",
            "TCP_RESET",
            "TCP_ABORT_ON_DATA",
            "TCP_FASTOPEN",
            "RX_DROP_U_DUP",
            "RX_DROP_U_NULL_DATA",
        ],
    ),
    (DropClass::Lost, LossStage::Other, &["OVS_DROP_*", "RX_DROP_U_*"]),
    (DropClass::Lost, LossStage::Backlog, &["CPU_BACKLOG"]),
    (DropClass::Lost, LossStage::PacketSocket, &["PACKET_SOCK_ERROR"]),
    (DropClass::Lost, LossStage::Neighbour, &["NEIGH_*"]),
    (DropClass::Lost, LossStage::Qdisc, &["QDISC_*", "FQ_*"]),
    (DropClass::Lost, LossStage::VirtualDevice, &["FULL_RING"]),
    (
        DropClass::Lost,
        LossStage::Socket,
        &[
            "SOCKET_RCVBUFF",
            "SOCKET_BACKLOG",
            "PROTO_MEM",
            "TCP_OFODROP",
            "TCP_OFO_QUEUE_PRUNE",
            "TCP_ZEROWINDOW",
        ],
    ),
    (
        DropClass::Lost,
        LossStage::Protocol,
        &[
            "IP_*",
            "IPV6_*",
            "ICMP*",
            "FRAG_*",
            "UDP_CSUM",
            "TCP_CSUM",
            "SKB_CSUM",
            "PKT_TOO_*",
            "HDR_TRUNC",
            "PFMEMALLOC",
            "XFRM_*",
        ],
    ),
];

/// Functions that drop packets without a reason. Those that lose also tell the stage of reasons
/// that several stages share (`NOMEM`).
const FUNCTIONS: &[Row] = &[
    (DropClass::Lost, LossStage::Backlog, &["enqueue_to_backlog"]),
    (
        DropClass::Lost,
        LossStage::VirtualDevice,
        &[
            "veth_xmit",
            "tun_net_xmit",
            "tap_handle_frame",
            "macvtap_handle_frame",
            "gro_cells_receive",
            "macvlan_broadcast_enqueue",
            "ipvlan_multicast_enqueue",
        ],
    ),
    (DropClass::Lost, LossStage::PacketSocket, &["packet_rcv", "tpacket_rcv"]),
    (
        DropClass::Lost,
        LossStage::Nfqueue,
        &["nfqnl_enqueue_packet", "__nfqnl_enqueue_packet", "nf_queue", "__nf_queue"],
    ),
    (
        DropClass::Lost,
        LossStage::Socket,
        &[
            "udp_queue_rcv_one_skb",
            "udpv6_queue_rcv_one_skb",
            "__udp_queue_rcv_skb",
            "raw_rcv_skb",
            "rawv6_rcv_skb",
            "ping_queue_rcv_skb",
            "tcp_add_backlog",
        ],
    ),
    (DropClass::Lost, LossStage::Listen, &["tcp_conn_request"]),
    (DropClass::Lost, LossStage::Neighbour, &["neigh_*", "__neigh_event_send", "arp_error_report"]),
    (
        DropClass::Lost,
        LossStage::Qdisc,
        &["__dev_queue_xmit", "__dev_xmit_skb", "qdisc_*", "pfifo_fast_enqueue"],
    ),
    (DropClass::Lost, LossStage::Protocol, &["ip_frag_*", "inet_frag_*", "ip_defrag", "ip_expire"]),
    (
        DropClass::Decided,
        LossStage::Other,
        &[
            "nf_hook_slow",
            "nf_hook_slow_list",
            "nfqnl_*",
            "nf_reinject",
            "do_xdp_generic",
            "netif_receive_generic_xdp",
            "bpf_prog_run_generic_xdp",
            // native XDP of a veth
            "veth_xdp_rcv_skb",
            "sch_handle_ingress",
            "tcf_*",
            "ip_finish_output",
            // Routes that reject: blackhole, prohibit.
            "ip_error",
            "dst_discard*",
            "sk_filter_trim_cap",
        ],
    ),
    (
        DropClass::NotForUs,
        LossStage::Other,
        &["ip6_mc_input", "icmp_rcv", "icmpv6_rcv", "igmp_rcv", "ndisc_*", "br_dev_xmit"],
    ),
    (
        DropClass::NoLoss,
        LossStage::Other,
        &[
            "netlink_*",
            "unix_*",
            "skb_queue_purge*",
            "__skb_queue_purge*",
            "skb_release_data",
            "skb_release_head_state",
            "sk_stream_kill_queues",
            "inet_csk_destroy_sock",
            "inet_sock_destruct",
            "udp_destruct_common",
            "__sk_destruct",
            "tcp_write_queue_purge",
            "tcp_rtx_queue_purge",
            "tcp_ack",
            "tcp_clean_rtx_queue",
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn class(reason: &str, function: &str) -> DropClass {
        let drop = DroppedPackets {
            reason: reason.into(),
            function: function.into(),
            ..DroppedPackets::default()
        };
        DropClass::of(&drop)
    }

    #[test]
    fn the_reason_counts_before_the_function() {
        assert_eq!(class("SOCKET_RCVBUFF", "unix_stream_sendmsg"), DropClass::Lost);
        assert_eq!(class("TCP_OLD_DATA", "tcp_data_queue"), DropClass::NoLoss);
        assert_eq!(class("NETFILTER_DROP", "nf_hook_slow"), DropClass::Decided);
        assert_eq!(class("NO_SOCKET", "udp4_lib_rcv"), DropClass::NotForUs);
    }

    #[test]
    fn without_a_reason_the_function_tells_or_nothing_does() {
        for reason in ["", "NOT_SPECIFIED"] {
            assert_eq!(class(reason, "veth_xmit"), DropClass::Lost);
            assert_eq!(class(reason, "do_xdp_generic"), DropClass::Decided);
            assert_eq!(class(reason, "__nfqnl_enqueue_packet"), DropClass::Lost);
            assert_eq!(class(reason, "some_driver_poll"), DropClass::Unknown);
        }
        assert_eq!(class("65537", "ieee80211_rx_handlers"), DropClass::Unknown);
    }

    #[test]
    fn reasons_of_modules_have_a_class_by_their_names_or_none() {
        for (class_of, names) in [
            (DropClass::Decided, &["OVS_DROP_METER", "OVS_DROP_EXPLICIT_WITH_ERROR"][..]),
            (DropClass::Decided, &["QDISC_DROP_CONGESTED", "OVS_DROP_LAST_ACTION"]),
            (DropClass::NoLoss, &["RX_DROP_U_DUP"]),
            (DropClass::NotForUs, &["RX_DROP_U_UNHANDLED_MGMT"]),
            (DropClass::Lost, &["RX_DROP_U_REPLAY", "RX_DROP_U_MIC_FAIL", "QDISC_DROP_OVERLIMIT"]),
            (DropClass::Lost, &["OVS_DROP_DEFERRED_LIMIT", "OVS_DROP_FRAG_L2_TOO_LONG"]),
            (DropClass::Unknown, &["RX_DROP_MONITOR", "NEW_DROP_THING", "262145"]),
        ] {
            assert!(names.iter().all(|name| class(name, "f") == class_of), "{names:?}");
        }
        assert_eq!(class("QDISC_DROP", "f"), DropClass::Lost);
        assert_eq!(class("NEW_DROP_THING", "nf_hook_slow"), DropClass::Decided);
    }

    #[test]
    fn what_was_lost_has_its_stage_and_nothing_else_has_one() {
        let stage = |reason: &str, function: &str| {
            lost_at(&DroppedPackets {
                reason: reason.into(),
                function: function.into(),
                ..DroppedPackets::default()
            })
        };
        assert_eq!(stage("NEIGH_QUEUEFULL", "__neigh_event_send"), Some(LossStage::Neighbour));
        assert_eq!(stage("NOMEM", "tcp_add_backlog"), Some(LossStage::Socket));
        assert_eq!(stage("NOMEM", "nf_hook_slow"), Some(LossStage::Other));
        assert_eq!(stage("", "__nf_queue"), Some(LossStage::Nfqueue));
        assert_eq!(stage("", "some_driver_poll"), Some(LossStage::Other));
        assert_eq!(stage("NETFILTER_DROP", "nf_hook_slow"), None);
    }
}
