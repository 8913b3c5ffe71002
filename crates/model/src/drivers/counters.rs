//! Drivers' `ethtool -S` counters of packets that the driver or its device dropped on receive.
//!
//! The names come from the drivers' sources. A name that a driver lacks does no harm. `{n}` stands
//! for a number.

use std::fmt::Write as _;

use crate::drivers::loss_stage::LossStage;
use crate::drivers::name::{DriverName, has_driver};
use crate::snapshot::netdev::Netdev;

/// One counter of one or more drivers.
pub struct DropCounter {
    drivers: &'static [&'static str],
    name: &'static str,
    /// The stage of the ledger in which it counts.
    pub place: LossStage,
    /// Why it is shown but not counted as a loss; empty for a loss.
    pub aside: &'static str,
}

const fn lost(
    drivers: &'static [&'static str],
    name: &'static str,
    place: LossStage,
) -> DropCounter {
    DropCounter { drivers, name, place, aside: "" }
}

const fn shown(
    drivers: &'static [&'static str],
    name: &'static str,
    place: LossStage,
    aside: &'static str,
) -> DropCounter {
    DropCounter { drivers, name, place, aside }
}

const NO_MEMORY: &str = "no memory for a buffer; the driver retries";
const LIMIT: &str = "a limit of the instance: the provider queues or drops packets";

