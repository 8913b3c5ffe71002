//! Drivers' `ethtool -S` counters of packets that the driver or its device dropped on receive.
//!
//! The names come from the drivers' sources; a name that a driver lacks is harmless. `{n}` stands
//! for a number.

use crate::drivers::loss_stage::Place;

/// One counter of one or more drivers.
pub struct Row {
    drivers: &'static [&'static str],
    name: &'static str,
    /// The stage of the ledger that it counts.
    pub place: Place,
    /// Why it is shown but not counted as a loss; empty for a loss.
    pub aside: &'static str,
}

const fn lost(drivers: &'static [&'static str], name: &'static str, place: Place) -> Row {
    Row { drivers, name, place, aside: "" }
}

const fn shown(
    drivers: &'static [&'static str],
    name: &'static str,
    place: Place,
    aside: &'static str,
) -> Row {
    Row { drivers, name, place, aside }
}

const NO_MEMORY: &str = "no memory for a buffer; the driver retries";
const LIMIT: &str = "a limit of the instance: the provider queues or drops packets";

const ROWS: &[Row] = &[
    lost(&["igb", "igc", "e1000e", "e1000", "ixgbe"], "rx_missed_errors", Place::Nic),
    lost(&["igb", "igc"], "rx_queue_{n}_drops", Place::Ring),
    shown(
        &["igb", "igc", "e1000e", "e1000"],
        "rx_no_buffer_count",
        Place::Ring,
        "packets waited in the NIC for a descriptor",
    ),
    shown(&["igb", "igc"], "rx_queue_{n}_alloc_failed", Place::Ring, NO_MEMORY),
    lost(&["ixgbe"], "rx_no_dma_resources", Place::Ring),
    shown(&["ixgbe"], "alloc_rx_page_failed", Place::Ring, NO_MEMORY),
    shown(&["ixgbe"], "alloc_rx_buff_failed", Place::Ring, NO_MEMORY),
    lost(&["i40e"], "port.rx_discards", Place::Nic),
    lost(&["i40e"], "port.rx_dropped", Place::Nic),
    lost(&["iavf"], "rx_discards", Place::Ring),
    lost(&["ice"], "rx_dropped.nic", Place::Nic),
    lost(&["mlx5_core"], "rx_out_of_buffer", Place::Ring),
    lost(&["mlx5_core"], "rx_discards_phy", Place::Nic),
    lost(&["mlx5_core"], "rx_prio{n}_discards", Place::Nic),
    shown(
        &["mlx5_core"],
        "rx_steer_missed_packets",
        Place::Nic,
        "not for this host: the packets matched no steering rule",
    ),
    shown(&["mlx5_core"], "rx_buff_alloc_err", Place::Ring, NO_MEMORY),
    shown(&["mlx5_core"], "rx_xdp_drop", Place::Xdp, ""),
    lost(&["bnxt_en"], "rx_total_discard_pkts", Place::Ring),
    lost(&["bnxt_en"], "[{n}]: rx_discards", Place::Ring),
    lost(&["bnxt_en"], "rx_stat_discard", Place::Nic),
    shown(&["bnxt_en"], "rx_total_oom_discards", Place::Ring, NO_MEMORY),
    lost(&["ena"], "rx_drops", Place::Nic),
    shown(&["ena"], "bw_in_allowance_exceeded", Place::Nic, LIMIT),
    shown(&["ena"], "pps_allowance_exceeded", Place::Nic, LIMIT),
    shown(&["ena"], "conntrack_allowance_exceeded", Place::Nic, LIMIT),
    shown(&["ena"], "linklocal_allowance_exceeded", Place::Nic, LIMIT),
    shown(&["ena"], "queue_{n}_rx_empty_rx_ring", Place::Ring, "times that the ring was empty"),
    shown(&["ena"], "queue_{n}_rx_page_alloc_fail", Place::Ring, NO_MEMORY),
    lost(&["gve"], "rx_queue_drop_cnt[{n}]", Place::Ring),
    lost(&["gve"], "rx_dropped_pkt[{n}]", Place::Ring),
    shown(&["gve"], "rx_no_buffers_posted[{n}]", Place::Ring, "times that no buffer was posted"),
    shown(&["gve"], "rx_xdp_drop[{n}]", Place::Xdp, ""),
    lost(&["virtio_net"], "rx_queue_{n}_drops", Place::Ring),
    lost(&["virtio_net"], "rx{n}_drops", Place::Ring),
    lost(&["virtio_net"], "rx{n}_hw_drops", Place::Nic),
    lost(&["virtio_net"], "rx{n}_hw_drop_overruns", Place::Ring),
    shown(&["virtio_net"], "rx_queue_{n}_xdp_drops", Place::Xdp, ""),
    shown(&["virtio_net"], "rx{n}_xdp_drops", Place::Xdp, ""),
    lost(&["vmxnet3"], "pkts rx OOB", Place::Ring),
    lost(&["vmxnet3"], "drv dropped rx total", Place::Ring),
    shown(&["vmxnet3"], "rx buf alloc fail", Place::Ring, NO_MEMORY),
    lost(&["hv_netvsc"], "rx_no_memory", Place::Ring),
    shown(
        &["hv_netvsc"],
        "rx_comp_busy",
        Place::Ring,
        "completions that the host could not accept at once",
    ),
    shown(&["hv_netvsc"], "rx_queue_{n}_xdp_drop", Place::Xdp, ""),
    lost(&["mana"], "hc_rx_discards_no_wqe", Place::Ring),
    lost(&["mana"], "hc_rx_pkt_drop_phy", Place::Nic),
    shown(&["mana"], "rx_{n}_xdp_drop", Place::Xdp, ""),
    lost(&["sfc"], "port_rx_nodesc_drops", Place::Ring),
    lost(&["sfc"], "port_rx_overflow", Place::Nic),
    lost(&["sfc"], "rx_noskb_drops", Place::Ring),
    lost(&["tg3"], "rx_discards", Place::Ring),
    lost(&["bnx2"], "rx_fw_discards", Place::Ring),
    lost(&["bnx2"], "rx_ftq_discards", Place::Nic),
    lost(&["r8169"], "rx_missed", Place::Nic),
    lost(&["atlantic"], "InDroppedDma", Place::Ring),
    lost(&["qede"], "no_buff_discards", Place::Ring),
    lost(&["nfp"], "dev_rx_discards", Place::Nic),
    lost(&["enic"], "rx_no_bufs", Place::Ring),
];

