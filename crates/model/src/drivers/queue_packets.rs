//! Drivers' `ethtool -S` counters of the packets that each queue received or sent.
//!
//! The names come from the drivers' sources and are the same in no two families of drivers, so they
//! need no driver's name. [`crate::derive::counted`] believes them only if their sum is what the
//! netdev counted.

/// Those of rx queues; `{n}` is the number of the queue.
const NAMES: [&str; 14] = [
    "rx_queue_{n}_packets",    // igb, igc, ixgbe, ice, hv_netvsc, virtio_net
    "rx{n}_packets",           // mlx4, mlx5, virtio_net since 6.9
    "rx_{n}_packets",          // mana
    "rx-{n}.packets",          // i40e, iavf
    "rx-{n}.rx_packets",       // i40e before 4.19
    "queue_{n}_rx_cnt",        // ena
    "[{n}]: rx_ucast_packets", // bnxt_en, bnx2x
    "[{n}]: rx_mcast_packets",
    "[{n}]: rx_bcast_packets",
    "Queue[{n}] InPackets",     // atlantic
    "TC0 Queue[{n}] InPackets", // atlantic with traffic classes
    "rxq{n}_packets",           // bcmgenet
    "rxq{n}: rx_pkts",          // be2net
    "rvec_{n}_rx_pkts",         // nfp
];

/// The rx queue whose packets a counter of this name counts.
pub fn queue_of(name: &str) -> Option<u32> {
    NAMES.iter().find_map(|pattern| number(pattern, name))
}

/// The tx queue whose packets a counter of this name counts: the name of an rx queue's counter,
/// with the other direction.
pub fn sent_by(name: &str) -> Option<u32> {
    let of_tx = |pattern: &&str| pattern.replace("rx", "tx").replace("InPackets", "OutPackets");
    NAMES.iter().find_map(|pattern| number(&of_tx(pattern), name))
}

fn number(pattern: &str, name: &str) -> Option<u32> {
    let (before, after) = pattern.split_once("{n}")?;
    let digits = name.trim().strip_prefix(before)?.strip_suffix(after)?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_of_packets_names_its_queue() {
        let queues = ["rx_queue_12_packets", "  [3]: rx_ucast_packets", "Queue[1] InPackets"];
        assert_eq!(queues.map(queue_of), [Some(12), Some(3), Some(1)]);
        let others = ["rx_packets", "rx_queue__packets", "tx_queue_0_packets", "rx+1_packets"];
        assert_eq!(others.map(queue_of), [None; 4]);
        let sent = ["tx_queue_12_packets", "[3]: tx_ucast_packets", "Queue[1] OutPackets"];
        assert_eq!(sent.map(sent_by), [Some(12), Some(3), Some(1)]);
        assert_eq!(["rx_queue_0_packets", "tx_packets"].map(sent_by), [None; 2]);
    }
}
