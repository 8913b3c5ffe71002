//! Time of receive work by stage: samples of kernel stacks, classified by their functions.
//!
//! The innermost function in the table decides. Functions that all stages use (copying, allocating,
//! locking, waking) have no row, so they count for the stage that called them. `docs/kernel.md`
//! lists what this method cannot separate.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::machine::cpuset::CpuId;
use crate::parse::kallsyms::Symbol;
use crate::snapshot::stage_samples::{ReceiveStage, StageSamples};

/// A function name pattern and its stage; `*` at either end matches anything.
type StagePattern = (&'static str, ReceiveStage);

/// The first matching row decides: specific patterns come before general ones.
const FUNCTIONS: &[StagePattern] = &[
    // IOMMUs and bounce buffers, before the disciplines: `fq_` is the flush queue's beginning, too
    ("*iommu*", ReceiveStage::DmaMapping),
    ("*iova*", ReceiveStage::DmaMapping),
    ("*arm_smmu*", ReceiveStage::DmaMapping),
    ("*arm_lpae*", ReceiveStage::DmaMapping),
    ("fq_ring_*", ReceiveStage::DmaMapping),
    ("fq_flush_*", ReceiveStage::DmaMapping),
    ("qi_submit_sync", ReceiveStage::DmaMapping),
    ("*domain_mapping", ReceiveStage::DmaMapping),
    ("dma_pte_*", ReceiveStage::DmaMapping),
    ("cache_tag_*", ReceiveStage::DmaMapping),
    ("*swiotlb*", ReceiveStage::DmaMapping),
    ("dma_map_*", ReceiveStage::DmaMapping),
    ("dma_unmap_*", ReceiveStage::DmaMapping),
    ("__dma_sync_*", ReceiveStage::DmaMapping),
    ("dma_sync_*", ReceiveStage::DmaMapping),
    // completion of sent packets
    ("*clean_tx*", ReceiveStage::TxCompletion),
    ("*poll_tx*", ReceiveStage::TxCompletion),
    ("*poll_cleantx", ReceiveStage::TxCompletion),
    ("*free_old_xmit*", ReceiveStage::TxCompletion),
    ("*_tx_clean*", ReceiveStage::TxCompletion),
    ("*_tx_int", ReceiveStage::TxCompletion),
    ("*tx_completion*", ReceiveStage::TxCompletion),
    ("napi_consume_skb", ReceiveStage::TxCompletion),
    ("net_tx_action", ReceiveStage::TxCompletion),
    // transmit
    ("*start_xmit*", ReceiveStage::QdiscXmit),
    ("*xmit_frame*", ReceiveStage::QdiscXmit),
    ("*dev_queue_xmit*", ReceiveStage::QdiscXmit),
    ("__dev_xmit_skb", ReceiveStage::QdiscXmit),
    ("*dev_direct_xmit", ReceiveStage::QdiscXmit),
    ("sch_direct_xmit", ReceiveStage::QdiscXmit),
    ("*qdisc_*", ReceiveStage::QdiscXmit),
    ("pfifo_*", ReceiveStage::QdiscXmit),
    ("fq_*", ReceiveStage::QdiscXmit),
    ("codel_*", ReceiveStage::QdiscXmit),
    ("cake_*", ReceiveStage::QdiscXmit),
    ("htb_*", ReceiveStage::QdiscXmit),
    ("validate_xmit_*", ReceiveStage::QdiscXmit),
    ("*gso_segment*", ReceiveStage::QdiscXmit),
    ("skb_segment*", ReceiveStage::QdiscXmit),
    ("netdev_core_pick_tx", ReceiveStage::QdiscXmit),
    ("netdev_pick_tx", ReceiveStage::QdiscXmit),
    // GRO, before the protocols: these functions contain protocol names
    ("*gro_receive*", ReceiveStage::DriverGro),
    ("*gro_complete*", ReceiveStage::DriverGro),
    ("*gro_flush*", ReceiveStage::DriverGro),
    ("napi_gro_*", ReceiveStage::DriverGro),
    ("gro_*", ReceiveStage::DriverGro),
    ("napi_complete*", ReceiveStage::DriverGro),
    // packet filter
    ("nf_*", ReceiveStage::Netfilter),
    ("__nf_*", ReceiveStage::Netfilter),
    ("nft_*", ReceiveStage::Netfilter),
    ("ipt_*", ReceiveStage::Netfilter),
    ("ip6t_*", ReceiveStage::Netfilter),
    ("iptable_*", ReceiveStage::Netfilter),
    ("ip6table_*", ReceiveStage::Netfilter),
    ("xt_*", ReceiveStage::Netfilter),
    ("ebt_*", ReceiveStage::Netfilter),
    ("br_nf_*", ReceiveStage::Netfilter),
    ("ip_set_*", ReceiveStage::Netfilter),
    // protocols
    ("tcp_*", ReceiveStage::LocalDelivery),
    ("__tcp_*", ReceiveStage::LocalDelivery),
    ("udp_*", ReceiveStage::LocalDelivery),
    ("__udp*", ReceiveStage::LocalDelivery),
    ("udpv6_*", ReceiveStage::LocalDelivery),
    ("icmp*", ReceiveStage::LocalDelivery),
    ("__icmp*", ReceiveStage::LocalDelivery),
    ("raw_*", ReceiveStage::LocalDelivery),
    ("sctp_*", ReceiveStage::LocalDelivery),
    ("mptcp_*", ReceiveStage::LocalDelivery),
    ("packet_rcv*", ReceiveStage::LocalDelivery),
    ("tpacket_rcv", ReceiveStage::LocalDelivery),
    ("ip_local_deliver*", ReceiveStage::LocalDelivery),
    ("ip_protocol_deliver_rcu", ReceiveStage::LocalDelivery),
    ("ip6_input*", ReceiveStage::LocalDelivery),
    ("ip6_protocol_deliver_rcu", ReceiveStage::LocalDelivery),
    ("sock_*", ReceiveStage::LocalDelivery),
    ("__sock_*", ReceiveStage::LocalDelivery),
    ("sk_*", ReceiveStage::LocalDelivery),
    ("__inet_lookup*", ReceiveStage::LocalDelivery),
    ("__inet6_lookup*", ReceiveStage::LocalDelivery),
    ("ep_poll_callback", ReceiveStage::LocalDelivery),
    // from device to device
    ("*netif_receive_skb*", ReceiveStage::BridgeIp),
    ("enqueue_to_backlog", ReceiveStage::BridgeIp),
    ("get_rps_cpu", ReceiveStage::BridgeIp),
    ("br_*", ReceiveStage::BridgeIp),
    ("__br_*", ReceiveStage::BridgeIp),
    ("ip_*", ReceiveStage::BridgeIp),
    ("__ip_*", ReceiveStage::BridgeIp),
    ("ip6_*", ReceiveStage::BridgeIp),
    ("ipv6_*", ReceiveStage::BridgeIp),
    ("fib_*", ReceiveStage::BridgeIp),
    ("__fib_*", ReceiveStage::BridgeIp),
    ("fib6_*", ReceiveStage::BridgeIp),
    ("rt_*", ReceiveStage::BridgeIp),
    ("neigh_*", ReceiveStage::BridgeIp),
    ("__neigh_*", ReceiveStage::BridgeIp),
    ("arp_*", ReceiveStage::BridgeIp),
    ("ndisc_*", ReceiveStage::BridgeIp),
    ("vlan_*", ReceiveStage::BridgeIp),
    ("vxlan_*", ReceiveStage::BridgeIp),
    ("xfrm_*", ReceiveStage::BridgeIp),
    ("esp_*", ReceiveStage::BridgeIp),
    // frames of the softirq and the driver's poll
    ("*_poll", ReceiveStage::DriverGro),
    ("napi_threaded_poll*", ReceiveStage::DriverGro),
    ("net_rx_action", ReceiveStage::DriverGro),
    ("process_backlog", ReceiveStage::DriverGro),
    // frames below it belong to the interrupted code, for example a task that sends
    ("handle_softirqs", ReceiveStage::DriverGro),
    ("__do_softirq", ReceiveStage::DriverGro),
];

/// Modules that serve one stage only, for functions without a row in `FUNCTIONS`.
const MODULES: &[StagePattern] = &[
    ("br_netfilter", ReceiveStage::Netfilter),
    ("nf_*", ReceiveStage::Netfilter),
    ("nft_*", ReceiveStage::Netfilter),
    ("x_tables", ReceiveStage::Netfilter),
    ("xt_*", ReceiveStage::Netfilter),
    ("ip_tables", ReceiveStage::Netfilter),
    ("ip6_tables", ReceiveStage::Netfilter),
    ("iptable_*", ReceiveStage::Netfilter),
    ("ip6table_*", ReceiveStage::Netfilter),
    ("ebtable*", ReceiveStage::Netfilter),
    ("bridge", ReceiveStage::BridgeIp),
    ("sch_*", ReceiveStage::QdiscXmit),
];

/// The stage of a stack given innermost function first.
pub fn stage_of<'a>(stack: impl IntoIterator<Item = &'a Symbol>) -> ReceiveStage {
    stack.into_iter().find_map(stage_of_function).unwrap_or(ReceiveStage::Other)
}

