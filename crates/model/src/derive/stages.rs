//! Time of receive work by stage: samples of kernel stacks, classified by their functions.
//!
//! The innermost function in the table decides. Functions that all stages use (copying, allocating,
//! locking, waking) have no row, so they count for the stage that called them. `docs/kernel.md`
//! lists what this method cannot separate.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::machine::cpuset::CpuId;
use crate::parse::kallsyms::Symbol;
use crate::snapshot::stage_samples::{Stage, StageSamples};

/// A function name pattern and its stage; `*` at either end matches anything.
type Row = (&'static str, Stage);

/// The first matching row decides: specific patterns come before general ones.
const FUNCTIONS: &[Row] = &[
    // completion of sent packets
    ("*clean_tx*", Stage::TxCompletion),
    ("*poll_tx*", Stage::TxCompletion),
    ("*poll_cleantx", Stage::TxCompletion),
    ("*free_old_xmit*", Stage::TxCompletion),
    ("*_tx_clean*", Stage::TxCompletion),
    ("*_tx_int", Stage::TxCompletion),
    ("*tx_completion*", Stage::TxCompletion),
    ("napi_consume_skb", Stage::TxCompletion),
    ("net_tx_action", Stage::TxCompletion),
    // transmit
    ("*start_xmit*", Stage::QdiscXmit),
    ("*xmit_frame*", Stage::QdiscXmit),
    ("*dev_queue_xmit*", Stage::QdiscXmit),
    ("__dev_xmit_skb", Stage::QdiscXmit),
    ("*dev_direct_xmit", Stage::QdiscXmit),
    ("sch_direct_xmit", Stage::QdiscXmit),
    ("*qdisc_*", Stage::QdiscXmit),
    ("pfifo_*", Stage::QdiscXmit),
    ("fq_*", Stage::QdiscXmit),
    ("codel_*", Stage::QdiscXmit),
    ("cake_*", Stage::QdiscXmit),
    ("htb_*", Stage::QdiscXmit),
    ("validate_xmit_*", Stage::QdiscXmit),
    ("*gso_segment*", Stage::QdiscXmit),
    ("skb_segment*", Stage::QdiscXmit),
    ("netdev_core_pick_tx", Stage::QdiscXmit),
    ("netdev_pick_tx", Stage::QdiscXmit),
    // GRO, before the protocols: these functions contain protocol names
    ("*gro_receive*", Stage::DriverGro),
    ("*gro_complete*", Stage::DriverGro),
    ("*gro_flush*", Stage::DriverGro),
    ("napi_gro_*", Stage::DriverGro),
    ("gro_*", Stage::DriverGro),
    ("napi_complete*", Stage::DriverGro),
    // packet filter
    ("nf_*", Stage::Netfilter),
    ("__nf_*", Stage::Netfilter),
    ("nft_*", Stage::Netfilter),
    ("ipt_*", Stage::Netfilter),
    ("ip6t_*", Stage::Netfilter),
    ("iptable_*", Stage::Netfilter),
    ("ip6table_*", Stage::Netfilter),
    ("xt_*", Stage::Netfilter),
    ("ebt_*", Stage::Netfilter),
    ("br_nf_*", Stage::Netfilter),
    ("ip_set_*", Stage::Netfilter),
    // protocols
    ("tcp_*", Stage::LocalDelivery),
    ("__tcp_*", Stage::LocalDelivery),
    ("udp_*", Stage::LocalDelivery),
    ("__udp*", Stage::LocalDelivery),
    ("udpv6_*", Stage::LocalDelivery),
    ("icmp*", Stage::LocalDelivery),
    ("__icmp*", Stage::LocalDelivery),
    ("raw_*", Stage::LocalDelivery),
    ("sctp_*", Stage::LocalDelivery),
    ("mptcp_*", Stage::LocalDelivery),
    ("packet_rcv*", Stage::LocalDelivery),
    ("tpacket_rcv", Stage::LocalDelivery),
    ("ip_local_deliver*", Stage::LocalDelivery),
    ("ip_protocol_deliver_rcu", Stage::LocalDelivery),
    ("ip6_input*", Stage::LocalDelivery),
    ("ip6_protocol_deliver_rcu", Stage::LocalDelivery),
    ("sock_*", Stage::LocalDelivery),
    ("__sock_*", Stage::LocalDelivery),
    ("sk_*", Stage::LocalDelivery),
    ("__inet_lookup*", Stage::LocalDelivery),
    ("__inet6_lookup*", Stage::LocalDelivery),
    ("ep_poll_callback", Stage::LocalDelivery),
    // from device to device
    ("*netif_receive_skb*", Stage::BridgeIp),
    ("enqueue_to_backlog", Stage::BridgeIp),
    ("get_rps_cpu", Stage::BridgeIp),
    ("br_*", Stage::BridgeIp),
    ("__br_*", Stage::BridgeIp),
    ("ip_*", Stage::BridgeIp),
    ("__ip_*", Stage::BridgeIp),
    ("ip6_*", Stage::BridgeIp),
    ("ipv6_*", Stage::BridgeIp),
    ("fib_*", Stage::BridgeIp),
    ("__fib_*", Stage::BridgeIp),
    ("fib6_*", Stage::BridgeIp),
    ("rt_*", Stage::BridgeIp),
    ("neigh_*", Stage::BridgeIp),
    ("__neigh_*", Stage::BridgeIp),
    ("arp_*", Stage::BridgeIp),
    ("ndisc_*", Stage::BridgeIp),
    ("vlan_*", Stage::BridgeIp),
    ("vxlan_*", Stage::BridgeIp),
    ("xfrm_*", Stage::BridgeIp),
    ("esp_*", Stage::BridgeIp),
    // frames of the softirq and the driver's poll
    ("*_poll", Stage::DriverGro),
    ("napi_threaded_poll*", Stage::DriverGro),
    ("net_rx_action", Stage::DriverGro),
    ("process_backlog", Stage::DriverGro),
    // frames below it belong to the interrupted code, for example a task that sends
    ("handle_softirqs", Stage::DriverGro),
    ("__do_softirq", Stage::DriverGro),
];

/// Modules that serve one stage only, for functions without a row in `FUNCTIONS`.
const MODULES: &[Row] = &[
    ("br_netfilter", Stage::Netfilter),
    ("nf_*", Stage::Netfilter),
    ("nft_*", Stage::Netfilter),
    ("x_tables", Stage::Netfilter),
    ("xt_*", Stage::Netfilter),
    ("ip_tables", Stage::Netfilter),
    ("ip6_tables", Stage::Netfilter),
    ("iptable_*", Stage::Netfilter),
    ("ip6table_*", Stage::Netfilter),
    ("ebtable*", Stage::Netfilter),
    ("bridge", Stage::BridgeIp),
    ("sch_*", Stage::QdiscXmit),
];

/// The stage of a stack given innermost function first.
pub fn stage_of<'a>(stack: impl IntoIterator<Item = &'a Symbol>) -> Stage {
    stack.into_iter().find_map(stage_of_function).unwrap_or(Stage::Other)
}

