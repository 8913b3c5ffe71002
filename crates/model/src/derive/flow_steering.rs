//! Drivers that steer flows by the table of RFS (aRFS).

use crate::change::NTUPLE_FILTER;
use crate::drivers::name::has_driver;
use crate::snapshot::host::Snapshot;
use crate::snapshot::netdev::Netdev;

/// Drivers that implement `ndo_rx_flow_steer` (read off the sources of 6.1 to 7.2).
const ARFS_DRIVERS: [&str; 8] =
    ["bnxt_en", "enic", "hns3", "ice", "mlx4_en", "mlx5_core", "qede", "sfc"];

/// Whether the netdev's driver implements aRFS.
pub fn has_arfs(netdev: &Netdev) -> bool {
    has_driver(netdev, &ARFS_DRIVERS)
}

/// Whether aRFS is on for a netdev: the driver has it, its filters are on, and RFS has a table.
pub fn arfs_is_on(snapshot: &Snapshot, netdev: &Netdev) -> bool {
    let ethtool = netdev.ethtool.as_ref();
    let filters = ethtool.and_then(|ethtool| ethtool.feature(NTUPLE_FILTER));
    has_arfs(netdev)
        && filters.is_some_and(|feature| feature.active)
        && snapshot.net.rps_sock_flow_entries.unwrap_or(0) > 0
        && netdev.rx_queues.iter().any(|queue| queue.rps_flow_cnt.unwrap_or(0) > 0)
}