const ROWS: &[DropCounter] = &[
    lost(&["igb", "igc", "e1000e", "e1000", "ixgbe"], "rx_missed_errors", LossStage::Nic),
    lost(&["igb", "igc"], "rx_queue_{n}_drops", LossStage::Ring),
    shown(
        &["igb", "igc", "e1000e", "e1000"],
        "rx_no_buffer_count",
        LossStage::Ring,
        "packets waited in the NIC for a descriptor",
    ),
    shown(&["igb", "igc"], "rx_queue_{n}_alloc_failed", LossStage::Ring, NO_MEMORY),
    lost(&["ixgbe"], "rx_no_dma_resources", LossStage::Ring),
    shown(&["ixgbe"], "alloc_rx_page_failed", LossStage::Ring, NO_MEMORY),
    shown(&["ixgbe"], "alloc_rx_buff_failed", LossStage::Ring, NO_MEMORY),
    lost(&["i40e"], "port.rx_discards", LossStage::Nic),
    lost(&["i40e"], "port.rx_dropped", LossStage::Nic),
    lost(&["iavf"], "rx_discards", LossStage::Ring),
    lost(&["ice"], "rx_dropped.nic", LossStage::Nic),
    lost(&["mlx5_core"], "rx_out_of_buffer", LossStage::Ring),
    lost(&["mlx5_core"], "rx_discards_phy", LossStage::Nic),
    lost(&["mlx5_core"], "rx_prio{n}_discards", LossStage::Nic),
    shown(
        &["mlx5_core"],
        "rx_steer_missed_packets",
        LossStage::Nic,
        "not for this host: the packets matched no steering rule",
    ),
    shown(&["mlx5_core"], "rx_buff_alloc_err", LossStage::Ring, NO_MEMORY),
    shown(&["mlx5_core"], "rx_xdp_drop", LossStage::Xdp, ""),
    shown(&["veth"], "rx_queue_{n}_xdp_drops", LossStage::Xdp, ""),
    lost(&["bnxt_en"], "rx_total_discard_pkts", LossStage::Ring),
    lost(&["bnxt_en"], "[{n}]: rx_discards", LossStage::Ring),
    lost(&["bnxt_en"], "rx_stat_discard", LossStage::Nic),
    shown(&["bnxt_en"], "rx_total_oom_discards", LossStage::Ring, NO_MEMORY),
    lost(&["ena"], "rx_drops", LossStage::Nic),
    shown(&["ena"], "bw_in_allowance_exceeded", LossStage::Nic, LIMIT),
    shown(&["ena"], "pps_allowance_exceeded", LossStage::Nic, LIMIT),
    shown(&["ena"], "conntrack_allowance_exceeded", LossStage::Nic, LIMIT),
    shown(&["ena"], "linklocal_allowance_exceeded", LossStage::Nic, LIMIT),
    shown(&["ena"], "queue_{n}_rx_empty_rx_ring", LossStage::Ring, "times that the ring was empty"),
    shown(&["ena"], "queue_{n}_rx_page_alloc_fail", LossStage::Ring, NO_MEMORY),
    lost(&["gve"], "rx_queue_drop_cnt[{n}]", LossStage::Ring),
    lost(&["gve"], "rx_dropped_pkt[{n}]", LossStage::Ring),
    shown(
        &["gve"],
        "rx_no_buffers_posted[{n}]",
        LossStage::Ring,
        "times that no buffer was posted",
    ),
    shown(&["gve"], "rx_xdp_drop[{n}]", LossStage::Xdp, ""),
    lost(&["virtio_net"], "rx_queue_{n}_drops", LossStage::Ring),
    lost(&["virtio_net"], "rx{n}_drops", LossStage::Ring),
    lost(&["virtio_net"], "rx{n}_hw_drops", LossStage::Nic),
    lost(&["virtio_net"], "rx{n}_hw_drop_overruns", LossStage::Ring),
    shown(&["virtio_net"], "rx_queue_{n}_xdp_drops", LossStage::Xdp, ""),
    shown(&["virtio_net"], "rx{n}_xdp_drops", LossStage::Xdp, ""),
    lost(&["vmxnet3"], "pkts rx OOB", LossStage::Ring),
    lost(&["vmxnet3"], "drv dropped rx total", LossStage::Ring),
    shown(&["vmxnet3"], "rx buf alloc fail", LossStage::Ring, NO_MEMORY),
    lost(&["hv_netvsc"], "rx_no_memory", LossStage::Ring),
    shown(
        &["hv_netvsc"],
        "rx_comp_busy",
        LossStage::Ring,
        "completions that the host could not accept at once",
    ),
    shown(&["hv_netvsc"], "rx_queue_{n}_xdp_drop", LossStage::Xdp, ""),
    lost(&["mana"], "hc_rx_discards_no_wqe", LossStage::Ring),
    lost(&["mana"], "hc_rx_pkt_drop_phy", LossStage::Nic),
    shown(&["mana"], "rx_{n}_xdp_drop", LossStage::Xdp, ""),
    lost(&["sfc"], "port_rx_nodesc_drops", LossStage::Ring),
    lost(&["sfc"], "port_rx_overflow", LossStage::Nic),
    lost(&["sfc"], "rx_noskb_drops", LossStage::Ring),
    // one counter for packets without a descriptor and for a full buffer
    lost(&["tg3"], "rx_discards", LossStage::Ring),
    lost(&["bnx2"], "rx_fw_discards", LossStage::Ring),
    lost(&["bnx2"], "rx_ftq_discards", LossStage::Nic),
    // bnx2x_ethtool.c: bnx2x_stats_arr, bnx2x_q_stats_arr
    lost(&["bnx2x"], "rx_discards", LossStage::Ring),
    lost(&["bnx2x"], "[{n}]: rx_discards", LossStage::Ring),
    lost(&["bnx2x"], "rx_brb_discard", LossStage::Nic),
    lost(&["bnx2x"], "rx_brb_truncate", LossStage::Nic),
    lost(&["bnx2x"], "[{n}]: rx_skb_alloc_discard", LossStage::Ring),
    // be_ethtool.c: et_stats, et_rx_stats
    lost(&["be2net"], "rxq{n}: rx_drops_no_frags", LossStage::Ring),
    lost(&["be2net"], "rxq{n}: rx_drops_no_skbs", LossStage::Ring),
    shown(&["be2net"], "rxq{n}: rx_post_fail", LossStage::Ring, NO_MEMORY),
    lost(&["be2net"], "rx_drops_no_pbuf", LossStage::Nic),
    lost(&["be2net"], "rx_drops_no_erx_descr", LossStage::Nic),
    lost(&["be2net"], "rx_input_fifo_overflow_drop", LossStage::Nic),
    lost(&["be2net"], "rxpp_fifo_overflow_drop", LossStage::Nic),
    lost(&["be2net"], "pmem_fifo_overflow_drop", LossStage::Nic),
    // mlx4/en_ethtool.c: main_strings, and the rings
    lost(&["mlx4_en"], "rx_dropped", LossStage::Ring),
    lost(&["mlx4_en"], "rx{n}_dropped", LossStage::Ring),
    lost(&["mlx4_en"], "rx_over_errors", LossStage::Nic),
    shown(&["mlx4_en"], "rx_xdp_drop", LossStage::Xdp, ""),
    // cxgb4_ethtool.c: stats_strings; a buffer group is one of the NIC's
    lost(&["cxgb4"], "rx_bg{n}_frames_dropped", LossStage::Nic),
    lost(&["cxgb4"], "rx_bg{n}_frames_trunc", LossStage::Nic),
    // ionic_stats.c: ionic_lif_stats_desc, ionic_port_stats_desc, ionic_rx_stats_desc
    lost(&["ionic"], "hw_rx_dropped", LossStage::Nic),
    lost(&["ionic"], "hw_rx_over_errors", LossStage::Nic),
    lost(&["ionic"], "hw_rx_missed_errors", LossStage::Ring),
    lost(&["ionic"], "rx_{n}_dropped", LossStage::Ring),
    shown(&["ionic"], "rx_{n}_alloc_err", LossStage::Ring, NO_MEMORY),
    // stmmac_ethtool.c: stmmac_gstrings_stats, stmmac_mmc
    lost(&["stmmac"], "rx_missed_cntr", LossStage::Ring),
    lost(&["stmmac"], "rx_overflow_cntr", LossStage::Nic),
    lost(&["stmmac"], "mmc_rx_fifo_overflow", LossStage::Nic),
    shown(&["stmmac"], "rx_buf_unav_irq", LossStage::Ring, "times that the ring was empty"),
    // mvneta.c: mvneta_statistics
    lost(&["mvneta"], "rx_discard", LossStage::Ring),
    lost(&["mvneta"], "rx_overrun", LossStage::Nic),
    shown(&["mvneta"], "refill_errors", LossStage::Ring, NO_MEMORY),
    // mvpp2_main.c: mvpp2_ethtool_port_regs, mvpp2_ethtool_rxq_regs
    lost(&["mvpp2"], "rx_fifo_or_parser_overrun_drops", LossStage::Nic),
    lost(&["mvpp2"], "rxq_{n}_queue_full_drops", LossStage::Ring),
    lost(&["mvpp2"], "rxq_{n}_packets_early_drops", LossStage::Ring),
    lost(&["mvpp2"], "rxq_{n}_packets_bm_drops", LossStage::Ring),
    // fec_main.c: fec_stats
    lost(&["fec"], "IEEE_rx_macerr", LossStage::Nic),
    lost(&["fec"], "IEEE_rx_drop", LossStage::Nic),
    // bcmgenet.c: bcmgenet_gstrings_stats
    lost(&["bcmgenet"], "rbuf_ovflow_cnt", LossStage::Nic),
    shown(&["bcmgenet"], "alloc_rx_buff_failed", LossStage::Ring, NO_MEMORY),
    // mtk_eth_soc.c: mtk_ethtool_stats
    lost(&["mtk_soc_eth"], "rx_overflow", LossStage::Nic),
    // macb.h: gem_statistics
    lost(&["macb"], "rx_resource_errors", LossStage::Ring),
    lost(&["macb"], "rx_overruns", LossStage::Nic),
    lost(&["r8169"], "rx_missed", LossStage::Nic),
    lost(&["r8125"], "rx_missed", LossStage::Nic),
    lost(&["atlantic"], "InDroppedDma", LossStage::Ring),
    lost(&["qede"], "no_buff_discards", LossStage::Ring),
    lost(&["nfp"], "dev_rx_discards", LossStage::Nic),
    lost(&["enic"], "rx_no_bufs", LossStage::Ring),
];