fn stage_of_function(symbol: &Symbol) -> Option<Stage> {
    let by_name = find(FUNCTIONS, &symbol.name);
    by_name.or_else(|| find(MODULES, symbol.module.as_ref()?))
}

fn find(rows: &[Row], name: &str) -> Option<Stage> {
    rows.iter().find(|(pattern, _)| matches(pattern, name)).map(|(_, stage)| *stage)
}

fn matches(pattern: &str, name: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(rest), Some(_)) => name.contains(&rest[..rest.len() - 1]),
        (Some(end), None) => name.ends_with(end),
        (None, Some(start)) => name.starts_with(start),
        (None, None) => name == pattern,
    }
}

/// Samples by stage, with shares.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StagesLine {
    /// The CPU; `None` for all CPUs together.
    pub cpu: Option<CpuId>,
    /// Samples in receive work.
    pub samples: u64,
    /// Samples by stage.
    pub stages: BTreeMap<Stage, u64>,
    /// Share of these samples by stage.
    pub shares: BTreeMap<Stage, f64>,
    /// Share of the CPU's time, or of the time of all sampled CPUs, by stage.
    pub of_time: BTreeMap<Stage, f64>,
}

/// Where receive work spends its time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Stages {
    /// Samples per second and CPU.
    pub per_s: u32,
    /// All CPUs together.
    pub total: StagesLine,
    /// Each CPU with samples in receive work.
    pub cpus: Vec<StagesLine>,
    /// Samples whose stack was lost.
    pub lost: u64,
    /// Why there are no samples, or only `other`.
    pub refused: Option<String>,
}

impl Stages {
    /// Computes shares from the samples of a window of `seconds`.
    pub fn of(samples: &StageSamples, seconds: f64) -> Self {
        let expected = f64::from(samples.per_s) * seconds;
        let mut all: BTreeMap<Stage, u64> = BTreeMap::new();
        for (stage, count) in samples.cpus.values().flatten() {
            let sum = all.entry(*stage).or_default();
            *sum = sum.saturating_add(*count);
        }
        let cpus =
            samples.cpus.iter().map(|(cpu, stages)| line(Some(*cpu), stages.clone(), expected));
        Self {
            per_s: samples.per_s,
            total: line(None, all, expected * samples.cpus.len() as f64),
            cpus: cpus.collect(),
            lost: samples.lost,
            refused: samples.refused.clone(),
        }
    }
}