/// Drivers that count packets without a descriptor separately from packets that the NIC's buffer
/// could not hold. With other drivers the NIC's buffer fills up because it waits for descriptors.
const RING_APART: &[&str] = &["bnxt_en", "ena", "mana", "mlx5_core", "sfc", "virtio_net"];

/// Whether this driver's NIC drops are independent of the ring.
pub fn ring_apart(driver: &str) -> bool {
    RING_APART.contains(&driver)
}

/// The row of a driver's counter. Ignores spaces around the name.
pub fn row(driver: &str, name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.drivers.contains(&driver) && row.fits(name.trim()))
}

impl Row {
    /// The name with `*` in place of the number, for the sum over all numbers.
    pub fn name(&self) -> String {
        self.name.replace("{n}", "*")
    }

    fn fits(&self, name: &str) -> bool {
        let Some((before, after)) = self.name.split_once("{n}") else { return self.name == name };
        let number = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
        number.is_some_and(|number| {
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_by_driver_and_name_with_any_number() {
        let place = |driver, name| row(driver, name).map(|row| row.place);
        assert_eq!(place("igb", "rx_queue_12_drops"), Some(Place::Ring));
        assert_eq!(place("igb", "rx_queue__drops"), None);
        assert_eq!(place("virtio_net", "rx_queue_0_xdp_drops"), Some(Place::Xdp));
        assert_eq!(place("vmxnet3", "  pkts rx OOB"), Some(Place::Ring));
        assert_eq!(place("bnxt_en", "[3]: rx_discards"), Some(Place::Ring));
        assert_eq!(place("gve", "rx_queue_drop_cnt[0]"), Some(Place::Ring));
        assert_eq!(place("mlx5_core", "rx_missed_errors"), None);
        assert_eq!(row("gve", "rx_queue_drop_cnt[7]").unwrap().name(), "rx_queue_drop_cnt[*]");
    }
}