fn stage_of_function(symbol: &Symbol) -> Option<ReceiveStage> {
    let by_name = find(FUNCTIONS, &symbol.name);
    by_name.or_else(|| find(MODULES, symbol.module.as_ref()?))
}

fn find(rows: &[StagePattern], name: &str) -> Option<ReceiveStage> {
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StagesLine {
    /// The CPU; `None` for all CPUs together.
    pub cpu: Option<CpuId>,
    /// Samples in receive work.
    pub samples: u64,
    /// Samples by stage.
    pub stages: BTreeMap<ReceiveStage, u64>,
    /// Share of these samples by stage.
    pub shares: BTreeMap<ReceiveStage, f64>,
    /// Share of the CPU's time, or of the time of all sampled CPUs, by stage.
    pub of_time: BTreeMap<ReceiveStage, f64>,
}

/// Where receive work spends its time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stages {
    /// Samples per second and CPU.
    pub per_s: u32,
    /// All CPUs together.
    pub total: StagesLine,
    /// Each CPU with samples in receive work.
    pub cpus: Vec<StagesLine>,
    /// Samples whose stack was lost.
    pub lost: u64,
    /// Why there are no samples, or only samples of `other`.
    pub refused: Option<String>,
}

impl Stages {
    /// Computes shares from the samples of a window of `seconds`.
    pub fn from_samples(samples: &StageSamples, seconds: f64) -> Self {
        let expected = f64::from(samples.per_s) * seconds;
        let mut all: BTreeMap<ReceiveStage, u64> = BTreeMap::new();
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

fn line(cpu: Option<CpuId>, stages: BTreeMap<ReceiveStage, u64>, expected: f64) -> StagesLine {
    let samples = stages.values().fold(0u64, |sum, count| sum.saturating_add(*count));
    let parts = |all: f64| -> BTreeMap<ReceiveStage, f64> {
        let part = |(stage, count): (&ReceiveStage, &u64)| (*stage, (*count as f64 / all).min(1.0));
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
                ReceiveStage::DriverGro,
            ),
            (
                "igb_alloc_rx_buffers@igb igb_poll@igb __napi_poll net_rx_action",
                ReceiveStage::DriverGro,
            ),
            (
                "fib_table_lookup ip_route_input_noref ip_rcv __netif_receive_skb_core",
                ReceiveStage::BridgeIp,
            ),
            (
                "_raw_spin_lock br_forward@bridge br_handle_frame@bridge igb_poll@igb",
                ReceiveStage::BridgeIp,
            ),
            (
                "hash_conntrack_raw nf_conntrack_in@nf_conntrack nf_hook_slow ip_rcv",
                ReceiveStage::Netfilter,
            ),
            (
                "jhash2 expr_call_ops_eval@nf_tables nft_do_chain@nf_tables nf_hook_slow",
                ReceiveStage::Netfilter,
            ),
            (
                "__list_add expr_call_ops_eval@nf_tables __netif_receive_skb_core",
                ReceiveStage::Netfilter,
            ),
            (
                "try_to_wake_up ep_poll_callback __wake_up_common sock_def_readable \
                 tcp_rcv_established",
                ReceiveStage::LocalDelivery,
            ),
            (
                "_raw_spin_lock_irqsave fq_ring_free iommu_dma_unmap_page dma_unmap_page_attrs \
                 igb_clean_rx_irq@igb igb_poll@igb",
                ReceiveStage::DmaMapping,
            ),
            (
                "qi_submit_sync qi_flush_iotlb intel_iommu_tlb_sync iommu_dma_unmap_page \
                 igb_clean_tx_irq@igb igb_poll@igb",
                ReceiveStage::DmaMapping,
            ),
            (
                "memcpy swiotlb_bounce swiotlb_tbl_map_single dma_map_page_attrs \
                 start_xmit@virtio_net dev_hard_start_xmit",
                ReceiveStage::DmaMapping,
            ),
            ("fq_dequeue@sch_fq __qdisc_run net_tx_action", ReceiveStage::QdiscXmit),
            ("skb_copy_bits virtnet_poll@virtio_net net_rx_action", ReceiveStage::DriverGro),
            (
                "virtqueue_add_outbuf start_xmit@virtio_net dev_hard_start_xmit \
                 sch_direct_xmit __dev_queue_xmit ip_output",
                ReceiveStage::QdiscXmit,
            ),
            ("skb_release_data igb_clean_tx_irq@igb igb_poll@igb", ReceiveStage::TxCompletion),
            (
                "virtqueue_get_buf free_old_xmit_skbs@virtio_net virtnet_poll_tx@virtio_net",
                ReceiveStage::TxCompletion,
            ),
            (
                "rcu_read_unlock handle_softirqs do_softirq __dev_queue_xmit udp_sendmsg",
                ReceiveStage::DriverGro,
            ),
            ("native_halt default_idle", ReceiveStage::Other),
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
            (CpuId(0), [(ReceiveStage::DriverGro, 30), (ReceiveStage::BridgeIp, 10)].into()),
            (CpuId(3), [(ReceiveStage::BridgeIp, 40)].into()),
        ];
        let samples = StageSamples { per_s: 100, cpus: cpus.into(), ..StageSamples::default() };
        let stages = Stages::from_samples(&samples, 2.0);
        assert_eq!(
            stages.total.shares,
            [(ReceiveStage::DriverGro, 0.375), (ReceiveStage::BridgeIp, 0.625)].into()
        );
        assert_eq!(stages.cpus[0].shares[&ReceiveStage::DriverGro], 0.75);
        assert_eq!(
            (
                stages.cpus[0].of_time[&ReceiveStage::DriverGro],
                stages.total.of_time[&ReceiveStage::BridgeIp]
            ),
            (0.15, 0.125)
        );
        assert_eq!(Stages::from_samples(&samples, 0.0).total.of_time, BTreeMap::new());
    }
}