fn line(cpu: Option<CpuId>, stages: BTreeMap<Stage, u64>, expected: f64) -> StagesLine {
    let samples = stages.values().fold(0u64, |sum, count| sum.saturating_add(*count));
    let parts = |all: f64| -> BTreeMap<Stage, f64> {
        let part = |(stage, count): (&Stage, &u64)| (*stage, (*count as f64 / all).min(1.0));
        stages.iter().filter(|_| all > 0.0).map(part).collect()
    };
    StagesLine { cpu, samples, shares: parts(samples as f64), of_time: parts(expected), stages }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(names: &str) -> Vec<Symbol> {
        let symbol = |word: &str| match word.split_once('@') {
            Some((name, module)) => Symbol { name: name.into(), module: Some(module.into()) },
            None => Symbol { name: word.into(), module: None },
        };
        names.split(' ').map(symbol).collect()
    }

    #[test]
    fn the_innermost_known_function_decides() {
        let cases = [
            (
                "memcpy tcp4_gro_receive inet_gro_receive napi_gro_receive igb_poll@igb \
                 net_rx_action",
                Stage::DriverGro,
            ),
            ("igb_alloc_rx_buffers@igb igb_poll@igb __napi_poll net_rx_action", Stage::DriverGro),
            (
                "fib_table_lookup ip_route_input_noref ip_rcv __netif_receive_skb_core",
                Stage::BridgeIp,
            ),
            (
                "_raw_spin_lock br_forward@bridge br_handle_frame@bridge igb_poll@igb",
                Stage::BridgeIp,
            ),
            (
                "hash_conntrack_raw nf_conntrack_in@nf_conntrack nf_hook_slow ip_rcv",
                Stage::Netfilter,
            ),
            (
                "jhash2 expr_call_ops_eval@nf_tables nft_do_chain@nf_tables nf_hook_slow",
                Stage::Netfilter,
            ),
            ("__list_add expr_call_ops_eval@nf_tables __netif_receive_skb_core", Stage::Netfilter),
            (
                "try_to_wake_up ep_poll_callback __wake_up_common sock_def_readable \
                 tcp_rcv_established",
                Stage::LocalDelivery,
            ),
            ("skb_copy_bits virtnet_poll@virtio_net net_rx_action", Stage::DriverGro),
            (
                "virtqueue_add_outbuf start_xmit@virtio_net dev_hard_start_xmit \
                 sch_direct_xmit __dev_queue_xmit ip_output",
                Stage::QdiscXmit,
            ),
            ("skb_release_data igb_clean_tx_irq@igb igb_poll@igb", Stage::TxCompletion),
            (
                "virtqueue_get_buf free_old_xmit_skbs@virtio_net virtnet_poll_tx@virtio_net",
                Stage::TxCompletion,
            ),
            (
                "rcu_read_unlock handle_softirqs do_softirq __dev_queue_xmit udp_sendmsg",
                Stage::DriverGro,
            ),
            ("native_halt default_idle", Stage::Other),
        ];
        for (names, stage) in cases {
            assert_eq!(stage_of(&stack(names)), stage, "{names}");
        }
    }

    #[test]
    fn every_row_can_match_first() {
        for rows in [FUNCTIONS, MODULES] {
            for (at, (pattern, _)) in rows.iter().enumerate() {
                let name = pattern.replace('*', "x");
                let first = rows.iter().position(|(pattern, _)| matches(pattern, &name));
                assert_eq!(first, Some(at), "{pattern} never matches first");
            }
        }
    }

    #[test]
    fn shares_are_relative_to_samples_and_to_time() {
        let cpus = [
            (CpuId(0), [(Stage::DriverGro, 30), (Stage::BridgeIp, 10)].into()),
            (CpuId(3), [(Stage::BridgeIp, 40)].into()),
        ];
        let samples = StageSamples { per_s: 100, cpus: cpus.into(), ..StageSamples::default() };
        let stages = Stages::of(&samples, 2.0);
        assert_eq!(
            stages.total.shares,
            [(Stage::DriverGro, 0.375), (Stage::BridgeIp, 0.625)].into()
        );
        assert_eq!(stages.cpus[0].shares[&Stage::DriverGro], 0.75);
        assert_eq!(
            (stages.cpus[0].of_time[&Stage::DriverGro], stages.total.of_time[&Stage::BridgeIp]),
            (0.15, 0.125)
        );
        assert_eq!(Stages::of(&samples, 0.0).total.of_time, BTreeMap::new());
    }
}