/// Drivers that count packets without a descriptor separately from packets that the NIC's buffer
/// could not hold. With other drivers, the NIC's buffer fills up because it waits for descriptors.
const RING_APART: &[&str] = &["bnxt_en", "ena", "mana", "mlx5_core", "sfc", "virtio_net"];

/// Whether the NIC drops that this netdev's driver counts are independent of the ring.
pub fn ring_apart(netdev: &Netdev) -> bool {
    has_driver(netdev, RING_APART)
}

/// Whether a row is of this driver.
#[cfg(test)]
pub(crate) fn lists(driver: DriverName<'_>) -> bool {
    ROWS.iter().any(|row| driver.is_in(row.drivers))
}

/// The row of a driver's counter. Ignores spaces around the name.
pub fn row(driver: Option<DriverName<'_>>, name: &str) -> Option<&'static DropCounter> {
    let driver = driver?;
    ROWS.iter().find(|row| driver.is_in(row.drivers) && row.fits(name.trim()))
}

/// The table of lost packets, as markdown.
pub(crate) fn as_markdown() -> String {
    let mut text =
        "| driver | counter of `ethtool -S` | place | not a loss |\n|---|---|---|---|\n".to_owned();
    for row in ROWS {
        let (drivers, aside) = (row.drivers.join(", "), row.aside);
        let _ = writeln!(text, "| {drivers} | `{}` | {} | {aside} |", row.name, row.place.label());
    }
    text
}

impl DropCounter {
    /// The name with `*` in place of the number, for the sum over all numbers.
    pub fn name(&self) -> String {
        self.name.replace("{n}", "*")
    }

    /// The rx queue that lost the packets; `None` if it is not counted by queue, or is no loss.
    pub fn queue(&self, name: &str) -> Option<u32> {
        // a priority, a buffer group of the NIC
        let of_none = ["prio", "_bg"].iter().any(|word| self.name.contains(word));
        let by_queue = self.aside.is_empty() && self.place.loses() && !of_none;
        self.number(name.trim()).filter(|_| by_queue)?.parse().ok()
    }

    fn fits(&self, name: &str) -> bool {
        self.name == name || self.number(name).is_some()
    }

    fn number<'a>(&self, name: &'a str) -> Option<&'a str> {
        let (before, after) = self.name.split_once("{n}")?;
        let number = name.strip_prefix(before)?.strip_suffix(after)?;
        let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        digits.then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_by_driver_and_name_with_any_number() {
        fn row(driver: &str, name: &str) -> Option<&'static DropCounter> {
            let netdev = Netdev { driver: Some(driver.into()), ..Netdev::default() };
            super::row(DriverName::of(&netdev), name)
        }
        let place = |driver, name| row(driver, name).map(|row| row.place);
        assert_eq!(place("igb", "rx_queue_12_drops"), Some(LossStage::Ring));
        assert_eq!(place("igb", "rx_queue__drops"), None);
        let queue = |driver, name| row(driver, name).and_then(|row| row.queue(name));
        assert_eq!(queue("igb", "rx_queue_12_drops"), Some(12));
        assert_eq!(queue("bnxt_en", " [3]: rx_discards"), Some(3));
        assert_eq!(queue("mlx5_core", "rx_prio3_discards"), None, "a priority is no queue");
        assert_eq!(queue("cxgb4", "rx_bg1_frames_dropped  "), None, "a buffer group is no queue");
        assert_eq!(queue("be2net", "rxq3: rx_drops_no_frags"), Some(3));
        assert_eq!(queue("igb", "rx_queue_1_alloc_failed"), None, "no loss");
        assert_eq!(place("virtio_net", "rx_queue_0_xdp_drops"), Some(LossStage::Xdp));
        assert_eq!(place("vmxnet3", "  pkts rx OOB"), Some(LossStage::Ring));
        assert_eq!(place("bnxt_en", "[3]: rx_discards"), Some(LossStage::Ring));
        assert_eq!(place("gve", "rx_queue_drop_cnt[0]"), Some(LossStage::Ring));
        assert_eq!(place("mlx5_core", "rx_missed_errors"), None);
        assert_eq!(row("gve", "rx_queue_drop_cnt[7]").unwrap().name(), "rx_queue_drop_cnt[*]");
    }
}
